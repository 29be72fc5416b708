"""Every typed class of the AssemblyScript SDK, in guests under real roles."""

import asyncio
import re
from pathlib import Path

import pytest
from symphony_runtime.client import message_bytes

from tests.runtime.gateway.egress.test_http import site
from tests.support.assemblyscript import compiled
from tests.support.executor.byte_model import byte_assets
from tests.support.gateway.egress import tool_table
from tests.support.gateway.system import SystemRig
from tests.support.kernel.constrained import assets
from tests.support.worker.rig import RunResult, WorkerRig

# What tests/tour.ts says of each part.
TOUR = {
    "tickets": [
        "poll false",
        "timeout -1",
        "any 1 true OK",
        "cancelled ECANCELED, the work was dropped",
        "all 20",
        "never EINVAL, an argument is wrong",
    ],
    "tasks": ["3210 0 543210"],
    "model": ["258 32768 16 [] true", "def é😀(x):", 'empty 0 ""', "chat true"],
    "files": [
        "lengths 40 4 10",
        "tokens 1,2,3,31,32,33,34,35,11,12",
        "again EEXIST, the name is taken",
        "named tour/a 40",
        "named tour/b 4",
        "stat 40 3 3 true",
        "rights EACCES, not allowed",
        "gone kv_open tour/a: ENOENT, there is no such thing",
        "still 40",
        "unknown kv_match: ENOENT, there is no such thing",
        "offered 32 EINVAL, an argument is wrong",
        "matched 32 31,32",
        "closed EBADF, no such handle or ticket",
    ],
    "preds": [
        "all true true",
        "top 3 true",
        "told true 3 true",
        "streamed 2 true",
        "argmax true",
        "of 2 true true",
        "logits true",
        "bias 5",
        "bias mask 11",
        "allow true",
        "dropped true",
        "tree 2",
        "placed true",
        "misplaced pred: as many positions as tokens: EINVAL, an argument is wrong",
        "now 2 true true",
        "not now pred: as many positions as tokens: EINVAL, an argument is wrong",
        "never pred: EINVAL, an argument is wrong",
        "nothing pred: no token was asked for: EINVAL, an argument is wrong",
    ],
    "sampling": ["same true 8", "same true 8"],
    "generation": [
        "whole 12 true true",
        "kept true",
        "pieces true true",
        "token true true",
        "text true true true",
        "empty EINVAL, an argument is wrong generation: EINVAL, an argument is wrong",
    ],
    "streams": [
        "busy EBUSY, the file is in use",
        "whole true 10 0 true true",
        "kept true",
        "stopped true",
        "together 15",
        "cancelled true ECANCELED, the work was dropped",
        "none EINVAL, an argument is wrong",
        "bad EINVAL, an argument is wrong",
    ],
    "sessions": [
        "settled 14 13 13",
        "reply true 20 19",
        "branches true true true",
        "used 18 30",
        "on true",
        "stopped true true",
        "rewritten 11 11 true",
        "of true",
        "empty EINVAL, an argument is wrong",
    ],
    "children": [
        "child true 5 hällo 3 EACCES, not allowed",
        "file 4",
        "granted kv_granted notes: ENOENT, there is no such thing",
        "again join: ENOENT, there is no such thing",
    ],
    "channels": ["one zwölf"],
    "errors": [
        "false kv_open no/such: ENOENT, there is no such thing",
        "or true",
        "missing EDQUOT, the tenant's quota is used up"
        " | kv_len: EDQUOT, the tenant's quota is used up",
        "pred pred: EDQUOT, the tenant's quota is used up",
        "foreign kv_len: EBADF, no such handle or ticket",
        "name EINVAL, an argument is wrong",
        "past pred: EINVAL, an argument is wrong",
    ],
}


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return compiled("tests/tour.ts", tmp_path_factory.mktemp("tour") / "tour.wasm")


def run(program: bytes, part: str, *said: bytes) -> RunResult:
    """Run a part to its end; its user sends messages and closes the input."""

    async def main() -> RunResult:
        async with WorkerRig(assets=byte_assets(ends=False)) as rig:
            return await rig.run(program, part.encode(), messages=said)

    return asyncio.run(main())


