"""Large results: the same JSON as at once, in pieces."""

from functools import partial

import pytest
from symphony import AsyncClient
from symphony_runtime.gateway.api.results import PIECE_BYTES, result_pieces
from symphony_runtime.gateway.http.context import to_json
from symphony_runtime.gateway.runs.events.reader import PART_BYTES
from symphony_runtime.gateway.runs.events.stream import insert_events, pack_final, stored_cursor
from symphony_runtime.gateway.runs.record import encode_message
from symphony_runtime.gateway.storage.store import Store

from tests.e2e.programs import wasm
from tests.support.gateway.stores import make_record, with_sqlite
from tests.support.gateway.system import SystemRig, with_system
from tests.support.run_by import run_by
from tests.support.worker.guests import data, drop, main, times

RECORD = make_record(7, status="exited", exit_code=0, usage={"cpu_ms": 1}, ended_ms=2)
TEXT = 'a\u00fc\u20ac\U0001f600\n"\\\x00'
SENDER = wasm(
    main(
        f"{times(4, drop('send', 1024, 32_768) + drop('send', 512, 1))} (i32.const 0)",
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
@run_by(with_sqlite, "tmp_path")
async def test_result_pieces_are_small_and_join(store: Store, *, messages: list[bytes]) -> None:
    row = pack_final(1, 0, [("log", {}), *(("message", message) for message in messages)])
    await store.write(partial(insert_events, run=7, row=row))
    reading = result_pieces(RECORD.view(), lambda: stored_cursor(store, 7, 0, "tenant"))
    pieces = [piece async for piece in reading]
    assert store.stored_events.held == 0
    shown = [encode_message(message) for message in messages]
    output = "".join(message for message in shown if isinstance(message, str))
    assert b"".join(pieces) == to_json({**RECORD.view(), "output": output, "messages": shown})
    # A piece ends with the part that fills it, and a character may be six bytes.
    assert max(map(len, pieces)) <= PIECE_BYTES + 7 * PART_BYTES
    assert len(pieces) >= sum(map(len, messages)) // (PIECE_BYTES + 7 * PART_BYTES)


@run_by(with_system, "tmp_path")
async def test_large_result_is_answered_whole(system: SystemRig, client: AsyncClient) -> None:
    await client.programs.upload(SENDER, "sender")
    answer = await system.ask("POST", "/v1/programs/sender/runs", json={})
    assert answer.headers["Content-Type"].startswith("application/json")
    began = answer.json
    assert (await system.ask("GET", f"/v1/runs/{began['id']}")).json == began
    assert began["messages"] == ["\0" * 32_768, {"base64": "/w=="}] * 4
    assert began["output"] == "\0" * 4 * 32_768
    assert began["status"] == "exited"
