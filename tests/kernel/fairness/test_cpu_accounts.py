"""What tenants' calls may take of the kernel's thread while others are present."""

from collections.abc import Iterable

from symphony_kernel.fairness.cpu_accounts import Accounts, CpuAccounts, CpuOptions
from symphony_kernel.fairness.fair_queue import FairQueue


class Busy:
    """Tenants' weights, and the tenants that have something on the device."""

    def __init__(self, processors: float = 1.0, **weights: float) -> None:
        self.weights = weights
        self.others: set[str] = set()
        self.shares = Accounts(self.weights.__getitem__, self._busy, processors)

    def _busy(self, _now: float) -> Iterable[str]:
        return self.others

    def had(self, tenant: str, seconds: float = 2.0, call: float = 1e-4) -> float:
        """Return what a tenant gets of so many seconds when it always wants to call."""
        now, got = 100.0, 0.0
        while now < 100.0 + seconds:
            now += call
            got += call
            if self.shares.charge(tenant, call, now):
                while (wait := self.shares.empty_seconds(tenant, now)) > 0.0:
                    now += wait
        return got / seconds


def test_tenant_alone_never_waits() -> None:
    busy = Busy(a=1.0)
    assert busy.had("a") > 0.999
    assert not busy.shares.charge("a", 10.0, 200.0)
    assert busy.shares.empty_seconds("a", 200.0) == 0.0


def test_tenant_beside_another_gets_its_weighted_share() -> None:
    for weight in (0.25, 1.0, 3.0):
        busy = Busy(a=weight, b=1.0)
        busy.others = {"b"}
        share = weight / (weight + 1.0)
        assert share - 0.02 < busy.had("a") < share + 0.02


def test_tenant_below_its_share_does_not_wait() -> None:
    busy = Busy(a=1.0, b=1.0)
    busy.others = {"b"}
    now = 0.0
    for _ in range(1_000):
        now += 0.001
        assert not busy.shares.charge("a", 0.0004, now)


def test_account_saves_up_a_moment_at_most() -> None:
    busy = Busy(a=1.0, b=1.0)
    busy.others = {"b"}
    busy.shares.charge("a", 1e-6, 0.0)
    assert busy.shares.charge("a", 0.1, 60.0)
    waits = 0.0
    while (wait := busy.shares.empty_seconds("a", 60.0 + waits)) > 0.0:
        waits += wait
    assert 0.15 < waits < 0.2, "until its share has paid for it"


def test_tenant_that_called_lately_counts_as_present() -> None:
    busy = Busy(a=1.0, b=1.0)
    busy.shares.charge("b", 1e-6, 99.9)
    assert busy.had("a", seconds=0.1) < 0.6
    assert busy.shares.empty_seconds("a", 101.0) == 0.0, "a second later it is alone"


def test_share_scales_with_processors() -> None:
    for processors in (0.5, 1.5):
        busy = Busy(processors, a=1.0, b=1.0)
        busy.others = {"b"}
        assert processors / 2 - 0.02 < busy.had("a") < processors / 2 + 0.02


def test_empty_account_tells_how_long_it_is_empty() -> None:
    busy = Busy(0.5, a=1.0, b=1.0)
    busy.others = {"b"}
    assert busy.shares.charge("a", 0.025, 0.0)
    rest = busy.shares.empty_seconds("a", 0.0)
    assert 0.079 < rest < 0.09, "20 ms over what was saved, at a quarter, and a little"
    assert busy.shares.empty_seconds("a", rest) == 0.0


def test_tenant_is_ahead_only_of_one_with_less() -> None:
    busy = Busy(a=1.0, b=1.0, heavy=4.0)
    for step in range(100):
        now = 1.0 + step / 100
        for tenant, seconds in (("a", 0.005), ("b", 0.004), ("heavy", 0.018)):
            busy.shares.charge(tenant, seconds, now)
    assert not any(busy.shares.is_ahead(each, now + 0.001) for each in busy.weights)
    busy.others = {"idle"}
    busy.weights["idle"] = 1.0
    assert all(busy.shares.is_ahead(each, now + 0.01) for each in ("a", "b", "heavy"))
    assert not busy.shares.is_ahead("idle", now + 0.01)


def test_tenant_that_owes_is_ahead_until_its_share_has_paid() -> None:
    busy = Busy(0.4, a=1.0, b=1.0)
    busy.others = {"b"}
    busy.shares.charge("a", 0.5, 100.0)  # as one long text takes
    owes = busy.shares.empty_seconds("a", 100.0)
    assert 2.4 < owes < 2.6
    for part in (0.3, 0.6, 0.95):
        now = 100.0 + part * owes
        busy.shares.charge("b", 0.001, now)
        assert busy.shares.is_ahead("a", now)
        assert busy.shares.empty_seconds("a", now) > 0.0
    assert not busy.shares.is_ahead("a", 100.1 + owes)


def test_calls_of_a_long_debt_ask_again_before_it_is_paid() -> None:
    accounts = CpuAccounts(FairQueue(), lambda _now: ("a", "b"), CpuOptions())
    assert accounts.charge_calls(1, "a", 1.0, 0.1, 0.0)
    assert 0.0 < accounts.seconds_until_calls("a", 0.0) < accounts.throttle_seconds("a", 0.0)
