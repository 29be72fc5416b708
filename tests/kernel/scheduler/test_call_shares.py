"""What tenants' calls may take of the kernel's thread beside others."""

from collections.abc import Iterable

from symphony_kernel.scheduler.call_shares import CallShares


class Busy:
    """Tenants' weights, and who has something on the device."""

    def __init__(self, **weights: float) -> None:
        self.weights = weights
        self.others: set[str] = set()
        self.shares = CallShares(self.weights.__getitem__, self._busy)

    def _busy(self, _now: float) -> Iterable[str]:
        return self.others

    def had(self, tenant: str, seconds: float = 2.0, call: float = 1e-4) -> float:
        """Return what a tenant gets of so many seconds when it always wants to call."""
        now, got = 100.0, 0.0
        while now < 100.0 + seconds:
            now += call
            got += call
            if self.shares.called(tenant, call, now):
                while (wait := self.shares.wait(tenant, now)) > 0.0:
                    now += wait
        return got / seconds


def test_one_who_is_alone_never_waits() -> None:
    busy = Busy(a=1.0)
    assert busy.had("a") > 0.999
    assert not busy.shares.called("a", 10.0, 200.0)
    assert busy.shares.wait("a", 200.0) == 0.0


def test_beside_another_a_tenant_has_its_share_by_weights() -> None:
    for weight in (0.25, 1.0, 3.0):
        busy = Busy(a=weight, b=1.0)
        busy.others = {"b"}
        share = weight / (weight + 1.0)
        assert share - 0.02 < busy.had("a") < share + 0.02


def test_who_takes_little_does_not_wait() -> None:
    busy = Busy(a=1.0, b=1.0)
    busy.others = {"b"}
    now = 0.0
    for _ in range(1_000):
        now += 0.001
        assert not busy.shares.called("a", 0.0004, now)


def test_nobody_saves_up_more_than_a_moment() -> None:
    busy = Busy(a=1.0, b=1.0)
    busy.others = {"b"}
    busy.shares.called("a", 1e-6, 0.0)
    assert busy.shares.called("a", 0.1, 60.0)
    waits = 0.0
    while (wait := busy.shares.wait("a", 60.0 + waits)) > 0.0:
        waits += wait
    assert 0.15 < waits < 0.2, "until its share has paid for it"


def test_whoever_has_called_lately_counts_as_another() -> None:
    busy = Busy(a=1.0, b=1.0)
    busy.shares.called("b", 1e-6, 99.9)
    assert busy.had("a", seconds=0.1) < 0.6
    assert busy.shares.wait("a", 101.0) == 0.0, "a second later it is alone"
