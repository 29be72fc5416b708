"""Page transfers: one batch, as long as its own order equals the order of the requests."""

import numpy as np
import pytest
from symphony_kernel.executor.base import Batch, Int32, Int64
from symphony_kernel.kvfs.pages.pool import PagePool
from symphony_kernel.kvfs.tiers.page_transfers import PageTransfers
from symphony_kernel.protocol.limits import PAGE_TOKENS


def numbers(*given: int) -> Int32:
    return np.array(given, np.int32)


def entry(frame: int) -> Int64:
    return np.array([frame * PAGE_TOKENS], np.int64)


def transfers() -> PageTransfers:
    pool = PagePool(8)
    pool.page = numbers(*range(100, 108))  # page 100 is in frame 0, and so on
    return PageTransfers(pool, [])


def kinds(batches: list[Batch]) -> list[str]:
    return [
        "s" * (batch.saves is not None) + "c" * bool(batch.copies) + "l" * (batch.loads is not None)
        for batch in batches
    ]


def test_independent_transfers_are_one_batch() -> None:
    made = transfers()
    made.load(numbers(1), numbers(5))
    made.copy(entry(2), entry(3))
    made.save(numbers(4), numbers(0))
    (batch,) = made.take()
    assert kinds([batch]) == ["scl"]
    assert batch.note.saved.tolist() == [104]
    assert batch.note.loaded.tolist() == [105]
    assert (batch.note.sources.tolist(), batch.note.targets.tolist()) == ([102], [103])
    assert not made.pending
    assert made.take() == []


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        ([("load", 1, 5), ("copy", 5, 3)], ["l", "c"]),
        ([("load", 1, 5), ("copy", 3, 5)], ["l", "c"]),
        ([("copy", 2, 3), ("save", 3, 0), ("load", 4, 6), ("save", 6, 2)], ["c", "sl", "s"]),
        ([("load", 1, 5), ("save", 2, 1), ("save", 3, 1)], ["l", "s", "s"]),
        ([("load", 1, 5), ("load", 2, 5)], ["l", "l"]),
    ],
    ids=["copy of a loaded page", "copy over a loaded page", "save of a written page",
         "save over a host slot that is read", "two loads of a frame"],
)  # fmt: skip
def test_dependent_transfers_are_in_later_batches(
    requests: list[tuple[str, int, int]], expected: list[str]
) -> None:
    made = transfers()
    for what, source, target in requests:
        if what == "copy":
            made.copy(entry(source), entry(target))
        else:
            getattr(made, what)(numbers(source), numbers(target))
    assert kinds(made.take()) == expected


def test_poison_covers_only_frames_that_are_still_free() -> None:
    made = transfers()
    made._pool.page[[1, 2]] = -1
    made.poison.append(numbers(1, 2))
    made.poison.append(numbers(2, 3))
    assert made.pending
    assert not made.urgent
    (batch,) = made.take()
    assert batch.poison is not None
    assert batch.poison.tolist() == [1, 2]
