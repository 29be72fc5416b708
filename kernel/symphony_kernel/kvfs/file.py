"""KV files: ordered entries in shared pages, copied when somebody writes.

    length = 21, a fork of it shares both pages; then one side appends an entry:

    before  [ page 4: 16 entries ][ page 7: 5 entries, 11 free slots ]   both files, each held twice
    after   [ page 4: 16 entries ][ page 7: 5 entries ]                  the other file
            [ page 4 ]            [ page 9: copies of 5, new entry ]     the one that wrote first

The other side finds page 7 held once when it writes, and writes in place. Nothing below checks what
a guest says: syscalls have done that, and what is wrong here is a bug of ours.

`reserve` makes room, a step computes into it, `commit` says that the entries exist. While a pred
is between the two, no other operation touches the file (see `file_queue`).
"""

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import numpy as np
from mypy_extensions import mypyc_attr

from symphony_kernel.executor.base import Int32, Int64, UInt32
from symphony_kernel.kvfs.lineage.book import Verdict
from symphony_kernel.kvfs.lineage.origins import Origins
from symphony_kernel.kvfs.lineage.planning import Step, plan
from symphony_kernel.kvfs.lineage.spans import Trail, is_branch, is_run, planted_trail
from symphony_kernel.kvfs.name_tree import Name
from symphony_kernel.kvfs.pages.block_table import (
    OFFSETS,
    alike_pages,
    continues,
    cut,
    grown,
    pages_copied,
)
from symphony_kernel.kvfs.pages.pool import NOWHERE, page_count
from symphony_kernel.kvfs.quotas import TenantUsage
from symphony_kernel.kvfs.storage import Storage
from symphony_kernel.kvfs.tiers.advice import NO_ADVICE
from symphony_kernel.kvfs.tiers.tiers import Tier
from symphony_kernel.protocol.errno import Errno, LimitError, SyscallError
from symphony_kernel.protocol.limits import PAGE_TOKENS

_STALE: Final = -1  # of `_moved`: the frames must be looked up
_NO_PAGES: Int32 = np.empty(0, np.int32)
_NO_SLOTS: Int64 = np.empty(0, np.int64)


