"""The handshake of attached programs; tests/e2e/test_attached.py has what follows it."""

import asyncio
import ctypes
import struct
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from socket import SOL_SOCKET
from typing import Any

import aiohttp
import msgpack
import pytest
from symphony_runtime.gateway.api.runs import attached

from tests.e2e.programs import PARROT_WASM
from tests.support.gateway.system import SystemRig
from tests.support.requirements import requires
from tests.support.waiting import wait_until


@asynccontextmanager
async def session_of(tmp_path: Path) -> AsyncIterator[tuple[SystemRig, aiohttp.ClientSession]]:
    async with SystemRig(tmp_path) as system:
        headers = {"Authorization": f"Bearer {system.key}"}
        async with aiohttp.ClientSession(system.url, headers=headers) as session:
            yield system, session


REFUSED: tuple[tuple[dict[str, str], int, str], ...] = (
    ({}, 426, "takes WebSocket handshakes only"),
    ({"limits": "{"}, 400, "`limits` must be JSON"),
    ({"limits": '{"wall_ms": 0}'}, 400, "wall_ms"),
    ({"limits": "9" * 5_000}, 400, "longer than"),
    ({"limits": '{"output_bytes": 1, "nonsense": 2}'}, 400, "nonsense"),
    ({"priority": "9"}, 400, "priority"),
    ({"park": "maybe"}, 400, "park"),
    ({"run": "run_of_nobody"}, 404, "run_of_nobody"),
)


async def test_request_that_starts_nothing_is_refused_with_words(tmp_path: Path) -> None:
    async with session_of(tmp_path) as (_, session):
        for query, status, words in REFUSED:
            async with session.get("/v1/attached", params=query) as response:
                assert response.status == status
                assert words in (await response.json())["detail"]


async def test_run_of_another_tenant_cannot_be_taken_up(tmp_path: Path) -> None:
    async with session_of(tmp_path) as (system, session):
        key = await system.add_tenant("stranger")
        async with session.ws_connect("/v1/attached", params={"park": "1"}) as socket:
            run = (await socket.receive_json())["run"]
            headers = {"Authorization": f"Bearer {key}"}
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await session.ws_connect("/v1/attached", params={"run": run}, headers=headers)
            assert refused.value.status == 404


async def test_run_without_its_client_ends_and_leaves_no_record(tmp_path: Path) -> None:
    async with session_of(tmp_path) as (system, session):
        async with session.ws_connect("/v1/attached") as socket:
            run = (await socket.receive_json())["run"]
            await socket.send_bytes(msgpack.packb([[1, "hello", {"version": 1}]]))
            (answer,) = msgpack.unpackb(await socket.receive_bytes())
            assert answer[:2] == [1, 0]
            async with session.get("/v1/runs", params={"live": "1"}) as response:
                live: list[dict[str, Any]] = (await response.json())["data"]
            assert [each["id"] for each in live] == [run]
        await wait_until(lambda: not system.gateway.services.runs.live_by_tenant())
        async with session.get(f"/v1/runs/{run}") as response:
            assert response.status == 404


@pytest.mark.parametrize("attaches", [True, False])
async def test_frames_to_a_client_are_charged_to_its_tenant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attaches: bool
) -> None:
    """The handler waits for frames of its client, so only what is sent takes time here."""
    async with session_of(tmp_path) as (system, session), system.client() as client:
        services, spent = system.gateway.services, Counter[str]()
        charge = services.cpu_reporter.charge

        def note(tenant: str, seconds: float) -> None:
            spent[tenant] += round(1e6 * seconds)
            charge(tenant, seconds)

        monkeypatch.setattr(services.cpu_reporter, "charge", note)
        path = "/v1/attached"
        if not attaches:
            await client.programs.upload(PARROT_WASM, name="parrot")
            path = f"/v1/runs/{await client.start('parrot')}/ws"
        async with session.ws_connect(path, max_msg_size=0) as socket:
            if attaches:
                await socket.receive_json()
            await asyncio.sleep(0.1)
            (run,) = services.runs._live.values()
            spent.clear()
            for _ in range(16):
                run.events.append("message", b"\xff" * (1 << 19))
            for _ in range(16):
                await socket.receive_bytes()
            assert spent["default"] > 1_000
            services.runs.kill(run, "done")


_SO_ATTACH_FILTER = 26


def hear_nothing(socket: aiohttp.ClientWebSocketResponse) -> None:
    """Drop each packet to a socket, as if its machine had gone without a word."""
    drop = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # BPF: return 0
    program = struct.pack("HP", 1, ctypes.addressof(drop))
    socket.get_extra_info("socket").setsockopt(SOL_SOCKET, _SO_ATTACH_FILTER, program)


@requires("linux", sys.platform == "linux", "elsewhere the system's own timeout holds")
@pytest.mark.parametrize("gone", [True, False])
async def test_run_of_a_client_that_vanishes_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    """One that answers no pings, but is there, is kept."""
    monkeypatch.setattr(attached, "_HEARTBEAT_SECONDS", 0.1)
    async with session_of(tmp_path) as (system, session):
        runs, patience = system.gateway.services.runs, aiohttp.ClientWSTimeout(ws_close=0.1)
        async with session.ws_connect("/v1/attached", timeout=patience, autoping=False) as socket:
            await socket.receive_json()
            if gone:
                hear_nothing(socket)
                await wait_until(lambda: not runs.live_by_tenant())
            else:
                await asyncio.sleep(1.0)
                assert runs.live_by_tenant()
