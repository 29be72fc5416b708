"""Processor time outside the kernel, which workers and the gateway report.

    a worker's slices, the gateway's frames -> Spent -> the tenant's account -> Pace -> the worker
    a tenant's compilers                    -> Spent -> the tenant's account -> Pace -> the gateway

It is charged like calls. The reply says how long a tenant with an empty account is throttled. At
the end of that time the peer asks again ([tenant, 0]). It is always answered, and throttles the
tenant until then. A worker reports only instances that run in it, so one that lies harms no tenant
but theirs. What it does not report or obey is bounded by the kernel's own account
(`syscalls.dispatch`).

Nothing but an account follows from these times: a replay charges nothing.
"""

from typing import Any, Final

from symphony_kernel.fairness.cpu_accounts import CpuAccounts
from symphony_kernel.processes.table import ProcessTable
from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.limits import PACE_MS_MAX, REST_MS_MAX, SPENT_US_MAX

_SHORTEST_SECONDS: Final = 0.002  # shorter throttling is not worth a message


def charge_report(
    processes: ProcessTable,
    accounts: CpuAccounts,
    now: float,
    peer: str,
    times: list[Any],
    *,
    gateway: bool,
    replaying: bool,
) -> list[m.Pace]:
    """Charge [[instance, microseconds], ...]; return the replies: which tenants to throttle.

    The gateway may name a tenant in place of an instance. [tenant, 0] asks, and charges nothing.

    Raises MessageError: an item is malformed.
    """
    charged, asked = set[str](), set[str]()
    for item in times:
        owner, spent = _parse(item)
        if isinstance(owner, str):
            if not spent:
                asked.add(owner)
                continue
            if not gateway:
                raise m.MessageError("a worker may not speak for a tenant")
            tenant, replied = owner, True
        else:
            caller = processes.live.get(owner)
            if caller is None or not (gateway or caller.worker == peer):
                continue  # it may have ended
            tenant, replied = caller.tenant.name, not gateway
        if not replaying:
            accounts.charge_reported(tenant, spent / 1e6, now)
            if replied:
                charged.add(tenant)
    if not gateway and processes.tenants_live <= 1:
        return [m.Pace(tenant, 0) for tenant in sorted(asked)]
    longest_ms = REST_MS_MAX if gateway else PACE_MS_MAX
    waits = [(tenant, accounts.throttle_seconds(tenant, now)) for tenant in sorted(charged | asked)]
    return [
        m.Pace(tenant, min(round(1000 * seconds), longest_ms))
        for tenant, seconds in waits
        if seconds >= _SHORTEST_SECONDS or tenant in asked
    ]


def _parse(item: Any) -> tuple[int | str, int]:
    if type(item) is list and len(item) == 2:
        owner, spent = item
        if type(owner) in (int, str) and type(spent) is int and spent >= 0:
            return owner, min(spent, SPENT_US_MAX)
    raise m.MessageError("an item of Spent is [instance, microseconds]")
