"""Every guest of the tables alone, with a neighbour that must not notice."""

import pytest

from tests.hostile.cases import Guest, meet
from tests.hostile.guests.bombs import BOMBS
from tests.hostile.guests.crossings import CROSSINGS
from tests.hostile.guests.endings import ENDINGS
from tests.hostile.guests.loops import LOOPS
from tests.support.worker.rig import WorkerRig

TOPICS = {"loops": LOOPS, "bombs": BOMBS, "endings": ENDINGS, "crossings": CROSSINGS}
GUESTS: dict[str, Guest] = {
    f"{topic}: {name}": guest for topic, guests in TOPICS.items() for name, guest in guests.items()
}


@pytest.mark.parametrize("name", GUESTS)
async def test_hostile_guest_ends_as_expected_and_leaves_nothing(rig: WorkerRig, name: str) -> None:
    await meet(rig, GUESTS[name])
