"""Unread output of clients that do not read is bounded, by connection and by tenant."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from symphony_kernel.protocol.limits import LARGE_SENDS_BYTES_MAX, WRITE_BYTES_HIGH
from symphony_runtime.gateway.connections.slow_readers import SlowReaders, _Writing
from symphony_runtime.gateway.runs.events.reader import PART_BYTES

from benchmarks.readers import MESSAGE_BYTES, MESSAGES, SEVEN
from tests.support.gateway.system import SystemRig
from tests.support.waiting import wait_until


@contextlib.asynccontextmanager
async def system_with_run(tmp_path: Path, seconds: float) -> AsyncIterator[tuple[SystemRig, str]]:
    """A system with a long run, in which a reader that takes nothing may stay so long."""
    async with (
        SystemRig(tmp_path, slow_reader_seconds=seconds) as system,
        system.client() as client,
    ):
        await client.programs.upload(SEVEN, "seven")
        yield system, (await client.run("seven"))["id"]


def deaf(system: SystemRig, path: str, headers: str = "", receive: int = 4_096) -> socket.socket:
    """A client that asks and does not read."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
    client.connect(("127.0.0.1", system.gateway.port))
    request = f"GET {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {system.key}\r\n"
    client.sendall(f"{request}{headers}\r\n".encode())
    client.setblocking(False)
    return client


def has_ended(client: socket.socket) -> bool:
    try:
        while client.recv(1 << 20):
            pass
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True
    return True


async def test_unread_output_of_deaf_readers_is_small(tmp_path: Path) -> None:
    async with system_with_run(tmp_path, 60.0) as (system, run):
        readers = system.gateway.services.slow.readers
        paths = [f"/v1/runs/{run}/events", f"/v1/runs/{run}"]
        clients = [deaf(system, paths[number % 2]) for number in range(20)]
        await wait_until(lambda: readers.unread)
        await asyncio.sleep(1.5)
        # A part is at most seven times as long as JSON, and one more is made below the mark.
        assert readers.unread <= 20 * (WRITE_BYTES_HIGH + 2 * 7 * PART_BYTES)
        assert system.gateway.services.runs._store.stored_events.held < 4 * MESSAGE_BYTES
        for client in clients:
            client.close()
        await wait_until(lambda: not system.gateway.services.runs._store.stored_events.held)


async def test_reader_that_is_slow_but_steady_gets_everything(tmp_path: Path) -> None:
    """It takes ten times as long as a reader that takes nothing may stay."""
    async with system_with_run(tmp_path, 0.5) as (system, run):
        client = deaf(system, f"/v1/runs/{run}/events?follow=0", receive=65_536)
        loop, taken = asyncio.get_running_loop(), 0
        began = loop.time()
        while loop.time() - began < 5.0:
            taken += len(await loop.sock_recv(client, 32_768))
            await asyncio.sleep(0.05)
        assert system.gateway.services.slow.readers.cut == 0
        rest = 0
        while data := await loop.sock_recv(client, 1 << 20):
            rest += len(data)
            if data.endswith(b"0\r\n\r\n"):
                break
        assert taken + rest > 6 * MESSAGES * MESSAGE_BYTES  # each byte is six in JSON
        client.close()


def test_reader_of_5_kib_a_second_is_not_stuck_by_default() -> None:
    """On a system that reports progress each 128 KiB only, which is every 25.6 s."""
    step, rate = 128 << 10, 5 << 10
    request: Any = SimpleNamespace(writer=SimpleNamespace(output_size=10 << 20))
    writing, readers = _Writing(cast(asyncio.Transport, None), request), SlowReaders()
    for now in range(200):
        size = request.writer.output_size - now * rate // step * step
        assert not readers._is_stuck(writing, size, now), f"after {now} s"
    assert readers._is_stuck(writing, size, 200 + 31)


async def test_readers_past_their_tenants_bound_are_cut_and_no_others(tmp_path: Path) -> None:
    async with system_with_run(tmp_path, 60.0) as (system, run):
        readers = system.gateway.services.slow.readers
        readers._bytes_max = 300_000
        async with system.session(await system.add_tenant("other")) as other:
            async with other.post("/v1/programs?name=seven", data=SEVEN) as response:
                assert response.status in (200, 201)
            async with other.post("/v1/programs/seven/runs", json={}) as response:
                theirs = (await response.json())["id"]
            # The other tenant reads nothing either, but that is little.
            async with other.get(f"/v1/runs/{theirs}/events") as quiet:
                clients = [deaf(system, f"/v1/runs/{run}/events") for _ in range(20)]
                await wait_until(lambda: readers.cut)
                await asyncio.sleep(1.2)
                assert 0 < readers.cut < 20
                assert any(map(has_ended, clients))
                size = 0
                async for line in quiet.content.iter_any():
                    size += len(line)
                assert size > 6 * MESSAGES * MESSAGE_BYTES
        for client in clients:
            client.close()


async def test_large_messages_of_many_runs_wait_in_their_programs(tmp_path: Path) -> None:
    async with SystemRig(tmp_path) as system, system.client() as client:
        large = system.gateway.services.store.large_sends
        await client.programs.upload(SEVEN, "seven")
        runs = [await client.start("seven") for _ in range(40)]
        most = 0
        while any(True for _ in system.gateway.services.runs.all_live()):
            most = max(most, LARGE_SENDS_BYTES_MAX - large.left)
            await asyncio.sleep(0)
        assert MESSAGE_BYTES < most <= LARGE_SENDS_BYTES_MAX // 2
        for run in runs:
            assert len((await client.runs.get(run))["messages"]) == MESSAGES
        assert large.left == LARGE_SENDS_BYTES_MAX


async def test_timer_without_readers_stops(tmp_path: Path) -> None:
    async with system_with_run(tmp_path, 0.2) as (system, _):
        readers: SlowReaders = system.gateway.services.slow.readers
        await wait_until(lambda: readers._timer is None)
