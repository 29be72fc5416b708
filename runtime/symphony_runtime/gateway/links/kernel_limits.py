"""What the kernel is told of tenants' limits: before a tenant's first run or file, and when they
change.

A kernel knows everybody's defaults; of a tenant with others it hears once in its life, and again
when they have changed. Nothing is asked for tenants that are like everybody.
"""

from symphony_runtime.config.limits import Limits, TenantLimits
from symphony_runtime.gateway.links.links import KernelLink


class KernelLimits:
    """Keeps the kernel informed."""

    def __init__(self, limits: Limits, kernel: KernelLink) -> None:
        self._limits, self._kernel = limits, kernel
        self._usual = TenantLimits().of_kernel()
        self._life = 0  # of the kernel that was told
        self._told: dict[str, TenantLimits] = {}

    async def tell(self, tenant: str) -> None:
        """Let the kernel know what a tenant may have, if it does not.

        Raises:
            KernelAwayError, SyscallError: as the link does.
        """
        limits = self._limits.of(tenant)
        if self._life != self._kernel.life:
            self._told.clear()
            self._life = self._kernel.life
        told = self._told.get(tenant)
        if told is limits:
            return
        values = limits.of_kernel()
        if told is not None or values != self._usual:
            await self._kernel.ask("limit_tenant", tenant=tenant, limits=values)
        self._told[tenant] = limits

    async def tokens(self, tenant: str) -> tuple[int, int, int] | None:
        """Return a tenant's tokens a minute, those left, and the ms until there are some.

        None: they are not counted.

        Raises:
            KernelAwayError, SyscallError: as the link does.
        """
        limit = self._limits.of(tenant).most("tokens_per_minute")
        if limit is None:
            return None
        await self.tell(tenant)
        found = await self._kernel.ask("tokens_left", tenant=tenant)
        return None if found is None else (limit, int(found[0]), int(found[1]))
