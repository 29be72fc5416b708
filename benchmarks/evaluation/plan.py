"""What is measured: which applications, how many at once, how far away, in which order."""

from dataclasses import dataclass

from benchmarks.evaluation.cells import Cell
from benchmarks.evaluation.systems import Memory
from benchmarks.evaluation.tasks import APPLICATIONS

RETRIEVAL = {"single": 1, "composed": 4}  # documents of a question
NAMES = (*APPLICATIONS, *RETRIEVAL)
DEFAULT = ("completion", "react", "swarm", "got", "single", "composed")
AGENTS_MEMORY = Memory(tokens=65_536, slots=32, context=2_048)
RETRIEVAL_MEMORY = Memory(tokens=24_576, slots=20, context=1_280)
_QUESTIONS = {"single": (24, 6), "composed": (6, 2)}  # at least, and a stream


@dataclass(frozen=True, slots=True)
class Group:
    """Applications whose servers have the same memory, so that they are started once."""

    memory: Memory
    applications: tuple[str, ...]


def groups(names: tuple[str, ...]) -> list[Group]:
    """Return what is measured on the same servers.

    Raises:
        ValueError: A name is no application's.
    """
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise ValueError(f"no such application: {', '.join(unknown)}; there are {', '.join(NAMES)}")
    agents = tuple(name for name in NAMES if name in names and name in APPLICATIONS)
    documents = tuple(name for name in NAMES if name in names and name in RETRIEVAL)
    found = (Group(AGENTS_MEMORY, agents), Group(RETRIEVAL_MEMORY, documents))
    return [group for group in found if group.applications]


def cells(group: Group, concurrencies: tuple[int, ...], round_trips: tuple[int, ...]) -> list[Cell]:
    """Return a group's cells, nearest clients first."""
    return [
        Cell(application, concurrency, round_trip)
        for round_trip in round_trips
        for application in group.applications
        for concurrency in concurrencies
    ]


def count(cell: Cell, quick: bool) -> int:
    """Return how many applications a cell runs: at least one for each stream."""
    least, each = _QUESTIONS.get(cell.application, (2, 1))
    if cell.application == "completion":
        least, each = 4, 2
    if quick:
        return max(cell.concurrency, least // 2)
    return max(cell.concurrency * each, least)
