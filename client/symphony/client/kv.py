"""Named KV files of a tenant."""

from collections.abc import AsyncIterable, AsyncIterator
from typing import IO
from urllib.parse import quote

from symphony.client.transport import PIECE_BYTES, Call, Transport, sending
from symphony.client.views import KvFile, KvPages, KvTokens, Prefixes


class AsyncKv:
    """Named KV files by path: `client.kv`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self, prefix: str = "") -> AsyncIterator[KvFile]:
        """Yield the named KV files whose paths start with `prefix`."""
        return self._transport.pages(KvFile, "/v1/kv", {"prefix": prefix})

    async def stat(self, path: str) -> KvFile:
        return await self._transport.get(KvFile, _path(path))

    async def pages(self, path: str) -> KvPages:
        """Return a named KV file with `data`: all its pages, in ranges of equal ones."""
        where, limit = _path(path, "kv-pages"), {"limit": "500"}
        shown = await self._transport.get(KvPages, where, limit)
        while shown["next"] is not None:
            more = await self._transport.get(KvPages, where, {**limit, "after": shown["next"]})
            shown = {**more, "data": shown["data"] + more["data"]}
        return shown

    async def tokens(
        self, path: str, first: int = 0, limit: int = 1_024, *, text: bool = False
    ) -> KvTokens:
        """Return tokens of a named KV file with their positions, and with `text` their texts."""
        query = {"after": str(first), "limit": str(limit), "text": str(int(text))}
        return await self._transport.get(KvTokens, _path(path, "kv-tokens"), query)

    async def prefixes(self, limit: int = 50, depth: int = 16, *, text: bool = False) -> Prefixes:
        """Return the tenant's cached prefixes as a tree: parts with their parents and hits."""
        query = {"limit": str(limit), "depth": str(depth), "text": str(int(text))}
        return await self._transport.get(Prefixes, "/v1/prefixes", query)

    async def remove(self, path: str) -> None:
        await self._transport.delete(_path(path))

    async def download(self, path: str) -> AsyncIterator[bytes]:
        """Yield a named KV file (safetensors) in pieces."""
        call = Call("GET", _path(path), {"download": "1"}, repeatable=True)
        async with self._transport.request(call) as response:
            async for piece in response.content.iter_chunked(PIECE_BYTES):
                yield piece

    async def upload(
        self,
        path: str,
        file: bytes | IO[bytes] | AsyncIterable[bytes],
        *,
        replace: bool = True,
        rebuild: bool | None = None,
        public: bool = False,
        keep_ms: int | None = None,
    ) -> KvFile:
        """Upload a KV file (safetensors) under a durable name; return as `stat`.

        docs/guides/kv-files.md has the meaning of the options.
        """
        options = {"replace": replace, "rebuild": rebuild, "public": public, "keep_ms": keep_ms}
        query = {name: str(int(value)) for name, value in options.items() if value is not None}
        call = sending("PUT", _path(path), file, query, repeatable=replace)
        return await self._transport.object(KvFile, call)


def _path(path: str, part: str = "kv") -> str:
    return f"/v1/{part}/{quote(path, safe='')}"
