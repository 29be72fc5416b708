"""The sizes of graphs. What they compute is tested with the network (`test_network.py`)."""

from itertools import pairwise

import pytest
from symphony_kernel.executor.cuda.graphs import LADDER, ladder
from symphony_kernel.protocol.limits import STEP_ROWS_MAX


def test_each_step_that_only_decodes_has_a_graph() -> None:
    assert LADDER[-1] == STEP_ROWS_MAX


@pytest.mark.parametrize("rows", [1, 3, 64, 256, 300, 512, 1024])
def test_ladder_ends_at_the_largest_step_and_pads_by_less_than_half(rows: int) -> None:
    sizes = ladder(rows)
    assert sizes[0] == 1
    assert sizes[-1] == rows
    assert all(small < large <= 2 * small for small, large in pairwise(sizes))
