"""What tenants cost outside the kernel: processor time of workers and of the gateway.

    a worker's turns, the gateway's frames -> Spent -> the tenant's account -> Pace -> the worker
    a tenant's compilers                   -> Spent -> the tenant's account -> Pace -> the gateway

Both tell now and then what instances have cost them. It is charged like the calls that these make,
and a worker hears for how long a tenant that has had its share is to rest: neither its messages nor
its loops go through the kernel, so nothing here could hold them. A worker speaks for those that run
in it alone, so one that lies harms no tenant but theirs; what it does not tell, or does not do, the
kernel's own account still bounds (`syscalls.dispatch`). What is no instance's the gateway tells by
the tenant's name, and hears itself when that is to wait.

What time it took is no input that anything but an account follows from: a replay charges nothing.
"""

from typing import Any, Final, Protocol

from symphony_kernel.platform.clock import Clock
from symphony_kernel.processes.table import ProcessTable
from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.limits import PACE_MS_MAX, REST_MS_MAX, SPENT_US_MAX

_SHORTEST_SECONDS: Final = 0.002  # of rest: for less nobody is told


class ReportingPeer(Protocol):
    """A port whose peer tells what it has spent."""

    name: str

    def send(self, message: m.Message) -> None:
        """Send one message."""


class ReplayState(Protocol):
    """Who knows whether what is told happened to a kernel before."""

    replaying: bool


class Accounts(Protocol):
    """Who keeps the tenants' accounts (`fairness.cpu_accounts`)."""

    def charge_reported(self, tenant: str, seconds: float, now: float) -> None:
        """A tenant has cost so much of processors outside the kernel."""

    def throttle_seconds(self, tenant: str, now: float) -> float:
        """Return the seconds for which a tenant is to rest: its share will have paid by then."""


class CpuReports:
    """Charges what is told."""

    def __init__(self, processes: ProcessTable, accounts: Accounts, clock: Clock) -> None:
        self._processes, self._accounts, self._clock = processes, accounts, clock

    def charge_report(
        self, port: ReportingPeer, times: list[Any], hooks: ReplayState | None, *, gateway: bool
    ) -> None:
        """Charge [[instance, microseconds], ...]; answer with what is to rest there.

        The gateway may name a tenant in an instance's place.

        Raises:
            MessageError: an item is none.
        """
        replaying = hooks is not None and hooks.replaying
        now, told = self._clock.now(), set[str]()
        for item in times:
            whose, spent = _parse(item)
            if isinstance(whose, str):
                if not gateway:
                    raise m.MessageError("a worker may not speak for a tenant")
                if not replaying:
                    self._accounts.charge_reported(whose, spent / 1e6, now)
                    told.add(whose)
                continue
            caller = self._processes.live.get(whose)
            if caller is None or replaying or not (gateway or caller.worker == port.name):
                continue  # it has ended, perhaps
            tenant = caller.tenant.name
            self._accounts.charge_reported(tenant, spent / 1e6, now)
            if not gateway:
                told.add(tenant)
        if gateway or self._processes.tenants_live > 1:
            for tenant in sorted(told):
                self._throttle(port, tenant, now, REST_MS_MAX if gateway else PACE_MS_MAX)

    def _throttle(self, port: ReportingPeer, tenant: str, now: float, longest_ms: int) -> None:
        seconds = self._accounts.throttle_seconds(tenant, now)
        if seconds >= _SHORTEST_SECONDS:
            port.send(m.Pace(tenant, min(round(1000 * seconds), longest_ms)))


def _parse(item: Any) -> tuple[int | str, int]:
    if type(item) is list and len(item) == 2:
        whose, spent = item
        if type(whose) in (int, str) and type(spent) is int and spent >= 0:
            return whose, min(spent, SPENT_US_MAX)
    raise m.MessageError("an item of Spent is [instance, microseconds]")
