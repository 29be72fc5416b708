"""What the gateway counts of runs, by tenant, and of requests; since its start, so it only grows.

admitted -> started -> first message -> ended
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from symphony_kernel.protocol.histogram import FIRST_TOKEN_SECONDS, RUN_SECONDS, Histogram
from symphony_kernel.protocol.limit_table import RUN_LIMITS, WORKER_TENANT_LIMITS, limit_of

# A killed run's reason in words begins with the first, or holds it; the second names it in a label.
# What a worker says is not believed: whatever it is, it becomes one of these.
_KINDS = (
    ("it was cancelled", "cancel"),
    ("cpu time limit", "cpu_ms"),
    ("wall time limit", "wall_ms"),
    ("the run took longer", "wall_ms"),
    ("memory limit", "memory_bytes"),
    ("the run has used up", "tokens"),
    ("output limit", "output"),
    ("message limit", "output"),
    ("table limit", "table_elements"),
    ("it sent more", "output"),
    ("log limit", "log"),
)
KILL_KINDS = (*dict.fromkeys(kind for _, kind in _KINDS), "other")
_WORKERS_LIMITS = (*(limit.name for limit in RUN_LIMITS), *WORKER_TENANT_LIMITS)
_HITS_MAX = 1 << 48  # of one run: more is no count
_TENANTS_MAX = 500  # with a count of their own; whoever comes later is counted among the others
OTHERS = "(others)"  # no tenant is called so: names have no parentheses


class EndedRun(Protocol):
    """What is counted of a run that has ended."""

    tenant: str
    status: str
    reason: str
    usage: dict[str, int] | None


@dataclass(slots=True)
class TenantMetrics:
    """What one tenant's runs have come to."""

    started: int = 0
    ended: Counter[str] = field(default_factory=Counter)  # by their final status
    killed: Counter[str] = field(default_factory=Counter)  # by KILL_KINDS
    limits: Counter[str] = field(default_factory=Counter)  # that were reached, by their names
    usage: Counter[str] = field(default_factory=Counter)  # of ended runs, by USAGE_KEYS

    def add(self, other: "TenantMetrics") -> None:
        """Count what another has come to, too."""
        self.started += other.started
        self.ended.update(other.ended)
        self.killed.update(other.killed)
        self.limits.update(other.limits)
        self.usage.update(other.usage)


class RunMetrics:
    """Counters of all tenants, and times that belong to no tenant. Times are in seconds."""

    def __init__(self) -> None:
        self.start_seconds = Histogram(FIRST_TOKEN_SECONDS)  # from admission to the worker
        self.first_message_seconds = Histogram(FIRST_TOKEN_SECONDS)  # from admission to a send
        self.run_seconds = Histogram(RUN_SECONDS)  # from admission to the stored end
        self.responses: Counter[tuple[str, int]] = Counter()  # by route and status
        self._tenants: dict[str, TenantMetrics] = {}

    def of_tenant(self, tenant: str) -> TenantMetrics:
        """Return a tenant's figures, or those that it shares with others."""
        found = self._tenants.get(tenant)
        if found is None:
            name = tenant if len(self._tenants) < _TENANTS_MAX else OTHERS
            found = self._tenants.setdefault(name, TenantMetrics())
        return found

    def tenants(self) -> dict[str, TenantMetrics]:
        """Return all tenants' figures, by their names."""
        return self._tenants

    def total(self) -> TenantMetrics:
        """Return the sum over all tenants."""
        total = TenantMetrics()
        for each in self._tenants.values():
            total.add(each)
        return total

    def count_start(self, tenant: str, seconds: float) -> None:
        """A run has gone to its worker, so long after it was admitted."""
        self.of_tenant(tenant).started += 1
        self.start_seconds.add(seconds)

    def count_first_message(self, seconds: float) -> None:
        """A run has sent its first message, so long after it was admitted."""
        self.first_message_seconds.add(seconds)

    def count_end(self, record: EndedRun, seconds: float) -> None:
        """A run has ended, and its readers have been told, so long after it was admitted."""
        figures = self.of_tenant(record.tenant)
        figures.ended[record.status] += 1
        if record.status == "killed":
            figures.killed[kind_of(record.reason)] += 1
        limit = limit_of(record.status, record.reason)
        if limit is not None:
            figures.limits[limit] += 1
        figures.usage.update(record.usage or {})
        self.run_seconds.add(seconds)

    def count_limit(self, tenant: str, limit: str) -> None:
        """A limit of a tenant was reached."""
        self.of_tenant(tenant).limits[limit] += 1

    def count_worker_limits(self, tenant: str, hits: Mapping[Any, Any]) -> None:
        """A worker tells how often a run's calls were refused for limits: as far as it can be."""
        limits = self.of_tenant(tenant).limits
        for name in _WORKERS_LIMITS:
            count = hits.get(name, 0)
            if type(count) is int and 0 < count < _HITS_MAX:
                limits[name] += count

    def count_response(self, route: str, status: int) -> None:
        """A request of a route of the table has been answered."""
        self.responses[route, status] += 1

    def statistics(self) -> dict[str, Any]:
        """Return the sums, as the gateway's statistics have them."""
        total = self.total()
        return {
            "runs_started": total.started,
            "runs_ended": dict(total.ended),
            "runs_killed": dict(total.killed),
            "limits_reached": dict(total.limits),
        }


def kind_of(reason: str) -> str:
    """Return the label of a killed run's reason."""
    for words, kind in _KINDS:
        if reason.startswith(words):
            return kind
    return "other"
