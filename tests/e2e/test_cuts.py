"""kill -9 of the kernel while a name is saved again and again: old or new, and nothing else."""

import asyncio
import os
import random
import signal
from pathlib import Path

import pytest

from tests.support.server.cuts import PATH, SAVER_WASM, Cutter
from tests.support.server.server import running_server

CUTS = 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1])
def test_durable_name_after_a_kernel_death_is_the_old_or_the_new_file(
    tmp_path: Path, seed: int
) -> None:
    """`benchmarks/cuts.py` makes twenty cuts."""

    async def cut(cutter: Cutter) -> None:
        async with cutter.server.client() as client:
            await client.programs.upload(SAVER_WASM, name="saver")
        for number in range(CUTS):
            await cutter.cut(number)

    with running_server(tmp_path, "--no-journal") as server:
        cutter = Cutter(server, random.Random(seed))
        asyncio.run(cut(cutter))
    assert len(cutter.cuts) == CUTS
    assert all(cut.good for cut in cutter.cuts), cutter.cuts
    assert cutter.cuts[-1].found > CUTS, "the program saved again and again"
    assert not list((tmp_path / "kv").rglob("*.partial"))
    assert not (tmp_path / "kv" / "broken").exists()


@pytest.mark.slow
async def test_saving_program_continues_through_a_kernel_death(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        async with server.client() as client:
            await client.programs.upload(SAVER_WASM, name="saver")
            run = await client.start("saver")
            told: list[int] = []
            enough = 5
            async for event in client.runs.events(run):
                if event.kind != "message":
                    continue
                told.append(int.from_bytes(event.message(), "little"))
                if len(told) == enough and enough < 15:
                    enough += 5
                    # Messages from before the last kill may be read before the next kernel is up.
                    await server.wait_until_ready()
                    os.kill((await server.pids())["kernel"], signal.SIGKILL)
                elif len(told) == enough:
                    await client.runs.cancel(run)
            ended = await client.runs.get(run)
            assert (ended["status"], ended["reason"]) == ("killed", "it was cancelled")
            assert told == list(range(1, len(told) + 1))
            assert (await client.kv.stat(PATH))["len"] - len(told) in (0, 1)
            counters = await server.wait_until_idle()
            assert counters["durable_changes_waiting"] == 0
            await client.kv.remove(PATH)
            assert (await server.counters())["files"] == 0
