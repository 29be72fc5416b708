"""Host calls from wherever a hostile program makes them: early, deep, at the edges."""

import pytest

from tests.hostile.cases import meet
from tests.hostile.guests.crossings import CROSSINGS
from tests.support.worker.rig import Rig, rigged


@pytest.mark.parametrize("name", CROSSINGS)
def test_it_ends_as_it_must_wherever_it_calls_from(name: str) -> None:
    async def test(rig: Rig) -> None:
        await meet(rig, CROSSINGS[name])

    rigged(test, seconds=60)
