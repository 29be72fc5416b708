"""Lookups of names: one tenant's slow ones do not delay the others'."""

import asyncio
import socket
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.limits import LOOKUPS_MAX, TENANT_LOOKUPS_MAX
from symphony_runtime.gateway.egress.resolver import ResolverThreads

from tests.runtime.gateway.egress.test_http import HERE, egress, refused, rule, site
from tests.support.waiting import wait_until


class SlowNames:
    """A lookup that answers `slow` names only after `go` is set."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.asked: list[str] = []

    def __call__(self, host: str, port: int, family: int) -> Sequence[tuple[Any, ...]]:
        self.asked.append(host)
        if host.startswith("slow"):
            assert self.go.wait(60)
        if host.startswith("none"):
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]


async def test_slow_names_take_their_tenants_places_only() -> None:
    names = SlowNames()
    lookups = ResolverThreads(names)
    slow, other = lookups.resolver_for("slow"), lookups.resolver_for("other")
    waiting = [asyncio.create_task(slow.resolve(f"slow{i}")) for i in range(50)]
    await wait_until(lambda: len(names.asked) >= TENANT_LOOKUPS_MAX)
    (found,) = await other.resolve("a.test", 80)
    assert (found["host"], found["port"]) == ("127.0.0.1", 80)
    with pytest.raises(socket.gaierror):
        await other.resolve("none.test")
    assert len(names.asked) == TENANT_LOOKUPS_MAX + 2
    names.go.set()
    assert len(await asyncio.gather(*waiting)) == 50


async def test_place_is_taken_until_its_thread_is_done() -> None:
    """Also where the caller has given up."""
    names = SlowNames()
    mine = ResolverThreads(names).resolver_for("t")
    waiting = [asyncio.create_task(mine.resolve("slow")) for _ in range(TENANT_LOOKUPS_MAX)]
    await wait_until(lambda: len(names.asked) >= TENANT_LOOKUPS_MAX)
    for each in waiting:
        each.cancel()
    await asyncio.wait(waiting)
    one_more = asyncio.create_task(mine.resolve("a.test"))
    await asyncio.sleep(0.05)  # for a thread, if it got one
    assert "a.test" not in names.asked
    names.go.set()
    assert len(await one_more) == 1


async def test_lookups_of_all_tenants_are_bounded() -> None:
    names = SlowNames()
    lookups = ResolverThreads(names)
    waiting = [
        asyncio.create_task(lookups.resolver_for(f"t{i}").resolve("slow"))
        for i in range(LOOKUPS_MAX + 5)
    ]
    await wait_until(lambda: len(names.asked) >= LOOKUPS_MAX)
    given_up = waiting.pop()
    given_up.cancel()
    await asyncio.wait([given_up])
    assert len(names.asked) == LOOKUPS_MAX
    names.go.set()
    await asyncio.gather(*waiting)
    assert len(await lookups.resolver_for(f"t{LOOKUPS_MAX + 4}").resolve("a.test")) == 1


async def test_slow_name_ends_its_own_calls_only() -> None:
    names = SlowNames()
    async with site() as there:
        allowed = rule(f"http://*.test:{there.port}", networks=HERE, tenants=["t", "u"])
        async with egress(allowed, resolver_for=ResolverThreads(names).resolver_for) as ask:
            try:
                slow = [
                    refused(
                        ask(f"http://slow{i}.test:{there.port}/", timeout_ms=50), Errno.ETIMEDOUT
                    )
                    for i in range(40)
                ]
                await asyncio.gather(*slow)
                url = f"http://a.test:{there.port}/"
                assert (await ask(url, tenant="u"))["status"] == 200
                names.go.set()
                assert (await ask(url))["status"] == 200
            finally:
                names.go.set()
