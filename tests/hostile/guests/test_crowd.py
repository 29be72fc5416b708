"""Hostile guests at once, in the real server: others do not notice, nothing is left."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from symphony import AsyncClient
from wasmtime import wat2wasm

from tests.e2e.programs import PARROT_WASM, REFUSED_WASM
from tests.hostile.cases import END_SECONDS_MAX, ENDLESS, Guest
from tests.hostile.guests.bombs import BOMBS
from tests.hostile.guests.endings import ENDINGS
from tests.hostile.guests.loops import LOOPS
from tests.support.gateway.system import refused
from tests.support.server.server import RunningServer, wait_for_end
from tests.support.worker.binary import Binary
from tests.support.worker.guests import SPIN, main

ECHOES = 20

CROWD = {
    **{name: LOOPS[name] for name in ("plain", "start function", "fills", "recursion")},
    "listens and leaves": LOOPS["listens and leaves"],
    **{name: BOMBS[name] for name in ("results", "a fork bomb", "output", "memory of children")},
    "traps with everything open": ENDINGS["traps with everything open"],
    "past its time": Guest("computes for longer than it may", SPIN, "killed", "cpu time limit",
                           limits={"cpu_ms": 300}),
    "past its hour": Guest("waits for longer than it may",
                           main("(call $await (call $recv)) (i32.const 0)"),
                           "killed", "wall time limit", limits={"wall_ms": 1000}),
    "past its memory": Guest(
        "writes behind the memory that it may have",
        main("""(loop $l (br_if $l (i32.ne (memory.grow (i32.const 16)) (i32.const -1))))
                (i32.store (i32.shl (memory.size) (i32.const 16)) (i32.const 1)) (i32.const 0)"""),
        "trapped", "out-of-bounds memory access",
    ),
}  # fmt: skip


async def messages(client: AsyncClient, run: str) -> AsyncIterator[bytes]:
    async for event in client.runs.events(run):
        if event.kind == "message":
            yield event.message()


async def test_hostile_guests_all_at_once_end_as_expected(server: RunningServer) -> None:
    """Loops, bombs, deaths and time limits in one worker: a neighbour is answered all the while,
    each of them ends as it must, and the same processes go on with all that they had.
    """
    async with server.client() as client:
        await client.programs.upload(PARROT_WASM, name="neighbour")
        programs = [
            await client.programs.upload(bytes(wat2wasm(guest.source))) for guest in CROWD.values()
        ]
        pids, before = await server.pids(), await server.wait_until_idle(END_SECONDS_MAX)
        neighbour = await client.start("neighbour")
        said = messages(client, neighbour)
        runs = {
            name: await client.start(program["id"], limits=dict(guest.limits))
            for (name, guest), program in zip(CROWD.items(), programs, strict=True)
        }
        for n in range(ECHOES):
            await client.runs.send(neighbour, b"%d" % n)
            assert await asyncio.wait_for(anext(said), END_SECONDS_MAX) == b"%d" % n
        for name, guest in CROWD.items():
            if guest.status == ENDLESS:
                await client.runs.cancel(runs[name])
        await client.runs.send(neighbour, b"", close=True)
        for name, guest in CROWD.items():
            ended = await wait_for_end(client, runs[name], 4 * END_SECONDS_MAX)
            assert ended["status"] == ("killed" if guest.status == ENDLESS else guest.status), ended
            assert guest.says in ended["reason"], name
        assert (await wait_for_end(client, neighbour))["status"] == "exited"
        after = await server.wait_until_idle(END_SECONDS_MAX)
        assert await server.pids() == pids
        assert after["pages_free"] == before["pages_free"]
        assert (after["handles"], after["files"]) == (before["handles"], before["files"])


UPLOADS = {
    "nothing": (b"", 400, "not a WebAssembly module"),
    "a module that is too large": (bytes((16 << 20) + 1), 413, "at most"),
    "a proposal that is off": (
        bytes(wat2wasm('(module (memory (export "memory") 1 1 shared) (func (export "_start")))')),
        400,
        "needs threads, which is off",
    ),
    "a million blocks in each other": (
        Binary(bodies=[b"\0" + b"\x02\x40" * 1_000_000 + b"\x0b" * 1_000_001]).wasm(),
        400,
        "compiling takes more than",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", UPLOADS)
async def test_upload_that_is_not_a_program_is_refused(server: RunningServer, what: str) -> None:
    body, status, words = UPLOADS[what]
    async with server.client() as client:
        error = await refused(client.programs.upload(body))
    assert error.status == status, error
    assert words in error.problem["detail"]


async def test_upload_with_refused_imports_lists_all_of_them(server: RunningServer) -> None:
    async with server.client() as client:
        error = await refused(client.programs.upload(REFUSED_WASM, name="refused"))
    assert error.status == 400
    problems = "\n".join(error.problem["problems"])
    assert "path_open" in problems
    assert "env.system" in problems
    assert "lip.send" not in problems
