"""`generate` over HTTP on a real server: its tokens, and those who abuse it."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from symphony import AsyncClient, message_bytes

from tests.e2e.programs import DECODE_WASM, wasm
from tests.support.server.server import RunningServer, first_message, running_server
from tests.support.worker.generating_guests import abuser, given, ids, taker
from tests.support.worker.guests import call, drop, times

TAKER_WASM = wasm(taker(given(max=30), 8))
ENDLESS = given(max=100_000)
# tests/runtime/worker/syscalls/test_generate.py has more
ABUSERS = {
    "takes nothing again and again": abuser(
        ENDLESS,
        f"""(call $await (local.get $t))
            (local.set $n (i32.const 2000))
            (loop $l (br_if $l (i32.and
                (i32.gt_s {call("take", "(local.get $t)", 0, 0)} (i32.const 0))
                (i32.ne (i32.const 0) (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))))
            (local.get $n)""",
    ),
    "begins a thousand and leaves": abuser(
        ENDLESS, times(1000, drop("generate", "(call $kv_create)", 0, 1, 0, 0)) + "(i32.const 0)"
    ),
}


async def output(client: AsyncClient, program: str, data: str = "") -> bytes:
    result = await client.run(program, input=data)
    assert (result["status"], result["exit_code"]) == ("exited", 0), result
    return b"".join(map(message_bytes, result["messages"]))


async def test_generation_alone_and_among_many_equals_a_loop_of_preds(client: AsyncClient) -> None:
    loop = (await client.programs.upload(DECODE_WASM))["id"]
    generating = (await client.programs.upload(TAKER_WASM))["id"]
    expected = await output(client, loop, "\x1e")
    tokens = [int.from_bytes(expected[i : i + 4], "little") for i in range(0, 120, 4)]
    assert ids(await output(client, generating)) == tokens
    crowd = await asyncio.gather(
        *(output(client, generating) for _ in range(24)),
        *(output(client, loop, "\x1e") for _ in range(8)),
    )
    assert all(ids(each) == tokens for each in crowd[:24])
    assert set(crowd[24:]) == {expected}


@pytest.mark.parametrize("name", ABUSERS)
async def test_generation_abuse_ends_and_leaves_nothing(
    server: RunningServer, client: AsyncClient, name: str
) -> None:
    program = (await client.programs.upload(wasm(ABUSERS[name])))["id"]
    neighbour = (await client.programs.upload(TAKER_WASM))["id"]
    before = await server.wait_until_idle()
    expected = await output(client, neighbour)
    abused, said = await asyncio.gather(client.run(program), output(client, neighbour))
    assert (abused["status"], abused["exit_code"]) == ("exited", 0), abused
    assert said == expected
    after = await server.wait_until_idle()
    assert after["pages_free"] == before["pages_free"]
    assert after["handles"] == after["files"] == 0


async def test_generations_of_a_dead_worker_end_with_it(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        async with server.client() as client:
            program = (await client.programs.upload(wasm(taker(ENDLESS, 8))))["id"]
            before = await server.counters()
            runs = [await client.start(program) for _ in range(5)]
            await first_message(client, runs[-1])
            os.kill((await server.pids())["worker-0"], signal.SIGKILL)
            after = await server.wait_until_idle()
            assert after["pages_free"] == before["pages_free"]
            await server.wait_until_ready()
            short = (await client.programs.upload(TAKER_WASM))["id"]
            assert len(ids(await output(client, short))) == 30
