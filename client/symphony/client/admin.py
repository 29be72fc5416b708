"""What operators do, with an admin key: tenants, keys, gateways, usage, the audit log."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

from symphony.client.transport import Call, Transport, quoted, sending
from symphony.client.views import Audit, Gateway, Key, NewKey, Statistics, Tenant, Usage


class AsyncAdmin:
    """Tenants, keys, gateways, usage and the audit log: `client.admin`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def statistics(self, *, check: bool = False) -> Statistics:
        """Return the counters of kernel and gateway.

        `check` audits the kernel first. A kernel whose audit fails stops: that is a ServerError or
        a ConnectionFailed.
        """
        query = {"check": str(int(check))}
        return await self._transport.get(Statistics, "/v1/admin/statistics", query)

    def tenants(self) -> AsyncIterator[Tenant]:
        """Yield all tenants, by id."""
        return self._transport.pages(Tenant, "/v1/admin/tenants")

    async def tenant(self, tenant: str) -> Tenant:
        return await self._transport.get(Tenant, _tenant_path(tenant))

    async def create_tenant(self, tenant: str, **fields: Any) -> Tenant:
        """Create a tenant; `fields` are suspended, weight, quotas."""
        call = sending("POST", "/v1/admin/tenants", {"id": tenant, **fields})
        return await self._transport.object(Tenant, call)

    async def change_tenant(self, tenant: str, **fields: Any) -> Tenant:
        """Change some `fields` of `create_tenant`; null takes one back."""
        call = sending("PATCH", _tenant_path(tenant), fields, repeatable=True)
        return await self._transport.object(Tenant, call)

    async def delete_tenant(self, tenant: str, *, everything: bool = False) -> None:
        """Delete a tenant that holds nothing, or with `everything` all that it holds too."""
        await self._transport.delete(
            _tenant_path(tenant), {"everything": "1"} if everything else {}
        )

    async def keys(self, tenant: str | None) -> list[Key]:
        """Return a tenant's keys, or the operators' (None)."""
        return await self._transport.page(Key, _keys_path(tenant))

    async def create_key(self, tenant: str | None, **wanted: Any) -> NewKey:
        """Create a key (`wanted`: role, name, expires_ms); its `key` is returned only now."""
        return await self._transport.object(NewKey, sending("POST", _keys_path(tenant), wanted))

    async def rotate_key(self, tenant: str | None, key: str, grace_ms: int = 0) -> NewKey:
        """Replace a key, which stays valid for `grace_ms`; return as `create_key`."""
        path, query = f"{_keys_path(tenant)}/{quoted(key)}/rotate", {"grace_ms": str(grace_ms)}
        return await self._transport.object(NewKey, Call("POST", path, query))

    async def revoke_key(self, tenant: str | None, key: str) -> None:
        await self._transport.delete(f"{_keys_path(tenant)}/{quoted(key)}")

    def gateways(self) -> AsyncIterator[Gateway]:
        """Yield the gateways that share the server's database."""
        return self._transport.pages(Gateway, "/v1/admin/gateways")

    async def drop_gateway(self, gateway: str) -> None:
        """Forget a gateway that will not return."""
        await self._transport.delete(f"/v1/admin/gateways/{quoted(gateway)}")

    def usage(self, query: Mapping[str, str] | None = None) -> AsyncIterator[Usage]:
        """Yield what tenants used, by day and tenant; `query` is tenant, from, to."""
        return self._transport.pages(Usage, "/v1/admin/usage", query)

    async def usage_csv(self, query: Mapping[str, str] | None = None) -> str:
        """Return usage as CSV, with headings."""
        return await self._transport.text("/v1/admin/usage", {**(query or {}), "format": "csv"})

    def audit(self, query: Mapping[str, str] | None = None) -> AsyncIterator[Audit]:
        """Yield the audit log, newest first; `query`: kind, tenant."""
        return self._transport.pages(Audit, "/v1/admin/audit", query)


def _tenant_path(tenant: str) -> str:
    return f"/v1/admin/tenants/{quoted(tenant)}"


def _keys_path(tenant: str | None) -> str:
    return f"{'/v1/admin' if tenant is None else _tenant_path(tenant)}/keys"
