"""Tenants' shares of the device: what the options say, and what an operator says while it runs."""

from collections.abc import Callable, Mapping

from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import TENANT_WEIGHT_MAX, TENANT_WEIGHT_MIN

SetWeight = Callable[[str, float], None]


class TenantWeights:
    """Sets tenants' weights. Nothing of it is kept: the gateway tells it again."""

    def __init__(self, set_weight: SetWeight, usual: Mapping[str, float]) -> None:
        """`usual` are the options' weights; 1 where none stands."""
        self._set_weight = set_weight
        self._usual = dict(usual)
        self._weights = dict(usual)
        for tenant, weight in usual.items():
            set_weight(tenant, weight)

    def set(self, tenant: str, weight: object) -> None:
        """Give a tenant a weight, or its usual one (None); EINVAL."""
        if weight is None:
            weight = self._usual.get(tenant, 1.0)
        number = weight if isinstance(weight, int | float) and type(weight) is not bool else 0
        if not TENANT_WEIGHT_MIN <= number < TENANT_WEIGHT_MAX:
            raise SyscallError(Errno.EINVAL, f"a weight is a number from {TENANT_WEIGHT_MIN}")
        self._weights[tenant] = number
        self._set_weight(tenant, number)

    def weight(self, tenant: str) -> float:
        """Return a tenant's weight."""
        return self._weights.get(tenant, 1.0)
