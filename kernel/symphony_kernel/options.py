"""The options of a kernel, for operators and tests."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from symphony_kernel.kvfs.tenants import TenantLimits
from symphony_kernel.kvfs.tiers.config import TierConfig
from symphony_kernel.maintenance.upkeep import AuditOptions
from symphony_kernel.protocol.limits import PREFIX_CACHE_SHARE
from symphony_kernel.scheduler.anticipation import Anticipation
from symphony_kernel.scheduler.batcher import StepLimits
from symphony_kernel.scheduler.prediction import PredictionOptions
from symphony_kernel.syscalls.durable_names import DurableOptions


@dataclass(frozen=True, slots=True)
class KernelOptions:
    """The options of a kernel."""

    steps: StepLimits = field(default_factory=StepLimits)
    tenants: TenantLimits | None = None  # of each by default; None: one may fill the pool
    prefix_cache_share: float = PREFIX_CACHE_SHARE  # of the pool
    places: TierConfig = field(default_factory=TierConfig)  # the tiers below the device
    # Of the counters, while the kernel is idle.
    audit: AuditOptions = field(default_factory=AuditOptions)
    stall_seconds: float = 0.0  # between checks for stalls; 0: never
    # The requests for which a launch waits. Benchmarks try other policies.
    anticipation: Callable[[], Anticipation] = Anticipation
    # How preds are predicted; None: they are not.
    predictions: PredictionOptions | None = field(default_factory=PredictionOptions)
    tenant_weights: Mapping[str, float] = field(default_factory=dict)  # default 1.0
    durable: DurableOptions = field(default_factory=DurableOptions)