@mypyc_attr(allow_interpreted_subclasses=True)
class KVFile:
    """Entries of one file. `references` counts handles, names, grants and operations under way."""

    __slots__ = (
        "_absent", "_count", "_frames", "_moved", "_storage", "_table", "advice", "computed_at",
        "counted", "era", "error", "expires_ms", "generating", "length", "name",
        "number", "origins", "owner", "path", "plain", "queue", "ranked", "references", "root",
        "tenant", "texts", "unrecomputable",
    )  # fmt: skip

    def __init__(self, storage: Storage, tenant: str, owner: TenantUsage) -> None:
        self._storage = storage
        storage.made += 1
        self.number = storage.made  # never used again
        self._table: Int32 = _NO_PAGES
        self._count = 0  # pages in use of the table, reserved ones included
        # The frames of the table's pages as of `_moved`, and how many of them have none.
        self._frames: Int32 = _NO_PAGES
        self._moved = storage.pool.moved
        self._absent = 0
        self.tenant = tenant
        self.owner = owner
        self.length = 0
        # So many entries, from the first, stand at positions 0, 1, .. and were computed each from
        # all before it: their K and V depend on their tokens alone.
        self.plain = 0
        self.origins: Origins | None = None  # of entries computed otherwise; None: nobody asks
        self.references = 1
        self.counted = True  # in its tenant's quota of files
        self.error: Errno | None = None  # of the call that made it; its answer until it is closed
        self.generating = False  # a generation is in its queue: other calls hear EBUSY
        self.path = ""  # the name it was opened from or last saved under
        self.name: Name | None = None  # of one that stands in the tree of names
        self.expires_ms = 0  # Unix time; what it is saved under ends then; 0: never
        self.queue: OrderedDict[Any, None] | None = None  # a `FileQueue`, which knows files
        self.computed_at = 0.0  # the scheduler's: when its last pred ended
        self.root = 0  # the LIP whose pred was the last to be admitted
        self.advice = NO_ADVICE
        self.ranked = False  # the ranking's: it may have pages on the device
        self.era = 0  # the ranking's: when it was last used
        self.texts: dict[int, int] | None = None  # where constraints' begin, by their numbers
        self.unrecomputable = (
            False  # all its pages are, and will be: it cannot be computed again here
        )

    # -- What the batcher uses ------------------------------------------------------------------
    def pages_needed(self, n: int) -> int:
        """Return how many free pages `reserve(n)` would take."""
        length = self.length
        missing = (length + n + PAGE_TOKENS - 1) // PAGE_TOKENS - self._count
        shared = n and length % PAGE_TOKENS and self._shares_last_page()
        return (missing if missing > 0 else 0) + (1 if shared else 0)

    def reserve(self, n: int) -> None:
        """Make room for n entries after the present ones, in pages that only this file holds.

        Raises:
            SyscallError: ENOMEM (no free pages) or EDQUOT, and nothing has changed.
        """
        owner, length, pool = self.owner, self.length, self._storage.pool
        if owner.closed or length + n > owner.entries_allowed:
            self._allow_entries(n)
        within = length % PAGE_TOKENS
        if within and within + n <= PAGE_TOKENS and not pool.copies:  # as most have room
            page: int = self._table.item(length // PAGE_TOKENS)
            if pool.each_references[page] == 1:
                return
        needed = self.pages_needed(n)
        if pool.copies and n:
            self._write_last_page()
        if not needed:
            return
        # Before the allocation, for which the prefix cache may let go of that page.
        replaced = n > 0 and self._shares_last_page()
        if self._count + needed > self._storage.usable:
            raise SyscallError(Errno.ENOMEM, f"{self._count} pages, {needed} more")
        outgrows = self.origins is not None and self._outgrows(self._count + needed)
        unrecomputable = needed if self.unrecomputable or outgrows else 0
        if outgrows:
            unrecomputable += self._storage.ledger.untied(self.pages)
        pages = self._storage.allocate(self.owner.live(), needed, (self,), unrecomputable)
        if replaced:
            self._replace_last_page(int(pages[0]))
            pages = pages[1:]
        self._extend(pages)
        if outgrows:
            self.tie()
        if self._storage.observer is not None:
            self._storage.observer.reserved(self.number, n)

    def use_spare(self, frame: int, owner: object) -> bool:
        """Have the page that was reserved last lie in a spare frame of `owner`; return whether."""
        last = self._count - 1
        if not self._storage.pool.use_spare(frame, owner, int(self._table[last])):
            return False
        self._frames[last] = frame  # no row has been given that one yet
        return True

    def block_table(self, entries: int) -> Int32:
        """Return the frames of the first `entries` entries, reserved ones included (a view).

        All pages of the file must have frames. What is returned stays as it is: what the file does
        later, or where its pages go, changes another array.
        """
        pages = (entries + PAGE_TOKENS - 1) // PAGE_TOKENS
        assert pages <= self._count, "the table ends before these entries"
        if self._moved != self._storage.pool.moved:
            self._look_up()
        assert not self._absent, "a page of the table has no frame"
        return self._frames[:pages]

    def frame_of(self, entry: int) -> int:
        """Return the frame of an entry's page, as `block_table` has it."""
        if self._moved != self._storage.pool.moved:
            self._look_up()
        return int(self._frames.item(entry // PAGE_TOKENS))

    def absent_pages(self) -> Int32:
        """Return the pages that are not on the device ([n]); a page may stand there twice.

        While there are any, nothing may be reserved, and no row may read the file.
        """
        pool = self._storage.pool
        if self._moved != pool.moved:
            self._look_up()
        return self.pages[pool.is_absent(self.pages)] if self._absent else _NO_PAGES

    def rebuild_table(self, entries: int) -> Int32:
        """Return the frames of the first `entries` entries (a copy): hollow pages have one."""
        frames: Int32 = self._storage.pool.frame[self._table[: page_count(entries)]]
        assert not len(frames) or frames.min() >= 0, "a page of the table has no frame"
        return frames

    @property
    def tier(self) -> Tier:
        """The slowest tier from which one of its pages has to come; DEVICE when none has."""
        return self._storage.tiers.worst_of(self.absent_pages())

    def commit(
        self, tokens: UInt32, positions: Int32, parents: Sequence[int] | None = None
    ) -> None:
        """Say that the reserved entries hold these tokens ([n], [n]): they exist now.

        `parents` ([n]): not each of them saw all before it.
        """
        n = len(tokens)
        start = self.length
        assert start + n <= self._count * PAGE_TOKENS, "committed without room"
        if parents is not None:
            self._plant(tokens, positions, np.array(parents, np.int32))
        elif n == 1:
            self.commit_one(tokens.item(), positions.item())
            return
        pool = self._storage.pool
        slots = self._page_slots(np.arange(start, start + n))
        pool.tokens[slots] = tokens
        pool.positions[slots] = positions
        if self.plain == start and parents is None and continues(positions, start):
            self.plain = start + n
        self.length = start + n

    def commit_one(self, token: int, position: int) -> None:
        """Say that the next reserved entry holds this token, as `commit` does."""
        start = self.length
        page, within = start // PAGE_TOKENS, start % PAGE_TOKENS
        assert page < self._count, "committed without room"
        self._storage.pool.write(self._table.item(page), within, token, position)
        if position == start and self.plain == start:
            self.plain = start + 1
        self.length = start + 1

    def unreserve(self) -> None:
        """Give back the room after the present entries."""
        count = page_count(self.length)
        if count < self._count:
            self._shrink(count)
            if self._storage.observer is not None:
                self._storage.observer.unreserved(self.number)

    # -- What it holds --------------------------------------------------------------------------
    @property
    def tokens(self) -> UInt32:
        """The entries' tokens ([length], a copy)."""
        return self.read_tokens(0, self.length)

    @property
    def positions(self) -> Int32:
        """The entries' positions ([length], a copy)."""
        return self.read_positions(0, self.length)

    @property
    def pages(self) -> Int32:
        """The page table, reserved pages included (a view)."""
        return self._table[: self._count]

    @property
    def shared_pages(self) -> int:
        """Pages that another file (or this one, a second time) holds too."""
        pool, cache = self._storage.pool, self._storage.cache
        return int((pool.references[self.pages] - cache.references[self.pages] > 1).sum())

    def page_tokens(self, pages: int) -> bytes:
        """Return the tokens of the first whole pages (u32, as they lie)."""
        tokens = self._storage.pool.tokens.reshape(-1, PAGE_TOKENS)[self._table[:pages]]
        return tokens.tobytes()

    def read_tokens(self, start: int, n: int) -> UInt32:
        """Return the tokens of entries start to start + n ([n], a copy)."""
        return self._read(start, n)[0]

    def read_positions(self, start: int, n: int) -> Int32:
        """Return the positions of entries start to start + n ([n], a copy)."""
        return self._read(start, n)[1]

    def slots(self, entries: Int64) -> Int64:
        """Return the device's slots of entries ([c] indices, reserved ones included)."""
        return self._storage.pool.device_slots(self._page_slots(entries))

    def _page_slots(self, entries: Int64) -> Int64:
        """Return the slots of entries in their pages ([c] indices, reserved ones included)."""
        pages = self._table[entries // PAGE_TOKENS].astype(np.int64)
        return pages * PAGE_TOKENS + entries % PAGE_TOKENS

    # -- Where it comes from --------------------------------------------------------------------
    @property
    def lineage(self) -> Trail | None:
        """The trail of its first entries; None where each was computed from exactly those before.

        For whoever keeps it (`lineage.pack`): tokens and positions say how all others were.
        """
        return None if self.origins is None else self.origins.trail

    @property
    def recomputable(self) -> bool:
        """Whether all of it can be computed again, so that its tokens are enough to keep it."""
        return self.origins is None or not self.origins.lost

    def restore_lineage(self, trail: Trail | None) -> None:
        """Take up what was kept of a file with these entries (`lineage.unpack`)."""
        assert trail is None or trail.length <= self.length
        if trail is not None or self.origins is not None:
            self._known().become(trail)

    def history(self) -> Trail | None:
        """Return the trail of all its entries; None of an empty file."""
        return self._known().history(self.length, self._read)

    def plan(self, absent: Int64) -> list[Step]:
        """Return what computes absent entries ([c] indices) again (see `lineage.planning`).

        Of a file without lineage each step is in place: a row for each stretch of absent entries.

        Raises:
            NotRecomputableError: some of them depend on what is lost.
        """
        return plan(self.history(), absent)

    # -- What cannot be computed again ----------------------------------------------------------
    def would_be_tied(self, trail: Trail | None, pages: int) -> bool:
        """Whether it could not be computed again, with this trail and so many pages."""
        if trail is None:
            return False
        return not self._known().judge(trail).fits(pages, self._storage.usable)

    def prepare_tree(self, tokens: UInt32, parents: Sequence[int]) -> None:
        """Tie the file if it could not be computed again once this tree ([n]) has been planted.

        Raises:
            SyscallError: EDQUOT, and nothing has changed.
        """
        pages, storage = page_count(self.length + len(tokens)), self._storage
        ties = not self.unrecomputable and self._would_tie(tokens, parents, pages)
        allowed = partial(self._allow_tied, _NO_PAGES, max(pages - self._count, 0))
        storage.decide(allowed if ties else _anything)
        if ties:
            self.tie()

    def _would_tie(self, tokens: UInt32, parents: Sequence[int], pages: int) -> bool:
        known, entries = self._known(), self.length + len(tokens)
        if known.may_grow(2, entries) and known.benches + 4 * pages < self._storage.usable:
            return False  # whatever it depends on
        if is_branch(parents):
            return False
        above = np.array(parents, np.int32)
        planted = planted_trail(self.history(), tokens, tokens.astype(np.int32), above)
        return self.would_be_tied(planted, pages)

    def tie(self) -> None:
        """Nothing but copies brings back what it holds, and what it will: charge that."""
        assert not self.unrecomputable
        self.unrecomputable = True
        self._storage.ledger.tie(self.owner.root, self.pages)

    def _loosen(self) -> None:
        if self.unrecomputable:
            self.unrecomputable = False
            self._storage.ledger.loosen(self.pages)

    def _allow_tied(self, more: Int32, new: int) -> None:
        """Check that it may be tied with these pages ([n]) beside its own and `new` fresh ones.

        Raises:
            SyscallError: EDQUOT; likewise while one of them is nowhere, and cannot be kept.
        """
        pages, ledger = np.concatenate((self.pages, more)), self._storage.ledger
        if self._storage.tiers.worst_of(pages) is Tier.TOKENS:
            raise SyscallError(Errno.EDQUOT, "it comes from too many calls, and is not all there")
        ledger.allow_tied(self.owner, ledger.untied(pages) + new)

    def _outgrows(self, pages: int) -> bool:
        """Whether it cannot be computed again with so many pages, and could so far."""
        lineage = None if self.origins is None else self.origins.lineage
        return (
            lineage is not None
            and not self.unrecomputable
            and not lineage.kept.fits(pages, self._storage.usable)
        )

    def _known(self) -> Origins:
        if self.origins is None:
            self.origins = Origins(self._storage.lineages, self.tenant)
        return self.origins

    def _read(self, start: int, n: int) -> tuple[UInt32, Int32]:
        slots, pool = self._page_slots(np.arange(start, start + n)), self._storage.pool
        return pool.tokens[slots], pool.positions[slots]

    def _plant(self, tokens: UInt32, positions: Int32, parents: Int32) -> None:
        """Write down the tree that comes behind the entries."""
        if is_branch(parents):
            return
        # What may become lost is tied since `prepare_tree`. Others of the tenant's may have taken
        # room since: a bound that may be passed by what is under way.
        planted = planted_trail(self.history(), tokens.copy(), positions.copy(), parents)
        self._known().become(planted, keep=not self.unrecomputable)

    def _inherit(
        self, source: "KVFile", n: int, begins: bool, trail: Trail | None, verdict: Verdict | None
    ) -> None:
        """Write down that n entries of `source` have come; `begins`: as they begin there."""
        if not begins:
            self._known().become(trail, verdict=verdict)
        elif source.origins is not None:
            self.origins = source.origins.fork(self.tenant)
            self.origins.truncate(n)

    # -- What changes it ------------------------------------------------------------------------
    def share(self, source: "KVFile") -> None:
        """Become a fork of `source`; this file must be empty."""
        assert self._count == 0
        pages = source.pages[: page_count(source.length)]
        self._storage.pool.retain(pages)
        self._extend(pages)
        self.length = source.length
        self.plain = source.plain
        if source.unrecomputable:
            self.tie()
        if source.origins is not None:
            self.origins = source.origins.fork(self.tenant)
        self.texts = source.texts and dict(source.texts)
        self.computed_at = source.computed_at  # of a stream that goes on in a fork
        self.era, self.root = source.era, source.root

    def adopt(self, pages: Int32) -> None:
        """Become a file of whole pages of the prefix cache ([n]); this file must be empty.

        Raises:
            SyscallError: ENOMEM or EDQUOT, and nothing has changed.
        """
        assert self._count == 0
        entries = len(pages) * PAGE_TOKENS
        self._allow_entries(entries)
        self._storage.adopt(self.owner.live(), pages)
        self._extend(pages)
        self.length = self.plain = entries

    def append(self, source: "KVFile", entries: Int64) -> int:
        """Append entries of `source` ([c] indices, which may be this file's own); how many copied.

        Whole pages are shared where they line up: where a page of this file would begin with the
        first entry of a source page and go on with those that follow it. All else is copied.

        Raises:
            SyscallError: ENOMEM or EDQUOT, and nothing has changed.
        """
        self._allow_entries(len(entries))
        self._storage.edited(self)
        filling = self.length % PAGE_TOKENS
        head = min(len(entries), PAGE_TOKENS - filling) if filling else 0
        rest, run = entries[head:], is_run(entries)
        alike = alike_pages(rest, run)
        sharing = int(alike.sum())
        copies = head > 0 or sharing < len(alike)
        # Before this file's table changes: it may be the source.
        sources = source._page_slots(entries) if copies else _NO_SLOTS  # noqa: SLF001
        shared = source.pages[rest[::PAGE_TOKENS][alike] // PAGE_TOKENS]
        replaced = 1 if head and self._shares_last_page() else 0
        new = replaced + len(alike) - sharing
        keep, storage = (self, source), self._storage
        begins = self.length == 0 and (not len(entries) or (run and entries.item(0) == 0))
        history = None if begins else source.history()
        trail = None if history is None else history.picked(entries, self.history(), run)
        verdict = None if trail is None else self._known().judge(trail)
        ties = self.unrecomputable or (begins and source.unrecomputable)
        if verdict is not None and not ties:
            ties = not verdict.fits(self._count + len(alike), storage.usable)
        bare: bool | None = not ties
        if storage.pool.absent and not storage.recall(self.append_reads(source, entries), keep):
            bare = bare or None
        allowed = partial(self._allow_tied, shared, new) if ties else _anything
        fresh = storage.allocate_for_call(self.owner.live(), new, keep, bare, allowed)
        if head and storage.pool.copies:
            self._write_last_page()
        if replaced:
            self._replace_last_page(int(fresh[0]))
        pages = np.empty(len(alike), np.int32)
        pages[~alike] = fresh[replaced:]
        pages[alike] = shared
        storage.pool.retain(shared)
        self._extend(pages)
        places = _NO_SLOTS
        if copies:
            copied = np.ones(len(entries), np.bool_)
            copied[head:] = np.repeat(~alike, PAGE_TOKENS)[: len(rest)]
            places = np.flatnonzero(copied) + self.length
            storage.copy(sources[copied], self._page_slots(places))
        if begins:
            self.plain = min(source.plain, len(entries))
        if len(entries):
            self._inherit(source, len(entries), begins, trail, verdict)
        self.length += len(entries)
        if ties and not self.unrecomputable:
            self.tie()
        return len(places)

    def truncate(self, length: int) -> None:
        """Roll back to `length` entries."""
        assert 0 <= length <= self.length
        self._storage.edited(self)
        self.length = length
        self.plain = min(self.plain, length)
        if self.texts:
            self.texts = {text: base for text, base in self.texts.items() if base <= length}
        if self.origins is not None:
            self.origins.truncate(length)
        if self.unrecomputable and self.lineage is None:
            self._loosen()
        self._shrink(page_count(length))

    def take_pages(self) -> Int32:
        """Return all pages for release: nobody refers to this file any more, and it is empty."""
        if self.ranked or self.advice.until:
            self._storage.eviction_order.discard(self)
        self._loosen()
        self._storage.edited(self)
        pages = self._table[: self._count]
        self._table = self._frames = _NO_PAGES
        self._absent = 0
        self._count = self.length = self.plain = 0
        if self.origins is not None:
            self.origins.close()
            self.origins = None
        return pages

    # -- Tables ---------------------------------------------------------------------------------
    def _allow_entries(self, n: int) -> None:
        owner = self.owner
        if owner.closed:
            owner = owner.live()
        if self.length + n > owner.entries_allowed:
            owner.hit("kv_tokens")
            detail = f"{owner.name}: {owner.entries_allowed} entries"
            raise LimitError(Errno.EDQUOT, "kv_tokens", detail)

    def append_reads(self, source: "KVFile", entries: Int64) -> Int32:
        """Return the pages ([n], distinct) that must be on the device for `append` of these.

        Those of which entries are copied: shared ones may be anywhere.
        """
        filling = self.length % PAGE_TOKENS
        pages = source.pages[pages_copied(entries, filling)]
        if filling and len(entries):
            pages = np.append(pages, self._table[self.length // PAGE_TOKENS])
        return np.unique(pages)

    def _write_last_page(self) -> None:
        """The last page is written in place, unless it is shared: its copies elsewhere are old."""
        if self.length % PAGE_TOKENS and not self._shares_last_page():
            self._storage.tiers.written(int(self._table[self.length // PAGE_TOKENS]))

    def _shares_last_page(self) -> bool:
        if self.length % PAGE_TOKENS == 0:
            return False
        page: int = self._table.item(self.length // PAGE_TOKENS)
        return self._storage.pool.each_references[page] > 1

    def _replace_last_page(self, page: int) -> None:
        """Copy the entries of the shared partial page to `page` and hold that one instead."""
        index = self.length // PAGE_TOKENS
        filled = OFFSETS[: self.length % PAGE_TOKENS]
        old = self._table[index : index + 1].copy()
        self._table[index] = page
        self._frames = self._frames.copy()  # a cancelled step may still read the old ones
        self._frames[index] = self._storage.pool.frame[page]
        self._storage.copy(int(old[0]) * PAGE_TOKENS + filled, page * PAGE_TOKENS + filled)
        if self.unrecomputable:
            self._storage.ledger.tie(self.owner.root, np.array([page], np.int32))
            self._storage.ledger.loosen(old)
        self._storage.release(old)

    def _extend(self, pages: Int32) -> None:
        start, pool = self._count, self._storage.pool
        count = start + len(pages)
        if count > len(self._table):
            self._table = grown(self._table, start, count)
            self._frames = grown(self._frames, start, count)
        self._table[start:count] = pages
        self._frames[start:count] = pool.frame[pages]
        self._count = count
        if self.unrecomputable:
            self._storage.ledger.tie(self.owner.root, pages)
        if not self.ranked:
            self._storage.eviction_order.add(self)
        if pool.absent:
            self._moved = _STALE

    def _shrink(self, count: int) -> None:
        if count < self._count:
            dropped = self._table[count : self._count]
            self._table = cut(self._table, count)
            # A cancelled step may still read the old frames: what comes next must not change them.
            self._frames = cut(self._frames, count)
            self._count = count
            if self._absent:
                self._moved = _STALE
            if self.unrecomputable:
                self._storage.ledger.loosen(dropped)
            self._storage.release(dropped)

    def forget_frames(self) -> None:
        """Look for the frames again: what is known of them is another process's."""
        self._frames = np.full(len(self._table), NOWHERE, np.int32)
        self._moved = _STALE

    def _look_up(self) -> None:
        """Find the frames again: something has moved."""
        count, pool = self._count, self._storage.pool
        frames = np.empty(len(self._table), np.int32)
        frames[:count] = pool.frame[self._table[:count]]
        self._frames = frames
        self._absent = int(pool.is_absent(self.pages).sum()) if pool.absent else 0
        self._moved = pool.moved


def _anything() -> None:
    """Refuse nothing."""
