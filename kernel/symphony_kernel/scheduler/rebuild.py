"""Rebuilds: entries of a file whose K and V are nowhere any more, computed again from its tokens.

A rebuild is a work of its own in front of the pred that needs it: rows without results, in the same
quanta and at the same price as any prompt, for the LIP whose pred it is. It is no pred: it appends
nothing and answers nobody.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from symphony_kernel.executor.base import Int32, UInt32
from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.limits import PAGE_TOKENS
from symphony_kernel.protocol.options import Get, PredOptions
from symphony_kernel.scheduler.work import Work, WorkFile

_NOTHING: Final = PredOptions(get=Get.NONE)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Some entries to be computed at once, each from all before it; `pages` are theirs ([n])."""

    start: int
    tokens: UInt32
    positions: Int32
    pages: Int32


class TokenFile(WorkFile, Protocol):
    """A file that can say what its entries are made of."""

    @property
    def pages(self) -> Int32:
        """The page table, reserved pages included (a view)."""

    def rebuild_table(self, entries: int) -> Int32:
        """Return the frames of the first `entries` entries (a copy), of hollow pages, too."""

    def read_tokens(self, start: int, n: int) -> UInt32:
        """Return the tokens of entries start to start + n ([n], a copy)."""

    def read_positions(self, start: int, n: int) -> Int32:
        """Return the positions of entries start to start + n ([n], a copy)."""


class Past:
    """A file as it was when it had `length` entries, as a `WorkFile` whose next ones exist again.

    `gone` is called when the rebuild ends before its time.
    """

    def __init__(self, file: TokenFile, length: int, gone: Callable[[], None]) -> None:
        self._file = file
        self._gone = gone
        self.length = length
        self.computed_at = 0.0

    @property
    def error(self) -> Errno | None:
        """The file's."""
        return self._file.error

    def pages_needed(self, n: int) -> int:  # noqa: ARG002 - as every WorkFile
        """Return 0: the pages are there, only what lies in them is not."""
        return 0

    def reserve(self, n: int) -> None:
        """Do nothing: there is room."""

    def block_table(self, entries: int) -> Int32:
        """Return the frames of the first `entries` entries."""
        return self._file.rebuild_table(entries)

    def commit(
        self, tokens: UInt32, positions: Int32, parents: Sequence[int] | None = None
    ) -> None:
        """Do nothing: the entries existed all the time."""

    def unreserve(self) -> None:
        """The rebuild was cancelled, or has failed."""
        self._gone()


def stretches(file: TokenFile, length: int, blank: "np.typing.NDArray[np.bool_]") -> list[Stretch]:
    """Return what is to be computed again of a plain file's first `length` entries, in order.

    `blank` ([pages of the pool]) says in which pages nothing lies.
    """
    pages = file.pages[: -(-length // PAGE_TOKENS)]
    found: list[Stretch] = []
    for first, end in _runs(blank[pages]):
        start = first * PAGE_TOKENS
        count = min(end * PAGE_TOKENS, length) - start
        tokens, positions = file.read_tokens(start, count), file.read_positions(start, count)
        found.append(Stretch(start, tokens, positions, pages[first:end].copy()))
    return found


def _runs(flags: "np.typing.NDArray[np.bool_]") -> Iterator[tuple[int, int]]:
    """Yield [start, end) of each run of true ones."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], flags, [False])).astype(np.int8)))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


def make_rebuild(
    target: Work,
    file: TokenFile,
    stretch: Stretch,
    done: Callable[[bytes | int], None],
    gone: Callable[[], None],
) -> Work:
    """Return the work that computes a stretch of its target's file again, for the same LIP."""
    return Work(
        instance=target.instance,
        root=target.root,
        tenant=target.tenant,
        seq=0,
        file=Past(file, stretch.start, gone),
        tokens=stretch.tokens,
        positions=stretch.positions,
        options=_NOTHING,
        done=done,
        weight=target.weight,
        reserved=True,
        rebuilds=True,
    )
