"""Large results: the same JSON as at once, in pieces, and others' work between two of them."""

import asyncio
import json
from pathlib import Path

import aiohttp
import pytest
from symphony_runtime.gateway.http import to_json
from symphony_runtime.gateway.results import (
    PIECE_BYTES,
    PIECE_PARTS,
    SMALL_BYTES,
    in_turns,
    result_pieces,
)
from symphony_runtime.gateway.run import Record
from symphony_runtime.gateway.turns import TenantTurns

from tests.e2e.programs import wasm
from tests.support.guests import data, main
from tests.support.house import House

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
        [b"\xff" * (3 * PIECE_BYTES + 1), b"\x00" * (2 * PIECE_BYTES), b"\xfe"],
        [b"x", b"\xff"] * 2_000,
    ],
)
def test_pieces_are_the_json_of_the_whole_and_none_is_large(messages: list[bytes]) -> None:
    pieces = list(result_pieces(RECORD.view(), messages))
    assert b"".join(pieces) == to_json(RECORD.result(messages))
    # A piece ends with the part that fills it, and a character may be six bytes.
    assert max(map(len, pieces)) <= 7 * PIECE_BYTES
    assert len(pieces) >= 2 * len(messages) // PIECE_PARTS


def test_a_tenant_encodes_one_piece_where_another_does() -> None:
    async def main() -> None:
        turns, order = TenantTurns(), list[str]()

        async def read(tenant: str, number: int) -> None:
            async for _ in in_turns(iter([b"piece"] * number), turns, tenant):
                order.append(tenant)

        await asyncio.gather(*(read("many", 50) for _ in range(8)), read("few", 50))
        assert order.count("many") == 400
        ends = max(at for at, tenant in enumerate(order) if tenant == "few") + 1
        assert order[:ends].count("many") <= 2 * 50 + 2
        assert len(turns) == 0

    asyncio.run(main())


def test_who_leaves_in_the_middle_keeps_no_turn() -> None:
    async def main() -> None:
        turns = TenantTurns()
        answer = in_turns(iter([b"1", b"2"]), turns, "a")
        assert await anext(answer) == b"1"
        assert len(turns) == 0
        assert [piece async for piece in in_turns(iter([b"3"]), turns, "a")] == [b"3"]

    asyncio.run(main())


def test_a_large_result_is_answered_whole(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with House(tmp_path) as house, house.client() as client:
            await client.upload(SENDER, "sender")
            headers = {"Authorization": f"Bearer {house.key}"}
            async with aiohttp.ClientSession(house.url, headers=headers) as session:
                async with session.post("/v1/programs/sender/runs", json={}) as response:
                    began = json.loads(await response.read())
                    assert response.content_type == "application/json"
                async with session.get(f"/v1/runs/{began['id']}") as response:
                    found = json.loads(await response.read())
            assert found == began
            assert began["messages"] == ["\0" * SMALL_BYTES, {"base64": "/w=="}] * 4
            assert began["output"] == "\0" * 4 * SMALL_BYTES
            assert began["status"] == "exited"

    asyncio.run(scenario())
