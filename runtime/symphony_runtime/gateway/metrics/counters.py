"""Counters of runs, by tenant, and of requests, since the gateway's start.

admitted -> started -> first message -> ended
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from symphony_kernel.protocol.histogram import FIRST_TOKEN_SECONDS, RUN_SECONDS, Histogram
from symphony_kernel.protocol.limit_table import RUN_LIMITS, WORKER_TENANT_LIMITS, limit_of

# (prefix of a killed run's reason, label). A worker's reason is not trusted: the label is always
# one of these, or "other".
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
_HITS_MAX = 1 << 48  # of one run: a larger number is ignored
_TENANTS_MAX = 500  # with counters of their own; later tenants share OTHERS
OTHERS = "(others)"  # no tenant has this name: names have no parentheses


@dataclass(slots=True)
class TenantMetrics:
    """Counters of one tenant."""

    started: int = 0
    ended: Counter[str] = field(default_factory=Counter)  # by their final status
    killed: Counter[str] = field(default_factory=Counter)  # by KILL_KINDS
    limits: Counter[str] = field(default_factory=Counter)  # reached limits, by name
    usage: Counter[str] = field(default_factory=Counter)  # of ended runs, by USAGE_KEYS
    drafted: int = 0  # tokens that the OpenAI routes drafted
    accepted: int = 0  # of them, those that were right

    def add(self, other: "TenantMetrics") -> None:
        self.started += other.started
        self.ended.update(other.ended)
        self.killed.update(other.killed)
        self.limits.update(other.limits)
        self.usage.update(other.usage)
        self.drafted += other.drafted
        self.accepted += other.accepted


class RunMetrics:
    """Counters of all tenants, and histograms over all of them. Times are in seconds."""

    def __init__(self) -> None:
        self.start_seconds = Histogram(FIRST_TOKEN_SECONDS)  # from admission to the worker
        self.first_message_seconds = Histogram(FIRST_TOKEN_SECONDS)  # from admission to a send
        self.run_seconds = Histogram(RUN_SECONDS)  # from admission to the stored end
        self.responses: Counter[tuple[str, int]] = Counter()  # by route and status
        self._tenants: dict[str, TenantMetrics] = {}

    def of_tenant(self, tenant: str) -> TenantMetrics:
        """Return a tenant's counters, or the shared ones of OTHERS."""
        found = self._tenants.get(tenant)
        if found is None:
            name = tenant if len(self._tenants) < _TENANTS_MAX else OTHERS
            found = self._tenants.setdefault(name, TenantMetrics())
        return found

    def tenants(self) -> dict[str, TenantMetrics]:
        return self._tenants

    def total(self) -> TenantMetrics:
        total = TenantMetrics()
        for each in self._tenants.values():
            total.add(each)
        return total

    def count_start(self, tenant: str, seconds: float) -> None:
        self.of_tenant(tenant).started += 1
        self.start_seconds.add(seconds)

    def count_end(self, tenant: str, status: str, reason: str, usage: Mapping[str, int]) -> None:
        """Count a run that has ended and is stored."""
        metrics = self.of_tenant(tenant)
        metrics.ended[status] += 1
        if status == "killed":
            metrics.killed[kind_of(reason)] += 1
        limit = limit_of(status, reason)
        if limit is not None:
            metrics.limits[limit] += 1
        metrics.usage.update(usage)

    def count_limit(self, tenant: str, limit: str) -> None:
        self.of_tenant(tenant).limits[limit] += 1

    def count_drafts(self, tenant: str, drafted: int, accepted: int) -> None:
        metrics = self.of_tenant(tenant)
        metrics.drafted += drafted
        metrics.accepted += accepted

    def count_worker_limits(self, tenant: str, hits: Mapping[Any, Any]) -> None:
        """Count the calls that a worker refused for limits; ignores invalid numbers."""
        if not hits:
            return
        limits = self.of_tenant(tenant).limits
        for name in _WORKERS_LIMITS:
            count = hits.get(name, 0)
            if type(count) is int and 0 < count < _HITS_MAX:
                limits[name] += count

    def statistics(self) -> dict[str, Any]:
        total = self.total()
        return {
            "runs_started": total.started,
            "runs_ended": dict(total.ended),
            "runs_killed": dict(total.killed),
            "limits_reached": dict(total.limits),
        }


def kind_of(reason: str) -> str:
    for words, kind in _KINDS:
        if reason.startswith(words):
            return kind
    return "other"
