"""What one file knows of where its entries come from; most files never need to be asked.

`lineage` covers the file's first entries; the others are linear behind it. When somebody asks for
the whole history, tokens and positions of these are written down in a span that grows with the
file. Forks share it, and so do the trails of files that take entries from this one.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from mypy_extensions import mypyc_attr

from symphony_kernel.executor.base import Int32, UInt32
from symphony_kernel.kvfs.lineage.book import Lineage, LineageBook, Verdict
from symphony_kernel.kvfs.lineage.spans import Span, Trail

Read: TypeAlias = Callable[[int, int], tuple[UInt32, Int32]]  # (first entry, n) -> what they hold


@mypyc_attr(allow_interpreted_subclasses=True)
class Origins:
    """Where the entries of one file of `tenant` come from."""

    __slots__ = ("_book", "_span", "_tenant", "_told", "lineage")

    def __init__(self, book: LineageBook, tenant: str) -> None:
        self._book = book
        self._tenant = tenant
        self.lineage: Lineage | None = None
        # The entries behind the lineage, so far as they are written down: the span's first ones. It
        # may have more: those of a fork.
        self._span: Span | None = None
        self._told = 0

    @property
    def trail(self) -> Trail | None:
        """The trail of the first entries; None: all are linear."""
        return None if self.lineage is None else self.lineage.trail

    @property
    def lost(self) -> bool:
        """Whether some of the first entries cannot be computed again."""
        return self.lineage is not None and self.lineage.kept.lost

    @property
    def benches(self) -> int:
        """Pages that it would take to compute all of the lineage's spans at once beside it."""
        return 0 if self.lineage is None else self.lineage.kept.benches

    def fork(self, tenant: str) -> "Origins":
        """Return the same for a file with the same entries, of whatever tenant."""
        fork = Origins(self._book, tenant)
        fork.lineage, fork._span, fork._told = self.lineage, self._span, self._told
        if self.lineage is not None:
            self.lineage.references += 1
        return fork

    def history(self, length: int, read: Read) -> Trail | None:
        """Return the trail of all `length` entries; `read` tells what is not written down yet."""
        trail = self.trail
        first = 0 if trail is None else trail.length
        count, span = length - first, self._span
        if not count:
            return trail
        if span is None or (self._told < count and span.length != self._told):
            span = self._span = Span(trail, *read(first, count))
        elif self._told < count:
            span.grow(*read(first + self._told, count - self._told))
        self._told = count
        return Trail(trail, span, np.array([[0, count]]))

    def judge(self, trail: Trail | None) -> Verdict:
        """Return what would be kept of a trail of all entries."""
        return self._book.judge(self._tenant, trail, self.lineage)

    def may_grow(self, spans: int, entries: int) -> bool:
        """Whether so many spans and entries more would be kept, whatever they are."""
        old = self.lineage
        if old is not None:
            spans, entries = spans + old.kept.spans, entries + old.entries
        return self._book.within(self._tenant, spans, entries, old)

    def become(
        self, trail: Trail | None, keep: bool = False, verdict: Verdict | None = None
    ) -> None:
        """Take over a trail of all entries; `keep` it past any bound; `verdict`: `judge`'s."""
        verdict = verdict or self._book.judge(self._tenant, trail, self.lineage, keep=keep)
        self.close()
        self.lineage = self._book.open(self._tenant, verdict)
        self._span, self._told = None, 0
        if self.lineage is None and trail is not None and trail.before is None and trail.linear:
            self._span, self._told = trail.span, trail.length  # known by this span elsewhere, too

    def truncate(self, length: int) -> None:
        """Forget the entries from `length` on."""
        trail = self.trail
        first = 0 if trail is None else trail.length
        if length < first:
            assert trail is not None
            self.become(trail.cut(length), keep=True)  # it has no span that it had not before
        elif length < first + self._told:
            self._told = length - first

    def close(self) -> None:
        """Let go of the lineage."""
        if self.lineage is not None:
            self._book.close(self.lineage)
            self.lineage = None
