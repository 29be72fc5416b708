"""Secrets of a tenant, which the server puts into programs' requests and never shows."""

from collections.abc import AsyncIterator, Sequence

from symphony.client.transport import Transport, quoted, sending
from symphony.client.views import Secret


class AsyncSecrets:
    """Secrets by name: `client.secrets`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self) -> AsyncIterator[Secret]:
        """Yield all secrets, by name, without their values."""
        return self._transport.pages(Secret, "/v1/secrets")

    async def set(self, name: str, value: str, hosts: Sequence[str]) -> Secret:
        """Set a secret, which goes into requests to these hosts only."""
        body = {"value": value, "hosts": [*hosts]}
        return await self._transport.object(
            Secret, sending("PUT", _path(name), body, repeatable=True)
        )

    async def delete(self, name: str) -> None:
        await self._transport.delete(_path(name))


def _path(name: str) -> str:
    return f"/v1/secrets/{quoted(name)}"
