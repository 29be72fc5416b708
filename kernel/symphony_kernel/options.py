"""The options of a kernel, for operators and tests."""

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
    """The options of a kernel."""

    steps: StepLimits = field(default_factory=StepLimits)
    tenants: TenantLimits | None = None  # None: one tenant may fill the pool
    prefix_cache_share: float = PREFIX_CACHE_SHARE  # of the pool
    places: TierConfig = field(default_factory=TierConfig)  # the tiers below the device
    audit: AuditOptions = field(
        default_factory=AuditOptions
    )  # of the counters, while the kernel is idle
    stall_seconds: float = 0.0  # between checks for stalls; 0: never
    # The requests for which a launch waits. Benchmarks try other policies.
    anticipation: Callable[[], Anticipation] = Anticipation
    # How preds are predicted; None: they are not.
    predictions: PredictionOptions | None = field(default_factory=PredictionOptions)
    tenant_weights: Mapping[str, float] = field(default_factory=dict)  # default 1.0
    durable: DurableOptions = field(default_factory=DurableOptions)
    host_pages_max: int = UNLIMITED  # of a tenant, unless `tenants` is set
    disk_pages_max: int = UNLIMITED  # likewise
    durable_bytes_max: int = TENANT_DURABLE_BYTES_MAX  # likewise

    def limits(self, pages: int) -> TenantLimits:
        """Return a tenant's default limits, for a device with so many pages."""
        return self.tenants or TenantLimits(
            int(pages * TENANT_PAGES_SHARE_MAX),
            host_pages=self.host_pages_max,
            disk_pages=self.disk_pages_max,
            durable_bytes=self.durable_bytes_max,
        )
