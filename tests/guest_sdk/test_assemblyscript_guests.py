"""Every typed class of the AssemblyScript SDK, in guests under real roles."""

import asyncio
import re
from pathlib import Path

import pytest
from symphony import message_bytes

from tests.runtime.gateway.egress.test_http import site
from tests.support.assemblyscript import compiled
from tests.support.executor.byte_model import byte_assets
from tests.support.gateway.egress import tool_table
from tests.support.gateway.system import SystemRig
from tests.support.kernel.constrained import assets
from tests.support.worker.rig import RunResult, WorkerRig

INVALID = "EINVAL, an argument is wrong: check what the call takes"
NO_TOKENS = "EINVAL, no tokens: give at least one"
NO_FILE = "ENOENT, there is no file of that name: KvFile.list() tells which there are"
NO_HANDLE = "EBADF, no such handle or ticket: it was closed or taken before"
CANCELLED = "ECANCELED, the work was cancelled"

# What tests/tour.ts says of each part.
TOUR = {
    "tickets": [
        "poll false",
        "timeout -1",
        "any 1 true OK",
        f"cancelled {CANCELLED}",
        "all 20",
        f"never sleep: {INVALID}",
    ],
    "tasks": ["3210 0 543210"],
    "model": ["258 32768 16 [] true", "def é😀(x):", 'empty 0 ""', "chat true"],
    "files": [
        "lengths 40 4 10",
        "tokens 1,2,3,31,32,33,34,35,11,12",
        'again KvFile.save("tour/a"): EEXIST, the name is taken: replace it, or choose another',
        "named tour/a 40",
        "named tour/b 4",
        "stat 40 3 3 true",
        "rights KvFile.truncate(1): EACCES, not allowed: ask for the right, or ask the operator",
        f'gone KvFile.open("tour/a"): {NO_FILE}',
        f'gone KvFile.remove("tour/a"): {NO_FILE}',
        "still 40",
        "unknown true",
        "offered 32 true",
        "matched 32 31,32",
        f"closed KvFile.close: {NO_HANDLE}",
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
        "penalty true true",
        "hidden true",
        "allow true true false",
        "limits 26",
        "dropped true",
        "tree 2",
        "placed true",
        "now 2 true true",
        f"never KvFile.pred(1 token): {INVALID}",
        "nothing KvFile.pred(1 token): the pass asked for no token",
        f"no tokens KvFile.pred(0 tokens): {NO_TOKENS}",
        "too long KvFile.pred(32769 tokens): EFBIG, the text is too long: the model's context is"
        " 32768 tokens",
    ],
    "sampling": ["same true 8", "same true 8"],
    "generation": [
        "whole 12 true true",
        "kept true",
        "pieces true true",
        "token true true",
        "text true true true",
        "exact true",
        "unbounded true true",
        'no token ""',
        f"empty KvFile.stream(0 tokens): {NO_TOKENS}",
    ],
    "streams": [
        "busy KvFile.length: EBUSY, a generation uses the file: let it end, or cancel it",
        "whole true 10 0 true true",
        "kept true",
        "stopped true",
        "together 15",
        f"cancelled true {CANCELLED}",
        f"none KvFile.stream(0 tokens): {NO_TOKENS}",
        f"bad KvFile.stream(1 token): {INVALID}",
        "shared 0 32",
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
        "unread true",
        "flushed true",
        f"empty KvFile.stream(0 tokens): {NO_TOKENS}",
    ],
    "chats": ["first true true 5", "kept true true", "second true true"],
    "children": [
        "child true 5 hällo 3 true",
        "file 4",
        'granted KvFile.granted("notes"): ENOENT, there is no such name: check its spelling',
        "again true",
    ],
    "channels": ["one zwölf"],
    "errors": [
        f'false KvFile.open("no/such"): {NO_FILE}',
        "or true",
        f"foreign KvFile.length: {NO_HANDLE}",
        f'name KvFile.save(""): {INVALID}',
        f"odd KvFile.extract(1): {INVALID}",
        f"past KvFile.pred(1 token): {INVALID}",
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
        "end EPIPE, the other end has closed: finish",
    ]
    assert result.logs == [(0, b"a debug line"), (1, "é😀".encode())]


def test_long_run_keeps_its_memory_small(tour: bytes) -> None:
    result = run(tour, "long")
    assert result.output == b"long 3000 true"
    assert result.usage["peak_memory_bytes"] < 1 << 20


def test_call_that_fails_ends_the_run_with_its_operand_and_what_to_do(tour: bytes) -> None:
    result = run(tour, "open")
    assert result.status == "trapped"
    assert f'KvFile.open("no/such"): {NO_FILE}' in result.reason


def test_stopped_replies_count_what_they_have_computed(tour: bytes) -> None:
    async def main() -> tuple[RunResult, int]:
        async with WorkerRig(assets=byte_assets(ends=False)) as rig:
            result = await rig.run(tour, b"completed")
            return result, (await rig.statistics())["tokens_computed"]

    result, computed = asyncio.run(main())
    *told, used = [message.decode() for message in result.messages]
    assert told == [
        "first true 3", "second true 403", "rest true true", "text true", "held true", "after true",
    ]  # fmt: skip
    # The last token of each of the three whole replies is chosen and not computed. Of each of the
    # four that were stopped one may be chosen and not computed, or be under way and not kept.
    assert abs(int(used) - computed - 3) <= 4


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
        f"Constraint.jsonSchema: {place}",
        f"words {place}",
        "lark false",
        f"closed KvFile.pred(1 token): {NO_HANDLE}",
    ]


EGRESS = [
    "listed does echo text",
    r'tool true {"list": [-1, 0.5], "n": 7, "text": "\u00e9", "yes": true}',
    "tool true {}",
    'callTool("none.at"): ENOENT, there is no such name: check its spelling',
    'slow callTool("t.sleep"): ETIMEDOUT, the time is over: allow more',
    'http 200 true {"path": "/a", "method": "POST"}',
    "kind application/json",
    "late 110",
    'refused HttpRequest.send("http://10.0.0.1/"): EACCES, not allowed: ask for the right, or ask'
    " the operator",
    "bad 22",
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
            uploaded = await client.programs.upload(wasm)
            given = {"tool": "t.echo", "url": there.url}
            ended = await client.run(uploaded["id"], given)
    assert (ended["status"], ended["exit_code"]) == ("exited", 0), ended
    assert [message_bytes(m).decode() for m in ended["messages"]] == EGRESS
    assert there.bodies[0] == b"body"
