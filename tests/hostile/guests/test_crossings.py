"""Calls cross alike in C and through ctypes, wherever a hostile program makes them."""

import pytest
from symphony_runtime.engine.hostcalls.compiled_calls import CompiledHostCalls

from tests.hostile.cases import meet
from tests.hostile.guests.crossings import CROSSINGS
from tests.support.worker import hostcalls
from tests.support.worker.rig import WorkerRig, with_worker


def both() -> list[CompiledHostCalls | None]:
    """Both ways, where there is a compiler."""
    found = hostcalls.found()
    return [None] if found is None else [None, found]


@pytest.mark.parametrize("name", CROSSINGS)
def test_hostile_pointer_ends_alike_through_ctypes_and_c(name: str) -> None:
    async def test(rig: WorkerRig) -> None:
        await meet(rig, CROSSINGS[name])

    for crossing in both():
        with_worker(test, seconds=60, crossing=crossing)
