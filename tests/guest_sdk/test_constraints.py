"""Constraints in AssemblyScript, in a guest under a real worker and kernel; Rust's are examples."""

import asyncio
import re
from pathlib import Path

from tests.support.assemblyscript import compiled
from tests.support.kernel.constrained import assets
from tests.support.worker.rig import WorkerRig


async def test_constraint_is_used_and_closed_by_both_sdks(tmp_path: Path) -> None:
    program = compiled("tests/constraints.ts", tmp_path / "constraints.wasm")
    async with WorkerRig(assets=assets()) as rig:
        live = await rig.start(program, b"")
        result = await asyncio.wait_for(live.ended, 60)
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
