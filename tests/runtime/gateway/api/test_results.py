"""Large results: the same JSON as at once, in pieces."""

import asyncio
import json
from pathlib import Path

import aiohttp
import pytest
from symphony_runtime.gateway.api.results import PIECE_BYTES, result_pieces
from symphony_runtime.gateway.http.context import to_json
from symphony_runtime.gateway.runs.events.reader import PART_BYTES
from symphony_runtime.gateway.runs.events.stream import insert_events, pack_final, stored_cursor
from symphony_runtime.gateway.runs.record import Record, encode_message
from symphony_runtime.gateway.storage.store import Store

from tests.e2e.programs import wasm
from tests.support.gateway.system import SystemRig
from tests.support.worker.guests import data, main

RECORD = Record(
    7, "run-7", "tenant", "sha256:00", None, "_start", "exited", 0, "", 1, {"wall_ms": 5},
    {"cpu_ms": 1}, 1, 2,
)  # fmt: skip
TEXT = 'a\u00fc\u20ac\U0001f600\n"\\\x00'
SENDER = wasm(
    main(
        """(loop $next
          (drop (call $send (i32.const 1024) (i32.const 32768)))
          (drop (call $send (i32.const 512) (i32.const 1)))
          (local.set $n (i32.add (local.get $n) (i32.const 1)))
          (br_if $next (i32.lt_u (local.get $n) (i32.const 4)))) (i32.const 0)""",
        data(512, b"\xff"),
        locals_="(local $n i32)",
    )
)


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [b"", b"", b"\xff", b""],
        [TEXT.encode() * 10_000, b"", TEXT.encode()],
        [b"\xff" * (3 * PART_BYTES + 1), b"\x00" * (2 * PART_BYTES), b"\xfe"],
        [b"x", b"\xff"] * 2_000,
    ],
)
def test_pieces_are_the_json_of_the_whole_and_none_is_large(
    tmp_path: Path, messages: list[bytes]
) -> None:
    async def scenario() -> list[bytes]:
        store = Store(tmp_path / "db")
        row = pack_final(1, 0, [("log", {}), *(("message", message) for message in messages)])
        await store.write(lambda connection: insert_events(connection, 7, row))
        pieces = result_pieces(RECORD.view(), lambda: stored_cursor(store, 7, 0, "tenant"))
        found = [piece async for piece in pieces]
        assert store.stored_events.held == 0
        await store.close()
        return found

    pieces = asyncio.run(scenario())
    shown = [encode_message(message) for message in messages]
    output = "".join(message for message in shown if isinstance(message, str))
    assert b"".join(pieces) == to_json({**RECORD.view(), "output": output, "messages": shown})
    # A piece ends with the part that fills it, and a character may be six bytes.
    assert max(map(len, pieces)) <= PIECE_BYTES + 7 * PART_BYTES
    assert len(pieces) >= sum(map(len, messages)) // (PIECE_BYTES + 7 * PART_BYTES)


async def test_a_large_result_is_answered_whole(tmp_path: Path) -> None:
    async with SystemRig(tmp_path) as system, system.client() as client:
        await client.upload(SENDER, "sender")
        headers = {"Authorization": f"Bearer {system.key}"}
        async with aiohttp.ClientSession(system.url, headers=headers) as session:
            async with session.post("/v1/programs/sender/runs", json={}) as response:
                began = json.loads(await response.read())
                assert response.content_type == "application/json"
            async with session.get(f"/v1/runs/{began['id']}") as response:
                found = json.loads(await response.read())
        assert found == began
        assert began["messages"] == ["\0" * 32_768, {"base64": "/w=="}] * 4
        assert began["output"] == "\0" * 4 * 32_768
        assert began["status"] == "exited"
