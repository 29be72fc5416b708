"""Hostile scripts, each next to a neighbour, in the real worker: they end, and nothing is left."""

import asyncio
from pathlib import Path

from symphony import AsyncClient

from tests.hostile.guests.scripts import SCRIPTS, Script
from tests.support.gateway.system import SystemRig, with_system
from tests.support.run_by import run_by

HARNESS = b"""
import * as symphony from "symphony";
const { constructor } = async () => {};
export default (body) =>
  constructor(...Object.keys(symphony), body)(...Object.values(symphony));
"""
NEIGHBOUR = b"export default () => [3, 1, 2].sort().join()"
TOGETHER = 8
LIMITS = {"cpu_ms": 100, "memory_bytes": 16 << 20, "wall_ms": 20_000, "children": 3}


async def check(client: AsyncClient, script: Script) -> str:
    """Run a script and a neighbour; return what is wrong, or nothing."""
    hostile = asyncio.create_task(client.run("hostile", script.body, limits=LIMITS))
    neighbour = await client.run("neighbour")
    assert neighbour["output"] == "1,2,3"
    run = await hostile
    said = run["output"] + run["reason"]
    ended = {script.status} if script.status != "any" else {"exited", "trapped", "killed"}
    if run["status"] in ended and script.says in said:
        return ""
    return f"{script.tries}: {run['status']}, {said[:300]!r}"


@run_by(with_system, "tmp_path")
async def test_hostile_scripts_end_and_leave_nothing(
    system: SystemRig, client: AsyncClient, *, tmp_path: Path
) -> None:
    del tmp_path
    assert len(SCRIPTS) >= 50
    for name, source in (("hostile", HARNESS), ("neighbour", NEIGHBOUR)):
        await client.programs.upload(source, name, "text/javascript")
    free = system.kernel.statistics()["pages_free"]
    wrong: list[str] = []
    for begin in range(0, len(SCRIPTS), TOGETHER):
        some = SCRIPTS[begin : begin + TOGETHER]
        wrong += await asyncio.gather(*(check(client, script) for script in some))
    assert [each for each in wrong if each] == []
    await asyncio.sleep(0.05)
    assert not system.worker.instances
    assert system.kernel.statistics()["pages_free"] == free
