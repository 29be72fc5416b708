"""LoRA adapters of a tenant."""

import secrets
from collections.abc import AsyncIterator
from typing import IO

from symphony.client.transport import PIECE_BYTES, Transport, quoted, sending
from symphony.client.views import Adapter


class AsyncAdapters:
    """LoRA adapters by name: `client.adapters`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self) -> AsyncIterator[Adapter]:
        """Yield all adapters, by name."""
        return self._transport.pages(Adapter, "/v1/adapters")

    async def get(self, name: str) -> Adapter:
        return await self._transport.get(Adapter, _path(name))

    async def upload(self, name: str, config: str, weights: bytes | IO[bytes]) -> Adapter:
        """Upload an adapter in PEFT's format under a name, in place of one that has it.

        `config` is the text of adapter_config.json, `weights` adapter_model.safetensors.
        """
        boundary = secrets.token_hex(16)
        head, end = _around(boundary, config)
        headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
        body = head + weights + end if isinstance(weights, bytes) else _pieces(head, weights, end)
        call = sending("PUT", _path(name), body, headers=headers, repeatable=True)
        return await self._transport.object(Adapter, call)

    async def delete(self, name: str) -> None:
        await self._transport.delete(_path(name))


def _around(boundary: str, config: str) -> tuple[bytes, bytes]:
    """Return what comes before and after the weights in the form."""
    named = 'Content-Disposition: form-data; name="{}"'
    lines = (
        f"--{boundary}", named.format("config"), "", config,
        f"--{boundary}", named.format("file") + '; filename="adapter_model.safetensors"',
        "Content-Type: application/octet-stream", "", "",
    )  # fmt: skip
    return "\r\n".join(lines).encode(), f"\r\n--{boundary}--\r\n".encode()


async def _pieces(head: bytes, weights: IO[bytes], end: bytes) -> AsyncIterator[bytes]:
    yield head
    while piece := weights.read(PIECE_BYTES):
        yield piece
    yield end


def _path(name: str) -> str:
    return f"/v1/adapters/{quoted(name)}"
