"""The console of a tenant never gets a byte of another's: all that comes to the browser is kept.

The browser asks a relay, which keeps each byte that the server sends: heads, bodies and streams.
"""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from symphony import AsyncClient
from symphony.client.views import Tenant

from tests.e2e import programs as guests
from tests.support.console import NEEDS, console
from tests.support.family import PARENT_WASM
from tests.support.server.server import RunningServer
from tests.support.worker.guests import data, drop, main

pytestmark = NEEDS
THEIRS = "zanzibar"  # a tenant
WORDS = ("quokka", "wombat", "numbat", "bilby", "dugong")


class Relay:
    """Passes connections on to a server, and keeps what it sends."""

    def __init__(self, url: str) -> None:
        self.sent = bytearray()
        self._host, _, port = url.removeprefix("http://").partition(":")
        self._port = int(port)

    async def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(self._host, self._port)
        await asyncio.gather(
            _pass(reader, back, None), _pass(there, writer, self.sent), return_exceptions=True
        )


async def _pass(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray | None
) -> None:
    try:
        while piece := await reader.read(1 << 16):
            if kept is not None:
                kept += piece
            writer.write(piece)
            await writer.drain()
    except ConnectionError:
        pass  # the browser has gone
    finally:
        writer.close()


@asynccontextmanager
async def relayed(server: RunningServer) -> AsyncIterator[tuple[RunningServer, Relay]]:
    relay = Relay(server.url)
    listening = await asyncio.start_server(relay.meet, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    yield dataclasses.replace(server, url=f"http://127.0.0.1:{port}"), relay
    listening.close()


class Other:
    """Another tenant, whose programs, files, words and ids are easily recognised."""

    def __init__(self, client: AsyncClient) -> None:
        self.client = client
        self.runs: list[str] = []

    async def prepare(self) -> None:
        speaker = main(
            f"{drop('send', 0, 6)} {drop('log', 3, 8, 6)} (i32.const 1)",
            data(0, "wombat") + data(8, "numbat"),
        )
        await self.client.programs.upload(guests.wasm(speaker), "quokka")
        await self.client.programs.upload(guests.HANG_WASM, "quokka-hang")
        await self.client.programs.upload(PARENT_WASM, "quokka-parent")
        await self.client.programs.upload(guests.SAVE_WASM, "quokka-save")
        await self.client.run("quokka-save")

    async def work(self) -> None:
        while True:
            self.runs.append((await self.client.run("quokka", "bilby"))["id"])
            for program in ("quokka-hang", "quokka-parent"):
                self.runs.append(await self.client.start(program, "dugong"))
                await self.client.runs.cancel(self.runs[-1])


@asynccontextmanager
async def other_at_work(server: RunningServer) -> AsyncIterator[Other]:
    names = [tenant["id"] async for tenant in _admin_tenants(server)]
    async with server.admin() as admin:
        if THEIRS not in names:
            await admin.admin.create_tenant(THEIRS)
        key = (await admin.admin.create_key(THEIRS))["key"]
    async with AsyncClient(server.url, key, retries=0) as client:
        other = Other(client)
        await other.prepare()
        working = asyncio.create_task(other.work())
        try:
            yield other
            assert not working.done(), working.exception()
        finally:
            working.cancel()
            await asyncio.wait([working])


async def _admin_tenants(server: RunningServer) -> AsyncIterator[Tenant]:
    async with server.admin() as admin:
        async for tenant in admin.admin.tenants():
            yield tenant


async def test_console_of_a_tenant_gets_no_byte_of_another(
    server: RunningServer, client: AsyncClient, tmp_path: Path
) -> None:
    await client.programs.upload(guests.ECHO_WASM, "our-echo")
    await client.programs.upload(guests.HANG_WASM, "our-hang")
    await client.programs.upload(PARENT_WASM, "our-parent")
    await client.programs.upload(guests.SAVE_WASM, "our-save")
    await client.run("our-save")
    async with relayed(server) as (there, relay), other_at_work(server) as other:
        async with console(there, server.key, tmp_path) as shown:
            await shown.sees("Tokens a second")
            await shown.show("runs", "our-save")
            live = await client.start("our-parent")
            ours = (await client.run("our-echo", "our own words"))["id"]
            await shown.sees(live[:16], ours[:16], "our-echo", "exited", "instances")
            await shown.show(f"runs/{live}", "our-parent (idle)")
            await shown.show(f"runs/{ours}", "our own words")
            await shown.show("programs", "our-echo")
            await shown.show("files", "notes/", "first")
            await shown.show("playground", "our-hang")
            await shown.show("overview", "What became of the roles")
            asked = "performance.getEntriesByType('resource').map((each) => each.name)"
            await shown.until(f"{asked}.filter((name) => name.includes('history')).length >= 3")
            await client.runs.cancel(live)
        sent = bytes(relay.sent)
        theirs = list(other.runs)
    assert len(theirs) > 10
    for expected in (b"event: run", ours.encode(), live.encode(), b"our own words", b"our-parent"):
        assert expected in sent, expected
    for forbidden in (THEIRS, *WORDS, *theirs):
        assert forbidden.encode() not in sent, forbidden


async def test_console_of_an_operator_gets_no_content_of_tenants(
    server: RunningServer, tmp_path: Path
) -> None:
    async with relayed(server) as (there, relay), other_at_work(server):
        async with console(there, server.admin_key, tmp_path) as shown:
            await shown.sees("Live runs by tenant", THEIRS)
            for tab in ("tenants", "usage", "audit"):
                await shown.show(f"operators/{tab}", "Operators")
            async with AsyncClient(there.url, server.admin_key, retries=0) as admin:
                count = 0
                async for event in admin.runs.changes():
                    count += event.data.get("tenant") == THEIRS
                    if count > 20:
                        break
        sent = bytes(relay.sent)
    assert THEIRS.encode() in sent
    for forbidden in WORDS:
        assert forbidden.encode() not in sent, forbidden
