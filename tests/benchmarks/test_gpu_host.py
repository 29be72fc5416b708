"""The benchmark of the host's cost: its steps are those that it says, and all is accounted for."""

import pytest

from benchmarks.gpu.host import KINDS, measure


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_step_is_measured(kind: str) -> None:
    taken = measure(kind, 2, 12)
    split = taken.split()
    assert taken.steps >= 3
    assert split["prepare"] > 0
    assert split["device"] > 0
    assert split["all"] == pytest.approx(split["loop"] + split["prepare"] + split["device"])
    if kind == "chain":
        assert taken.rows == 2 * taken.steps
    elif kind == "mixed":
        assert taken.rows > 2 * taken.steps, "the rows that decode, and a chunk at least"
