"""Page tables: growing them, and which entries lie in pages as they would in another table."""

from typing import Final

import numpy as np
import numpy.typing as npt

from symphony_kernel.executor.base import Int32, Int64
from symphony_kernel.kvfs.pages.pool import page_count
from symphony_kernel.protocol.limits import PAGE_TOKENS

Bool = npt.NDArray[np.bool_]
TABLE_PAGES_MIN: Final = 4
OFFSETS: Final[Int64] = np.arange(PAGE_TOKENS, dtype=np.int64)


def grown(table: Int32, used: int, count: int) -> Int32:
    """Return a table of at least `count` with what is used of this one."""
    grown = np.empty(max(count, 2 * len(table), TABLE_PAGES_MIN), np.int32)
    if used:
        grown[:used] = table[:used]
    return grown


def cut(table: Int32, count: int) -> Int32:
    """Return a table of its own of the first `count`, with room for a few."""
    return table[: max(count, TABLE_PAGES_MIN)].copy()


def continues(positions: Int32, start: int) -> bool:
    """Say whether positions ([n], n > 0) are start, start + 1, .."""
    if len(positions) == 1:
        return bool(positions[0] == start)
    return np.array_equal(positions, np.arange(start, start + len(positions)))


def alike_pages(entries: Int64, run: bool = False) -> Bool:
    """Say for each PAGE_TOKENS of `entries` whether they are the beginning of a source page.

    `run`: they follow one another.
    """
    count = page_count(len(entries))
    if not count:
        return np.zeros(0, np.bool_)
    if run:
        return np.full(count, entries.item(0) % PAGE_TOKENS == 0)
    rows = np.empty((count, PAGE_TOKENS), np.int64)
    flat = rows.reshape(-1)
    flat[: len(entries)] = entries
    missing = len(flat) - len(entries)
    # What the last page lacks goes on as it began, so that only real entries decide.
    flat[len(entries) :] = entries[-1] + 1 + np.arange(missing)
    alike: Bool = (rows[:, 0] % PAGE_TOKENS == 0) & (rows == rows[:, :1] + OFFSETS).all(axis=1)
    return alike


def pages_copied(entries: Int64, filling: int) -> Int64:
    """Return the places ([n], distinct) of the pages that entries ([c]) are copied from.

    They come behind so many entries of a page; all others are shared.
    """
    head = min(len(entries), PAGE_TOKENS - filling) if filling else 0
    rest = entries[head:]
    copied = np.repeat(~alike_pages(rest), PAGE_TOKENS)[: len(rest)]
    pages: Int64 = np.unique(np.concatenate((entries[:head], rest[copied])) // PAGE_TOKENS)
    return pages
