"""What an operator or a test may set of a kernel."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from symphony_kernel.kvfs.quotas import UNLIMITED
from symphony_kernel.kvfs.tenants import TenantLimits
from symphony_kernel.kvfs.tiers.config import TierConfig
from symphony_kernel.maintenance.upkeep import AuditOptions
from symphony_kernel.protocol.limits import (
    PREFIX_CACHE_SHARE,
    TENANT_DURABLE_BYTES_MAX,
    TENANT_PAGES_SHARE_MAX,
)
from symphony_kernel.scheduler.anticipation import Anticipation
from symphony_kernel.scheduler.batcher import StepLimits
from symphony_kernel.scheduler.prediction import PredictionOptions
from symphony_kernel.syscalls.durable_names import DurableOptions


@dataclass(frozen=True, slots=True)
class KernelOptions:
    """What an operator or a test may set."""

    steps: StepLimits = field(default_factory=StepLimits)
    tenants: TenantLimits | None = None  # by default one tenant may fill the pool
    prefix_cache_share: float = PREFIX_CACHE_SHARE  # of the pool
    places: TierConfig = field(default_factory=TierConfig)  # where pages may be beside the device
    audit: AuditOptions = field(default_factory=AuditOptions)  # of counts, while it is idle
    stall_seconds: float = 0.0  # from one look for stalls to the next; 0: never
    anticipation: Callable[[], Anticipation] = (
        Anticipation  # for whom a launch waits: measurements try others
    )
    # How preds are computed before they come, where they are known; None: they are not.
    predictions: PredictionOptions | None = field(default_factory=PredictionOptions)
    tenant_weights: Mapping[str, float] = field(default_factory=dict)  # 1.0 where none stands
    durable: DurableOptions = field(default_factory=DurableOptions)
    host_pages_max: int = UNLIMITED  # of a tenant, unless `tenants` says it
    disk_pages_max: int = UNLIMITED  # likewise
    durable_bytes_max: int = TENANT_DURABLE_BYTES_MAX  # of a tenant, unless `tenants` says it

    def limits(self, pages: int) -> TenantLimits:
        """Return what a tenant may hold beside a device with so many pages."""
        return self.tenants or TenantLimits(
            int(pages * TENANT_PAGES_SHARE_MAX),
            host_pages=self.host_pages_max,
            disk_pages=self.disk_pages_max,
            durable_bytes=self.durable_bytes_max,
        )
