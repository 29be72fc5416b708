"""Looking up names of hosts, so that no tenant's slow names stop the others'.

The system's own lookup blocks a thread for as long as a name server takes, which whoever owns the
name decides. The event loop's threads for that are few and everybody's: each lookup has one of its
own here, of which there are a few for a tenant and a bounded number for all. A place is taken until
the thread is done, also where nobody waits for it any more.
"""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult
from symphony_kernel.protocol.limits import LOOKUPS_MAX, TENANT_LOOKUPS_MAX

# (host, port, family) -> what `socket.getaddrinfo` tells; blocks.
Lookup = Callable[[str, int, int], Sequence[tuple[Any, ...]]]


def system_lookup(host: str, port: int, family: int) -> Sequence[tuple[Any, ...]]:
    """Return what the system finds; OSError, UnicodeError for what can be no name."""
    flags = socket.AI_ADDRCONFIG
    return socket.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM, flags=flags)


class ResolverThreads:
    """The places for lookups, of all tenants. Belongs to one event loop."""

    def __init__(self, lookup: Lookup = system_lookup) -> None:
        self._lookup = lookup
        self._of_all = asyncio.Semaphore(LOOKUPS_MAX)
        self._of_tenant: dict[str, asyncio.Semaphore] = {}

    def of(self, tenant: str) -> AbstractResolver:
        """Return what looks up a tenant's names."""
        places = self._of_tenant.setdefault(tenant, asyncio.Semaphore(TENANT_LOOKUPS_MAX))
        return _Resolver(self, places)

    async def find(
        self, places: asyncio.Semaphore, host: str, port: int, family: int
    ) -> Sequence[tuple[Any, ...]]:
        """Look a name up on a thread, as soon as there are places; as `Lookup`."""
        await places.acquire()
        try:
            await self._of_all.acquire()
        except BaseException:
            places.release()
            raise
        loop = asyncio.get_running_loop()
        found: asyncio.Future[Sequence[tuple[Any, ...]]] = loop.create_future()

        def done(answer: Sequence[tuple[Any, ...]], error: Exception | None) -> None:
            self._of_all.release()
            places.release()
            if found.done():
                return  # nobody waits any more
            if error is not None:
                found.set_exception(error)
            else:
                found.set_result(answer)

        def work() -> None:
            answer: Sequence[tuple[Any, ...]] = ()
            failed = None
            try:
                answer = self._lookup(host, port, family)
            except Exception as error:
                failed = error
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(done, answer, failed)

        # No pool of the library's: a process waits for those threads before it ends.
        try:
            threading.Thread(target=work, name="lookup", daemon=True).start()
        except RuntimeError as error:
            done((), OSError(f"no thread to look it up: {error}"))
        return await found


class _Resolver(AbstractResolver):
    def __init__(self, lookups: ResolverThreads, places: asyncio.Semaphore) -> None:
        self._lookups = lookups
        self._places = places

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._lookups.find(self._places, host, port, family)
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
        """Nothing is open."""


def _host(address: tuple[Any, ...]) -> str:
    """Return an address as text; one of a link names its interface."""
    scope = address[3] if len(address) > 3 else 0
    return f"{address[0]}%{scope}" if scope else str(address[0])
