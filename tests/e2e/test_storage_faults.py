"""Storage that fails under each acknowledged operation: what was acknowledged is there, once.

SYMPHONY_EVERY_FAULT=1 lets each operation meet each fault at each of its calls, kills among them,
in about half an hour; without it at the first six and every eighth from then on, and those
that are asked for rarely only a full disk.
"""

import asyncio
import errno
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.support.faults import operations as operations
from tests.support.faults.faults import Kind, Mode
from tests.support.faults.matrix import ERROR, FAULTS, FULL, SHORT, Cell, Fault, Make, Matrix
from tests.support.faults.operations import DIED, DONE, NOT_DONE, OPERATIONS, Operation

EVERY = bool(os.environ.get("SYMPHONY_EVERY_FAULT"))
OFTEN: tuple[Make, ...] = (
    operations.Upload, operations.Start, operations.End, operations.DeleteRun, operations.PutKv,
    operations.SaveKv,
)  # fmt: skip
MEET: dict[Fault, tuple[Make, ...]] = {
    # A client that waits for a program that saves waits for its end, too, which is not stored.
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
@pytest.mark.timeout(3600)  # the first test of a fault lets all operations meet it
@pytest.mark.parametrize(
    ("fault", "make"),
    [(fault, make) for fault, makes in MEET.items() for make in makes],
    ids=lambda value: value.name if isinstance(value, Fault) else value.__name__,
)
def test_acknowledged_operations_are_done_exactly_once(
    met: Callable[[Fault], list[Cell]], fault: Fault, make: Make
) -> None:
    mine = [cell for cell in met(fault) if type(cell.operation) is make]
    assert not [str(cell) for cell in mine if cell.wrong]


# --- The matrix itself ---------------------------------------------------------------------------
_FORGIVES_COMMITS = """
from symphony_runtime.gateway.storage.store import Store, _Failed

alone = Store._alone

def forgiving(self, operation):
    outcome = alone(self, operation)
    return None if isinstance(outcome, _Failed) else outcome

Store._alone = forgiving
"""
_FORGIVES_RENAMES = """
import contextlib, os

replace = os.replace

def forgiving(source, target):
    with contextlib.suppress(OSError):
        replace(source, target)

os.replace = forgiving
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("role", "bug", "kinds", "make"),
    [
        ("symphony_runtime.gateway", _FORGIVES_COMMITS, Kind.WRITE, operations.Start),
        ("symphony_kernel", _FORGIVES_RENAMES, Kind.NAME, operations.PutKv),
    ],
    ids=["gateway", "kernel"],
)
def test_planted_storage_bug_is_found(
    tmp_path: Path, role: str, bug: str, kinds: Kind, make: Make
) -> None:
    """A real server forgives its storage, and acknowledges what is not there."""
    matrix = Matrix(tmp_path / "planted", every=False, planted={role: bug})
    full = Fault("full", errno.ENOSPC, Mode.ON, kinds, FULL.refusals)
    met = asyncio.run(matrix.meet(full, [make]))
    assert any(cell.acknowledged and cell.wrong for cell in met)


class Exact(Operation):
    exact = True


@pytest.mark.parametrize(
    ("status", "state", "kills", "wrong"),
    [(200, DONE, False, False), (200, NOT_DONE, False, True), (200, "half", False, True),
     (503, NOT_DONE, False, False), (503, "half", False, True), (503, DONE, False, True),
     (0, DONE, True, False), (0, NOT_DONE, True, False), (0, "half", True, True),
     (200, NOT_DONE, True, True), (200, DIED, True, False), (200, DIED, False, True)],
)  # fmt: skip
def test_storage_checker_finds_each_kind_of_fault(
    status: int, state: str, kills: bool, wrong: bool
) -> None:
    cell = Cell(Exact.__new__(Exact), 1, "", status, kills=kills)
    cell.judge(state, "then")
    assert bool(cell.wrong) is wrong
