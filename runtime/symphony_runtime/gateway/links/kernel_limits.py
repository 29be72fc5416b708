"""Tenants' limits, sent to the kernel before first use and on changes.

A kernel knows the default limits. It gets a tenant's own limits once in its life, and again when
they change. Tenants with default limits cost no message.
"""

from symphony_runtime.config.limits import Limits, TenantLimits
from symphony_runtime.gateway.links.links import KernelLink


class KernelLimits:
    """Sends limits to the kernel that it does not know yet."""

    def __init__(self, limits: Limits, kernel: KernelLink) -> None:
        self._limits, self._kernel = limits, kernel
        self._defaults = TenantLimits().of_kernel()
        self._life = 0  # of the kernel that got the limits
        self._sent: dict[str, TenantLimits] = {}

    async def send_limits(self, tenant: str) -> None:
        """Send the kernel a tenant's limits unless it knows them; errors as the link's."""
        limits = self._limits.of(tenant)
        if self._life != self._kernel.life:
            self._sent.clear()
            self._life = self._kernel.life
        sent = self._sent.get(tenant)
        if sent is limits:
            return
        values = limits.of_kernel()
        if sent is not None or values != self._defaults:
            await self._kernel.ask("limit_tenant", tenant=tenant, limits=values)
        self._sent[tenant] = limits

    async def tokens_left(self, tenant: str) -> tuple[int, int, int] | None:
        """Return a tenant's tokens per minute, those left, and the ms until some are left.

        None: the tenant has no limit.

        Raises KernelAwayError, SyscallError: as the link does.
        """
        limit = self._limits.of(tenant).most("tokens_per_minute")
        if limit is None:
            return None
        await self.send_limits(tenant)
        found = await self._kernel.ask("tokens_left", tenant=tenant)
        return None if found is None else (limit, int(found[0]), int(found[1]))
