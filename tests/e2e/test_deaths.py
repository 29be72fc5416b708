"""kill -9 of real roles under load: runs end as they would have, what was acknowledged is there."""

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from symphony import AsyncClient, ServerError

from tests.support.examples import EXAMPLES, built, scenario
from tests.support.run_by import run_by
from tests.support.server.deaths import Result, Witness, crowd, difference, kill_role, run, upload
from tests.support.server.server import RunningServer, descendants, running_server, wait_for_end

SHORT, LONG = (12, 0.5), (60, 1.0)  # looks for a kernel to kill, seconds from one to the next
RUNS, ROUNDS = 12, 120


def with_server(
    tmp_path: Path,
    scenario: Callable[[RunningServer, AsyncClient], Awaitable[None]],
    *options: str,
    executor: str = "simulated",
) -> None:
    async def whole(server: RunningServer) -> None:
        async with server.client() as client:
            await upload(client)
            await scenario(server, client)

    with running_server(tmp_path, *options, executor=executor) as server:
        asyncio.run(whole(server))


@pytest.mark.parametrize("seed", range(2))
@run_by(with_server, "tmp_path")
async def test_killed_kernel_changes_no_run(
    server: RunningServer, client: AsyncClient, *, seed: int
) -> None:
    await check_deaths(server, client, seed, 120)


@pytest.mark.slow
@run_by(with_server, "tmp_path", executor="torch")
async def test_killed_kernel_of_a_real_model_changes_no_run(
    server: RunningServer, client: AsyncClient
) -> None:
    await check_deaths(server, client, 2, 60)


async def check_deaths(server: RunningServer, client: AsyncClient, seed: int, rounds: int) -> None:
    """Kill the kernel twice under a crowd; each run must end as without."""
    before = await server.counters()
    wanted = await crowd(client, 24, rounds)
    chance = random.Random(seed)
    runs = asyncio.create_task(crowd(client, 24, rounds))
    for _ in range(2):
        await asyncio.sleep(chance.uniform(0, 0.2))
        await kill_role(server, "kernel")
    found = await runs
    differences = [difference(*pair) for pair in zip(wanted, found, strict=True)]
    assert [words for words in differences if words] == []
    after = await server.wait_until_idle()
    assert after["pages_free"] == before["pages_free"]


@pytest.mark.slow
@run_by(with_server, "tmp_path")
async def test_kernel_killed_repeatedly_before_it_is_ready_recovers(
    server: RunningServer, client: AsyncClient
) -> None:
    """The server does not give up, and runs that wait meanwhile end as they would have.

    12 looks for a kernel to kill, half a second apart; with SYMPHONY_EVERY_FAULT=1 one a second for
    a minute. The pauses before a start grow meanwhile, so that some looks find none.
    """
    looks, pause = LONG if os.environ.get("SYMPHONY_EVERY_FAULT") else SHORT
    wanted = await crowd(client, RUNS, ROUNDS)
    over = asyncio.Event()
    runs = [asyncio.create_task(again(client, number, over)) for number in range(RUNS)]
    killed = dict[int, float]()  # and when, in milliseconds
    await asyncio.sleep(0.1)
    for _ in range(looks):
        for pid in descendants(server.process.pid):
            if pid not in killed and _is_kernel(pid):
                os.kill(pid, signal.SIGKILL)
                killed[pid] = time.time() * 1000
        await asyncio.sleep(pause)
    over.set()
    found = [(wanted[n], result) for n, each in enumerate(runs) for result in await each]
    spans = [(result["created_ms"], result["ended_ms"] or 0) for _, result in found]
    live = [sum(began <= at <= end for began, end in spans) for at in killed.values()]
    print(f"{len(killed)} kernels killed, live runs at each: {live}, {len(found)} runs in all")
    assert [words for pair in found if (words := difference(*pair))] == []
    assert sum(map(bool, live)) > 4
    await server.wait_until_ready()


async def again(client: AsyncClient, number: int, over: asyncio.Event) -> list[Result]:
    """Run one of the crowd again and again until the kills are over; return its results."""
    results: list[Result] = []
    while not (results and over.is_set()):
        try:
            results.append(await run(client, number, ROUNDS))
        except ServerError as error:
            if error.status != 503:  # there is no kernel that could begin it
                raise
            await asyncio.sleep(0.1)
    return results


def _is_kernel(pid: int) -> bool:
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"symphony_kernel" in arguments


async def test_killed_gateway_loses_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        chance = random.Random(1)
        async with server.client() as client:
            witness = Witness(client)
            await witness.begin(2)
            for _ in range(3):
                await asyncio.sleep(chance.uniform(0.2, 0.6))
                await kill_role(server, "gateway")
            await asyncio.sleep(0.3)
            await witness.end()
            await witness.check()
        assert witness.problems == []
        assert witness.resumed
        for acknowledged in (witness.programs, witness.results, witness.saved, witness.told):
            assert acknowledged
        assert (await server.wait_until_idle())["instances"] == 0


def test_hanging_roles_are_killed_and_the_kernel_recovers(tmp_path: Path) -> None:
    config = tmp_path / "symphony.toml"
    config.write_text("hang_seconds = 3\n")

    async def hang(server: RunningServer, client: AsyncClient) -> None:
        wanted = await crowd(client, 6, 120)
        runs = asyncio.create_task(crowd(client, 6, 120))
        await asyncio.sleep(0.1)
        before = await server.pids()
        os.kill(before["kernel"], signal.SIGSTOP)
        found = await runs
        assert [difference(*pair) for pair in zip(wanted, found, strict=True)] == [""] * 6
        os.kill(before["worker-0"], signal.SIGSTOP)
        await server.wait_for_another("worker-0", before["worker-0"])
        assert (await client.run("greedy", input="ab"))["status"] == "exited"
        assert server.log.read_text().count("has said nothing for 3 s") == 2

    with_server(tmp_path / "data", hang, "--config", str(config))


@pytest.mark.slow
async def test_constrained_texts_are_the_same_after_kernel_deaths(tmp_path: Path) -> None:
    given = scenario("json_schema")["input"] | {"n": 12, "seed": 9}
    wasm = built(EXAMPLES / "json_schema").read_bytes()

    async def texts(server: RunningServer, client: AsyncClient, *, killed: bool) -> list[Any]:
        async def decoded() -> int:
            return int((await server.counters())["decode_tokens"])

        before = await decoded()
        started = await client.start("texts", input=given)
        if killed:
            while await decoded() < before + 60:  # noqa: ASYNC110 - the test has a time limit
                await asyncio.sleep(0.01)
            await kill_role(server, "kernel")
        result = await wait_for_end(client, started)
        assert (result["status"], result["exit_code"]) == ("exited", 0), result
        return list(result["messages"])

    with running_server(tmp_path, "--model", "tiny") as server:
        async with server.client() as client:
            await client.programs.upload(wasm, name="texts")
            wanted = await texts(server, client, killed=False)
            assert await texts(server, client, killed=True) == wanted
    assert len(wanted) == 12
    for message in wanted:
        jsonschema.validate(json.loads(message)["value"], given["schema"])