@pytest.mark.parametrize("part", TOUR)
def test_typed_classes_work(tour: bytes, part: str) -> None:
    result = run(tour, part)
    assert [message.decode() for message in result.messages] == TOUR[part]
    assert (result.status, result.exit_code, result.logs) == ("exited", 0, [])


def test_process_calls_work(tour: bytes) -> None:
    result = run(tour, "process", "héllo".encode(), b"\xff!")
    assert [message.decode() for message in result.messages] == [
        "random 16 true",
        "clocks true true",
        "got héllo",
        "got \ufffd!",
        "end EPIPE, the other end has closed",
    ]
    assert result.logs == [(0, b"a debug line"), (1, "é😀".encode())]


def test_long_run_keeps_its_memory_small(tour: bytes) -> None:
    result = run(tour, "long")
    assert result.output == b"long 3000 true"
    assert result.usage["peak_memory_bytes"] < 1 << 20


def test_unwrap_of_an_error_ends_the_run_with_its_message(tour: bytes) -> None:
    result = run(tour, "unwrap")
    assert result.status == "trapped"
    assert "kv_open no/such: ENOENT, there is no such thing" in result.reason


def test_exit_and_fail_end_the_run_with_a_code(tour: bytes) -> None:
    assert run(tour, "exit").exit_code == 7
    failed = run(tour, "nonsense")
    assert (failed.status, failed.exit_code) == ("exited", 3)
    assert failed.logs == [(3, b"there is no part nonsense")]


def test_sdk_every_part_compiles(tmp_path: Path) -> None:
    # Only what a program uses is compiled, so the whole SDK is compiled as if it were one.
    assert compiled("assembly/index.ts", tmp_path / "sdk.wasm", "--optimizeLevel", "0")


async def test_constraint_is_used_refused_and_closed(tmp_path: Path) -> None:
    program = compiled("tests/constraints.ts", tmp_path / "constraints.wasm")
    async with WorkerRig(assets=assets()) as rig:
        result = await rig.run(program, seconds=60)
    assert (result.status, result.exit_code) == ("exited", 0), result.reason
    before, year, by_hand, since, *refusals = [message.decode() for message in result.messages]
    assert before == "before []"
    assert re.fullmatch(r"year (19|20)\d\d", year)
    assert by_hand == "by hand true"
    assert since in ("since 1", "since 2", "since 19", "since 20")
    place = "at #/properties/a: Invalid type: intger"
    assert refusals == [
        f"constraint: {place}: EINVAL, an argument is wrong",
        f"words {place}",
        "lark false",
        "close OK",
        "closed EBADF, no such handle or ticket",
    ]


EGRESS = [
    "listed does echo text",
    r'tool true {"list": [-1, 0.5], "n": 7, "text": "\u00e9", "yes": true}',
    "tool true {}",
    "tool ENOENT, there is no such thing",
    "slow ETIMEDOUT, the time is over",
    'http 200 true {"path": "/a", "method": "POST"}',
    "kind application/json",
    "late ETIMEDOUT, the time is over",
    "refused EACCES, not allowed",
    "bad EINVAL, an argument is wrong",
]


async def test_egress_in_assemblyscript_works(tmp_path: Path) -> None:
    wasm = compiled("tests/outside.ts", tmp_path / "outside.wasm", "--exportStart", "_initialize")
    async with site() as there:
        rules = [{"tenants": ["*"], "urls": [there.url], "methods": ["GET", "POST"]}]
        tables = {"t": tool_table(tmp_path)}
        async with (
            SystemRig(tmp_path, tools=tables, http=rules) as system,
            system.client() as client,
        ):
            uploaded = await client.upload(wasm)
            given = {"tool": "t.echo", "url": there.url}
            ended = await client.run(uploaded["id"], given)
    assert (ended["status"], ended["exit_code"]) == ("exited", 0), ended
    assert [message_bytes(m).decode() for m in ended["messages"]] == EGRESS
    assert there.bodies[0] == b"body"
