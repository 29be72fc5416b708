"""CPU accounts: of the kernel's thread, and of all processors together.

    calls of a run                    -> charge_calls    -> both accounts; the next calls may wait
    what worker and gateway report    -> charge_reported -> the account of all processors

Time adds a tenant's share to its account, by the weights of all present tenants, and the time that
it uses is subtracted. While an account is empty the tenant is throttled
(docs/how-it-works/fairness.md). A tenant that is alone has no account and waits for nothing.

The kernel's thread forms no steps while it executes calls. So the time of calls is charged to the
tenant's account of the device, too, as is reported time where the processors are the device.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf
from typing import Final

from symphony_kernel.fairness.fair_queue import FairQueue

RECENT_SECONDS: Final = 0.25  # a tenant counts as active so long after its last charge
_SAVED_SECONDS: Final = 0.005  # the most that an account holds
_CALLS_SAVED_SECONDS: Final = 0.0005  # the same of the kernel's thread, for which steps wait
_DEBT_SECONDS: Final = 1.0  # the most that an account owes, however long a call has taken
_RELEASE_SECONDS: Final = 0.001  # that an account must hold before waiting calls are released
_WAIT_SECONDS: Final = 0.01  # at most, between two looks whether others are still active
_ACTIVE_SECONDS: Final = 0.005  # after which the active tenants are determined again
_AHEAD_TIMES: Final = 1.5  # as much as another had lately, by their weights


@dataclass(frozen=True, slots=True)
class CpuOptions:
    """How many processors tenants share in addition to steps, while these are `short`.

    `device_share`: the part of the device that one processor is; 0.0 if the device is a GPU.
    """

    processors: float = inf
    short: Callable[[float], bool] = lambda _now: True
    device_share: float = 0.0


class _Account:
    """Seconds that a tenant has left, and has used lately, at a point in time."""

    __slots__ = ("at", "had", "left")

    def __init__(self, now: float, saved: float) -> None:
        self.left = saved
        self.had = 0.0
        self.at = now

    def recent(self, now: float) -> float:
        return self.had * max(1.0 - (now - self.at) / RECENT_SECONDS, 0.0)


class Accounts:
    """The accounts of one resource, which earns `processors` seconds a second.

    `weight` returns a tenant's weight, `others` the tenants that are active for other reasons than
    their charges.
    """

    def __init__(
        self,
        weight: Callable[[str], float],
        others: Callable[[float], Iterable[str]],
        processors: float = 1.0,
        saved: float = _SAVED_SECONDS,
    ) -> None:
        self._processors, self._saved = processors, saved
        self._weight = weight
        self._others = others
        self._accounts: dict[str, _Account] = {}
        self._active: dict[str, float] = {}  # weights, as of `_refreshed`
        self._total = 0.0
        self._refreshed = float("-inf")

    def charge(self, tenant: str, seconds: float, now: float) -> bool:
        """Charge a tenant for its calls; return whether its next ones have to wait."""
        share = self._share(tenant, now)  # which forgets accounts
        account = self._accounts.get(tenant)
        if account is None:
            account = self._accounts[tenant] = _Account(now, self._saved)
        if share == 1.0:
            account.left = self._saved
        else:
            earned = (now - account.at) * share * self._processors
            left = min(account.left + earned, self._saved) - seconds
            account.left = max(left, -_DEBT_SECONDS)
        account.had = account.recent(now) + seconds
        account.at = now
        return account.left < 0.0

    def is_ahead(self, tenant: str, now: float) -> bool:
        """Whether an active tenant has had notably less than this one, lately or on credit."""
        self._share(tenant, now)
        accounts = self._accounts
        if tenant not in accounts:
            return False
        had = {
            name: self._had(name, accounts[name], now) / weight if name in accounts else 0.0
            for name, weight in self._active.items()
        }
        return had[tenant] > _AHEAD_TIMES * min(had.values())

    def empty_seconds(self, tenant: str, now: float) -> float:
        """Return the seconds until its share has paid, if it costs nothing from now on."""
        share, account = self._share(tenant, now), self._accounts.get(tenant)
        if account is None or share == 1.0:
            return 0.0
        share *= self._processors
        lacks = share * _RELEASE_SECONDS - account.left - (now - account.at) * share
        return lacks / share if lacks > 1e-9 else 0.0

    def _had(self, tenant: str, account: _Account, now: float) -> float:
        """Return the seconds that a tenant has had lately, and those that it owes."""
        return account.recent(now) + max(-self._left(tenant, account, now), 0.0)

    def _left(self, tenant: str, account: _Account, now: float) -> float:
        """Return the seconds that an account holds now."""
        weight = self._weight(tenant)
        total = self._total if tenant in self._active else self._total + weight
        return account.left + (now - account.at) * weight / total * self._processors

    def _share(self, tenant: str, now: float) -> float:
        if now - self._refreshed > _ACTIVE_SECONDS:
            self._refresh(now)
        active = self._active
        if tenant not in active:
            weight = active[tenant] = self._weight(tenant)
            self._total += weight
        return 1.0 if len(active) == 1 else active[tenant] / self._total

    def _refresh(self, now: float) -> None:
        """Update the active tenants; forget accounts that are old and owe nothing."""
        self._refreshed, since = now, now - RECENT_SECONDS
        weight = self._weight
        active = {name: weight(name) for name in self._others(now)}
        for name, account in self._accounts.items():
            if account.at > since and name not in active:
                active[name] = weight(name)
        self._active, self._total = active, sum(active.values())
        self._accounts = {
            name: account
            for name, account in self._accounts.items()
            if account.at > since or (active and self._left(name, account, now) < 0.0)
        }


class CpuAccounts:
    """Both accounts of each tenant: calls in the kernel, and all processors."""

    def __init__(
        self, queue: FairQueue, present: Callable[[float], Iterable[str]], options: CpuOptions
    ) -> None:
        self._queue = queue
        self._calling = Accounts(queue.tenant_weight, present, saved=_CALLS_SAVED_SECONDS)
        self._options = options
        self._all: Accounts | None = None
        if options.processors < inf:
            self._all = Accounts(queue.tenant_weight, present, options.processors)

    def charge_calls(
        self, root: int, tenant: str, weight: float, seconds: float, now: float
    ) -> bool:
        """Charge a run for calls in the kernel; return whether its tenant must wait.

        `weight` is the run's in its tenant.
        """
        over = self._calling.charge(tenant, seconds, now)
        if self._all is not None and self._all.charge(tenant, seconds, now):
            over = over or self._may_throttle(self._all, tenant, now)
        if self._queue.several:
            self._queue.charge_tenant(tenant, seconds)
            if self._queue.has_run(root):
                self._queue.charge_run(root, tenant, weight, seconds)
        return over

    def charge_reported(self, tenant: str, seconds: float, now: float) -> None:
        if self._all is not None:
            self._all.charge(tenant, seconds, now)
        if self._queue.several and tenant in self._queue.present:
            self._queue.charge_tenant(tenant, seconds * self._options.device_share)

    def seconds_until_calls(self, tenant: str, now: float) -> float:
        """Return the seconds after which to ask again; 0.0: calls may be executed."""
        return min(self.throttle_seconds(tenant, now), _WAIT_SECONDS)

    def throttle_seconds(self, tenant: str, now: float) -> float:
        """Return how long a tenant must wait until its share has paid for its time."""
        seconds = self._calling.empty_seconds(tenant, now)
        if self._all is not None and self._may_throttle(self._all, tenant, now):
            seconds = max(seconds, self._all.empty_seconds(tenant, now))
        return seconds

    def _may_throttle(self, accounts: Accounts, tenant: str, now: float) -> bool:
        """Whether a tenant may be throttled: others had less, and processors are short."""
        return accounts.is_ahead(tenant, now) and self._options.short(now)
