"""Lookups of host names: slow names of one tenant do not delay others.

A system lookup blocks a thread for as long as a name server takes, which the owner of the name
controls. The event loop's few threads are shared by all, so each lookup gets a thread of its own,
with a bound per tenant and over all. A slot is taken until the thread is done, even after its
caller is gone.
"""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult
from symphony_kernel.protocol.limits import LOOKUPS_MAX, TENANT_LOOKUPS_MAX

# (host, port, family) -> the result of `socket.getaddrinfo`; blocks.
Lookup = Callable[[str, int, int], Sequence[tuple[Any, ...]]]


def system_lookup(host: str, port: int, family: int) -> Sequence[tuple[Any, ...]]:
    """Return the system's addresses; OSError, or UnicodeError for an invalid name."""
    flags = socket.AI_ADDRCONFIG
    return socket.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM, flags=flags)


class ResolverThreads:
    """The lookup slots of all tenants. Belongs to one event loop."""

    def __init__(self, lookup: Lookup = system_lookup) -> None:
        self._lookup = lookup
        self._of_all = asyncio.Semaphore(LOOKUPS_MAX)
        self._of_tenant: dict[str, asyncio.Semaphore] = {}

    def resolver_for(self, tenant: str) -> AbstractResolver:
        slots = self._of_tenant.setdefault(tenant, asyncio.Semaphore(TENANT_LOOKUPS_MAX))
        return _Resolver(self, slots)

    async def look_up(
        self, slots: asyncio.Semaphore, host: str, port: int, family: int
    ) -> Sequence[tuple[Any, ...]]:
        """Look a name up on a thread, as soon as there are slots; returns as `Lookup`."""
        await slots.acquire()
        try:
            await self._of_all.acquire()
        except BaseException:
            slots.release()
            raise
        loop = asyncio.get_running_loop()
        found: asyncio.Future[Sequence[tuple[Any, ...]]] = loop.create_future()

        def done(answer: Sequence[tuple[Any, ...]] | Exception) -> None:
            self._of_all.release()
            slots.release()
            if found.done():
                return  # the caller is gone
            if isinstance(answer, Exception):
                found.set_exception(answer)
            else:
                found.set_result(answer)

        def work() -> None:
            answer: Sequence[tuple[Any, ...]] | Exception
            try:
                answer = self._lookup(host, port, family)
            except Exception as error:
                answer = error
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(done, answer)

        # Not a ThreadPoolExecutor: a process joins its threads before it exits.
        try:
            threading.Thread(target=work, name="lookup", daemon=True).start()
        except RuntimeError as error:
            done(OSError(f"no thread for the lookup: {error}"))
        return await found


class _Resolver(AbstractResolver):
    def __init__(self, lookups: ResolverThreads, slots: asyncio.Semaphore) -> None:
        self._lookups = lookups
        self._slots = slots

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._lookups.look_up(self._slots, host, port, family)
        return [
            ResolveResult(
                hostname=host,
                host=_host(address),
                port=address[1],
                family=kind,
                proto=protocol,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for kind, _, protocol, _, address in found
            if kind in (socket.AF_INET, socket.AF_INET6)
        ]

    async def close(self) -> None:
        """Do nothing: nothing is open."""


def _host(address: tuple[Any, ...]) -> str:
    """Return an address as text; a link-local one includes its interface."""
    scope = address[3] if len(address) > 3 else 0
    return f"{address[0]}%{scope}" if scope else str(address[0])
