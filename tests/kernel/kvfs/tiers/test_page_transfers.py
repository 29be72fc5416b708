"""What the device owes: one batch as long as a batch's own order is the order asked for."""

import numpy as np
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


def test_copy_of_a_loaded_page_is_in_a_later_batch() -> None:
    for source, destination in ((5, 3), (3, 5)):
        made = transfers()
        made.load(numbers(1), numbers(5))
        made.copy(entry(source), entry(destination))
        assert kinds(made.take()) == ["l", "c"]


def test_save_of_a_written_page_is_in_a_later_batch() -> None:
    made = transfers()
    made.copy(entry(2), entry(3))
    made.save(numbers(3), numbers(0))
    made.load(numbers(4), numbers(6))
    made.save(numbers(6), numbers(2))
    assert kinds(made.take()) == ["c", "sl", "s"]


def test_host_slot_is_read_before_it_is_written_again() -> None:
    made = transfers()
    made.load(numbers(1), numbers(5))
    made.save(numbers(2), numbers(1))
    made.save(numbers(3), numbers(1))
    assert kinds(made.take()) == ["l", "s", "s"]


def test_two_loads_of_a_frame_keep_their_order() -> None:
    made = transfers()
    made.load(numbers(1), numbers(5))
    made.load(numbers(2), numbers(5))
    assert kinds(made.take()) == ["l", "l"]


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
