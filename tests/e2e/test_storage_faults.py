"""Storage that fails under each acknowledged operation: what was acknowledged is there, once.

SYMPHONY_EVERY_FAULT=1 lets each operation meet each fault at each of its calls, kills among them,
in about a quarter of an hour; without it at the first six and every eighth from then on, and those
that are asked for rarely only a full disk.
"""

import asyncio
import os
from collections.abc import Callable
from functools import cache

import pytest

from tests.support import fault_operations as operations
from tests.support.fault_matrix import ERROR, FAULTS, FULL, SHORT, Cell, Fault, Make, Matrix
from tests.support.fault_operations import DONE, NOT_DONE, OPERATIONS, Operation

EVERY = bool(os.environ.get("SYMPHONY_EVERY_FAULT"))
OFTEN: tuple[Make, ...] = (
    operations.Upload, operations.Start, operations.End, operations.DeleteRun, operations.PutKv,
    operations.SaveKv,
)  # fmt: skip
MEET: dict[Fault, tuple[Make, ...]] = {
    # Whoever waits for a program that saves waits for its end, too, which is not stored.
    FULL: tuple(make for make in OPERATIONS if make is not operations.SaveKv),
    ERROR: OFTEN,
    SHORT: OFTEN,
}
if EVERY:
    MEET = dict.fromkeys(FAULTS, OPERATIONS)


@pytest.fixture(scope="module")
def met(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Fault], list[Cell]]:
    """What became of every operation that met a fault."""

    @cache
    def of(fault: Fault) -> list[Cell]:
        matrix = Matrix(tmp_path_factory.mktemp("faults") / fault.name, every=EVERY)
        return asyncio.run(matrix.meet(fault, MEET[fault]))

    return of


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "make"),
    [(fault, make) for fault, makes in MEET.items() for make in makes],
    ids=lambda value: value.name if isinstance(value, Fault) else value.__name__,
)
def test_what_is_acknowledged_is_there_once(
    met: Callable[[Fault], list[Cell]], fault: Fault, make: Make
) -> None:
    mine = [cell for cell in met(fault) if type(cell.operation) is make]
    assert not [str(cell) for cell in mine if cell.wrong]


class Exact(Operation):
    exact = True


@pytest.mark.parametrize(
    ("status", "state", "wrong"),
    [(200, DONE, False), (200, NOT_DONE, True), (200, "half", True), (503, NOT_DONE, False),
     (503, "half", True), (503, DONE, True), (0, DONE, False), (0, "half", True)],
)  # fmt: skip
def test_the_checker_finds(status: int, state: str, wrong: bool) -> None:
    cell = Cell(Exact.__new__(Exact), 1, "", status)
    cell.judge(state, "then")
    assert bool(cell.wrong) is wrong
