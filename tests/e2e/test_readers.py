"""Clients that do not read: each role stays small, and another tenant notices nothing."""

import asyncio
import time
from pathlib import Path

from benchmarks.readers import Kind, Other, Readers, ask_all, furnish, resident
from tests.support.server.server import running_server

READERS = 100  # of each kind
KINDS = ("events", "results", "websockets", "event-websockets", "downloads", "traces", "streams")
# 500 that follow the run held 6.7 GB, and 100 for results 850 MB.
GATEWAY_BYTES_MAX = 150 << 20
KEPT_BYTES_MAX = 60 << 20
CUT_SECONDS = 2.0


async def test_stalled_readers_are_cut_off_and_cost_little(tmp_path: Path) -> None:
    options = ("--slow-reader-seconds", str(CUT_SECONDS))
    with running_server(tmp_path, *options, executor="torch") as server:
        place, pids = await furnish(server), await server.pids()
        async with server.admin() as admin:
            found = Kind("all", READERS)
            other = Other(server.url, await server.add_tenant("other"), found)
            playing = asyncio.create_task(other.play())
            await asyncio.sleep(1.0)
            before = most = resident("gateway", pids["gateway"])
            readers = Readers(server.url)
            for kind in KINDS:
                await ask_all(readers, [place.request(kind)] * READERS)
                most = max(most, resident("gateway", pids["gateway"]))
            end = time.monotonic() + 12
            cut = 0
            # A stream's tokens are few, and downloads have their own bound.
            while time.monotonic() < end and cut < 4 * READERS:
                await asyncio.sleep(0.1)
                most = max(most, resident("gateway", pids["gateway"]))
                cut = (await admin.admin.statistics())["gateway"]["slow_readers"]
            readers.close()
            other.over.set()
            await playing
            await asyncio.sleep(2.0)
            after = resident("gateway", pids["gateway"])
        assert cut >= 4 * READERS
        assert most - before < GATEWAY_BYTES_MAX
        assert after - before < KEPT_BYTES_MAX
        assert found.broken == 0
        assert found.streams > 0
        assert (found.run, found.ticks) == ("exited", 200)
        assert await server.pids() == pids
