"""Requests under way, by the key that they came with: when a key goes, so do they.

A connection is cut as if its client had gone, which every handler knows: nothing more is read from
it or written to it, and a run that was only for that client ends. A tenant that is to be forgotten
waits for its requests to end: what they have begun is there by then, or never will be.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Iterator

from aiohttp import web

_Requests = dict[int, web.BaseRequest]  # by identity: a request is a mapping, and in no set


class Visits:
    """The requests under way."""

    def __init__(self) -> None:
        self._keys: dict[str, _Requests] = {}
        self._tenants: dict[str, _Requests] = {}
        self._waiting: dict[str, asyncio.Event] = {}  # for a tenant's last request to end

    @contextlib.contextmanager
    def visit(self, key: str, tenant: str | None, request: web.BaseRequest) -> Iterator[None]:
        """Have a request be one of a key's, and of the tenant's that the key is of."""
        _enter(self._keys, key, request)
        if tenant is not None:
            _enter(self._tenants, tenant, request)
        try:
            yield
        finally:
            _leave(self._keys, key, request)
            if tenant is not None and _leave(self._tenants, tenant, request):
                waiting = self._waiting.pop(tenant, None)
                if waiting is not None:
                    waiting.set()

    def end(self, keys: Iterable[str]) -> int:
        """Cut the connections of these keys' requests; return how many there were."""
        return sum(_cut(self._keys.get(key, {})) for key in keys)

    def end_tenant(self, tenant: str) -> int:
        """Cut the connections of a tenant's requests; return how many there were."""
        return _cut(self._tenants.get(tenant, {}))

    async def wait_ended(self, tenant: str, seconds: float) -> bool:
        """Wait until no request of a tenant's is under way; return whether none is."""
        if tenant not in self._tenants:
            return True
        waiting = self._waiting.setdefault(tenant, asyncio.Event())
        try:
            async with asyncio.timeout(seconds):
                await waiting.wait()
        except TimeoutError:
            return False
        return True

    def statistics(self) -> dict[str, int]:
        """Return how many requests are under way."""
        return {"requests": sum(map(len, self._keys.values()))}


def _enter(of: dict[str, _Requests], who: str, request: web.BaseRequest) -> None:
    of.setdefault(who, {})[id(request)] = request


def _leave(of: dict[str, _Requests], who: str, request: web.BaseRequest) -> bool:
    """Take a request out; return whether it was the last one."""
    requests = of[who]
    del requests[id(request)]
    if requests:
        return False
    del of[who]
    return True


def _cut(requests: _Requests) -> int:
    cut = 0
    for request in tuple(requests.values()):
        if request.transport is not None:
            request.transport.abort()
            cut += 1
    return cut
