"""The WebSocket of a run: messages both ways, and continuing after a broken connection."""

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import WSMsgType, WSServerHandshakeError
from symphony import AsyncClient, message_bytes
from symphony_kernel.protocol.limits import MESSAGE_BYTES_MAX
from symphony_runtime.gateway.api import run_streams

from tests.e2e.programs import PARROT_WASM, wasm
from tests.support.gateway.system import SystemRig, with_system
from tests.support.run_by import run_by
from tests.support.worker.guests import data, main

Session = aiohttp.ClientSession
Scenario = Callable[[AsyncClient, Session, str], Awaitable[None]]


def with_parrot(tmp_path: Path, scenario: Scenario) -> None:
    """Run a scenario with a live run, which sends back every message."""

    async def whole(system: SystemRig, client: AsyncClient) -> None:
        async with system.session() as session, asyncio.timeout(40):
            await client.programs.upload(PARROT_WASM, name="parrot")
            run = await client.start("parrot")
            await scenario(client, session, run)
            await client.runs.cancel(run)

    with_system(tmp_path, whole)


async def events_of(socket: Any) -> list[dict[str, Any]]:
    return [json.loads(frame.data) async for frame in socket if frame.type is WSMsgType.TEXT]


@run_by(with_parrot, "tmp_path")
async def test_client_continues_a_broken_socket(
    client: AsyncClient, session: Session, run: str
) -> None:
    path = f"/v1/runs/{run}/ws?events=1"
    async with session.ws_connect(path) as socket:
        assert json.loads(await socket.receive_str())["event"] == "status"
        for text in ("one", "two"):
            await socket.send_str(text)
        first = json.loads(await socket.receive_str())
    assert (first["event"], first["data"]) == ("message", {"message": "one"})
    # It left before it had the second one, and may come back by either name of the parameter.
    async with session.ws_connect(f"{path}&after={first['id']}") as socket:
        second = json.loads(await socket.receive_str())
        assert second["data"] == {"message": "two"}
        await socket.send_bytes(b"\xff")
        third = json.loads(await socket.receive_str())
        assert third["data"] == {"message": {"base64": "/w=="}}
    headers = {"Last-Event-ID": str(third["id"])}
    async with session.ws_connect(path, headers=headers) as socket:
        await client.runs.send(run, b"", close=True)
        rest = await events_of(socket)
        assert socket.close_code == aiohttp.WSCloseCode.OK
    assert [event["event"] for event in rest] == ["log", "usage", "status"]
    # The same events with the same ids as over the events route, also after the end.
    async with session.ws_connect(path) as socket:
        whole = await events_of(socket)
    told = [(event.id, event.kind, event.data) async for event in client.runs.events(run)]
    assert [(e["id"], e["event"], e["data"]) for e in whole] == told


@run_by(with_parrot, "tmp_path")
async def test_plain_socket_has_messages_only(
    client: AsyncClient, session: Session, run: str
) -> None:
    async with session.ws_connect(f"/v1/runs/{run}/ws") as socket:
        await socket.send_str("hé")
        assert await socket.receive_str() == "hé"
        await socket.send_bytes(b"\xff")
        assert await socket.receive_bytes() == b"\xff"
        await client.runs.send(run, b"", close=True)
        assert (await socket.receive()).extra == "exited"


@run_by(with_parrot, "tmp_path")
async def test_huge_message_closes_its_socket(
    client: AsyncClient, session: Session, run: str
) -> None:
    async with session.ws_connect(f"/v1/runs/{run}/ws", max_msg_size=0) as socket:
        await socket.send_bytes(b"x" * (MESSAGE_BYTES_MAX + 2))
        assert (await socket.receive()).type is WSMsgType.CLOSE
        assert socket.close_code == aiohttp.WSCloseCode.MESSAGE_TOO_BIG
    assert (await client.runs.get(run))["status"] == "running"


@run_by(with_parrot, "tmp_path")
async def test_client_that_answers_no_ping_is_kept(
    client: AsyncClient, session: Session, run: str, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_streams, "_HEARTBEAT_SECONDS", 0.1)
    async with session.ws_connect(f"/v1/runs/{run}/ws", autoping=False) as socket:
        for _ in range(5):
            assert (await socket.receive()).type is WSMsgType.PING
        await socket.send_str("still there")
        while (frame := await socket.receive()).type is WSMsgType.PING:
            pass
        assert frame.data == "still there"


@pytest.mark.parametrize(("query", "key", "status"), [
    ("", "", 401), ("", "sym_a_b", 401), ("?after=x", None, 400), ("?events=maybe", None, 400),
])  # fmt: skip
@run_by(with_parrot, "tmp_path")
async def test_socket_with_a_wrong_key_or_query_is_refused(
    _: AsyncClient, session: Session, run: str, *, query: str, key: str | None, status: int
) -> None:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    with pytest.raises(WSServerHandshakeError) as caught:
        await session.ws_connect(f"/v1/runs/{run}/ws{query}", headers=headers)
    assert caught.value.status == status


@pytest.mark.parametrize(
    "message",
    [b"\xff" * MESSAGE_BYTES_MAX, "\u00e4\u20ac".encode() * 200_000, b"x" * 6_145, b"y" * 6_144],
)
@run_by(with_parrot, "tmp_path")
async def test_large_message_comes_whole(
    client: AsyncClient, session: Session, _: str, *, message: bytes
) -> None:
    send = f"(drop (call $send (i32.const 0) (i32.const {len(message)}))) (i32.const 0)"
    await client.programs.upload(wasm(main(send, data(0, message), pages=17)), name="large")
    run = (await client.run("large"))["id"]
    path = f"/v1/runs/{run}/ws"
    options: Any = {"max_msg_size": 8 * MESSAGE_BYTES_MAX, "compress": 15}
    async with session.ws_connect(path, **options) as socket:
        assert not socket.compress  # hundreds of kilobytes for each that has it
        frame = await socket.receive()
        text = b"\xff" not in message
        assert frame.type is (WSMsgType.TEXT if text else WSMsgType.BINARY)
        assert frame.data == (message.decode() if text else message)
    async with session.ws_connect(f"{path}?events=1", **options) as socket:
        assert json.loads(await socket.receive_str())["event"] == "status"
        event = json.loads(await socket.receive_str())
        shown = event["data"]["message"]
        found = shown.encode() if text else base64.b64decode(shown["base64"])
        assert (event["event"], found) == ("message", message)
    events = [event async for event in client.runs.events(run)]
    assert [message_bytes(e.data["message"]) for e in events if e.kind == "message"] == [message]
