"""The lineage of one file.

`lineage` covers the file's first entries; the others are linear behind it, and computed with the
file's adapter, which methods get. When the whole history is needed, their tokens and positions are
recorded in a span that grows with the file. Forks share it, and so do the trails of files that take
entries from this one.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from mypy_extensions import mypyc_attr

from symphony_kernel.executor.base import Int32, UInt32
from symphony_kernel.kvfs.lineage.book import KeptTrail, Lineage, LineageBook
from symphony_kernel.kvfs.lineage.spans import Span, Trail

Read: TypeAlias = Callable[[int, int], tuple[UInt32, Int32]]  # (first, n) -> tokens, positions


@mypyc_attr(allow_interpreted_subclasses=True)
class Origins:
    """The lineage of one file of `tenant`."""

    __slots__ = ("_book", "_recorded", "_span", "_tenant", "lineage")

    def __init__(self, book: LineageBook, tenant: str) -> None:
        self._book = book
        self._tenant = tenant
        self.lineage: Lineage | None = None
        # The recorded entries behind the lineage are the span's first `_recorded` ones. It may have
        # more: those of a fork.
        self._span: Span | None = None
        self._recorded = 0

    @property
    def trail(self) -> Trail | None:
        """The trail of the first entries; None if all are linear."""
        return None if self.lineage is None else self.lineage.trail

    @property
    def lost(self) -> bool:
        """Whether some of the first entries cannot be recomputed."""
        return self.lineage is not None and self.lineage.kept.lost

    @property
    def scratch_pages(self) -> int:
        """Scratch pages for computing all of the lineage's spans at once."""
        return 0 if self.lineage is None else self.lineage.kept.scratch_pages

    def fork(self, tenant: str) -> "Origins":
        """Return the lineage for a file of `tenant` with the same entries."""
        fork = Origins(self._book, tenant)
        fork.lineage, fork._span, fork._recorded = self.lineage, self._span, self._recorded
        if self.lineage is not None:
            self.lineage.references += 1
        return fork

    def history(self, length: int, read: Read, adapter: str) -> Trail | None:
        """Return the trail of all `length` entries; `read` returns those not yet recorded."""
        trail = self.trail
        first = 0 if trail is None else trail.length
        count, span = length - first, self._span
        if not count:
            return trail
        other = span is None or span.adapter != adapter
        if span is None or other or (self._recorded < count and span.length != self._recorded):
            span = self._span = Span(trail, *read(first, count), adapter=adapter)
        elif self._recorded < count:
            span.grow(*read(first + self._recorded, count - self._recorded))
        self._recorded = count
        return Trail(trail, span, np.array([[0, count]]))

    def assess(self, trail: Trail | None, adapter: str) -> KeptTrail:
        return self._book.assess(self._tenant, trail, self.lineage, adapter=adapter)

    def may_add(self, spans: int, entries: int) -> bool:
        """Whether so many more spans and entries would be kept."""
        old = self.lineage
        if old is not None:
            spans, entries = spans + old.kept.spans, entries + old.kept.entries
        return self._book.within(self._tenant, spans, entries, old)

    def set_trail(
        self,
        trail: Trail | None,
        adapter: str,
        keep: bool = False,
        kept: KeptTrail | None = None,
    ) -> None:
        """Replace the lineage by a trail of all entries, `keep` past any bound.

        `kept` is the result of `assess` for it, if that is known.
        """
        kept = kept or self._book.assess(
            self._tenant, trail, self.lineage, keep=keep, adapter=adapter
        )
        self.close()
        self.lineage = self._book.open(self._tenant, kept)
        self._span, self._recorded = None, 0
        if self.lineage is None and trail is not None and trail.before is None and trail.linear:
            self._span, self._recorded = trail.span, trail.length  # shared with other files

    def truncate(self, length: int, adapter: str) -> None:
        trail = self.trail
        first = 0 if trail is None else trail.length
        if length < first:
            assert trail is not None
            self.set_trail(trail.cut(length), adapter, keep=True)  # it has no new span
        elif length < first + self._recorded:
            self._recorded = length - first

    def close(self) -> None:
        if self.lineage is not None:
            self._book.close(self.lineage)
            self.lineage = None
