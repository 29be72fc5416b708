"""KV files: ordered entries in shared pages that are copied on write.

    length = 21, a fork of it shares both pages; then one side appends an entry:

    before  [ page 4: 16 entries ][ page 7: 5 entries, 11 free slots ]   both files, each held twice
    after   [ page 4: 16 entries ][ page 7: 5 entries ]                  the other file
            [ page 4 ]            [ page 9: copies of 5, new entry ]     the one that wrote first

When the other file writes, it is the only holder of page 7 and writes in place. Arguments are not
checked here: syscalls have checked them, and a wrong one is a kernel bug.

`reserve` takes pages for new entries, a step computes into them, `commit` makes the entries exist.
While a pred is between the two, no other operation touches the file (see `file_queue`).
A method that raises SyscallError has changed nothing.
"""

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import numpy as np
from mypy_extensions import mypyc_attr

from symphony_kernel.executor.base import Int32, Int64, UInt32
from symphony_kernel.kvfs.lineage.book import KeptTrail
from symphony_kernel.kvfs.lineage.origins import Origins
from symphony_kernel.kvfs.lineage.planning import Step, plan
from symphony_kernel.kvfs.lineage.spans import Trail, is_branch, is_run, planted_trail
from symphony_kernel.kvfs.name_tree import Name
from symphony_kernel.kvfs.pages.pool import NO_PAGES, NOWHERE, Bool, page_count
from symphony_kernel.kvfs.quotas import TenantUsage
from symphony_kernel.kvfs.storage import Storage
from symphony_kernel.kvfs.tiers.advice import NO_ADVICE
from symphony_kernel.kvfs.tiers.tiers import Tier
from symphony_kernel.protocol.errno import Errno, LimitError, SyscallError
from symphony_kernel.protocol.limits import PAGE_TOKENS

_STALE: Final = -1  # of `_frame_version`: the frames must be looked up again
_NO_SLOTS: Int64 = np.empty(0, np.int64)
_TABLE_PAGES_MIN: Final = 4
_OFFSETS: Final[Int64] = np.arange(PAGE_TOKENS, dtype=np.int64)


@mypyc_attr(allow_interpreted_subclasses=True)
class KVFile:
    """A KV file. `references` counts handles, names, grants and operations under way."""

    __slots__ = (
        "_absent", "_count", "_frame_version", "_frames", "_storage", "_table", "adapter",
        "advice", "cached", "computed_at", "counted", "era", "error", "expires_ms", "generating",
        "length", "name", "number", "origins", "owner", "path", "plain", "queue", "ranked",
        "references", "root", "tenant", "texts", "unrecomputable",
    )  # fmt: skip

    def __init__(self, storage: Storage, tenant: str, owner: TenantUsage) -> None:
        self._storage = storage
        storage.made += 1
        self.number = storage.made  # never used again
        self._table: Int32 = NO_PAGES
        self._count = 0  # pages in use of the table, reserved ones included
        # The frames of the table's pages as of `_frame_version`, and how many pages are absent.
        self._frames: Int32 = NO_PAGES
        self._frame_version = storage.pool.frame_version
        self._absent = 0
        self.tenant = tenant
        self.owner = owner
        self.length = 0
        self.cached = 0  # entries that came from the prefix cache
        # So many entries, from the first, stand at positions 0, 1, .. and were each computed from
        # all before it with `adapter`: their K and V depend on their tokens and on it alone.
        self.plain = 0
        # The identity of the adapter that computed the entries behind those of the lineage, and
        # computes the next ones; "": none.
        self.adapter = ""
        self.origins: Origins | None = None  # of entries computed otherwise; None: not needed yet
        self.references = 1
        self.counted = True  # in its tenant's quota of files
        self.error: Errno | None = None  # what calls on it answer until it is closed
        self.generating = False  # a generation is in its queue: other calls answer EBUSY
        self.path = ""  # the name it was opened from or last saved under
        self.name: Name | None = None  # of a file in the tree of names
        self.expires_ms = 0  # Unix time when names that it is saved under expire; 0: never
        self.queue: OrderedDict[Any, None] | None = None  # a `FileQueue`, whose module imports this
        self.computed_at = 0.0  # set by the scheduler: when its last pred ended
        self.root = 0  # the run whose pred was admitted last
        self.advice = NO_ADVICE
        self.ranked = False  # set by the eviction order: it may have pages on the device
        self.era = 0  # set by the eviction order: when it was last used
        self.texts: dict[int, int] | None = None  # a constraint's number -> where its text begins
        self.unrecomputable = False  # then all its pages are, also those that it gets later

    # -- Batches --------------------------------------------------------------------------------
    def pages_needed(self, n: int) -> int:
        """Return how many free pages `reserve(n)` would take."""
        length = self.length
        missing = (length + n + PAGE_TOKENS - 1) // PAGE_TOKENS - self._count
        shared = n and length % PAGE_TOKENS and self._shares_last_page()
        return (missing if missing > 0 else 0) + (1 if shared else 0)

    def reserve(self, n: int) -> None:
        """Take pages for n entries after the present ones, for this file alone; ENOMEM, EDQUOT."""
        owner, length, pool = self.owner, self.length, self._storage.pool
        if owner.closed or length + n > owner.entries_allowed:
            self._allow_entries(n)
        within = length % PAGE_TOKENS
        if within and within + n <= PAGE_TOKENS and not pool.copies:  # the common case
            page: int = self._table.item(length // PAGE_TOKENS)
            if pool.each_references[page] == 1:
                return
        needed = self.pages_needed(n)
        if pool.copies and n:
            self._write_last_page()
        if not needed:
            return
        # Before the allocation, for which the prefix cache may release that page.
        replaced = n > 0 and self._shares_last_page()
        if self._count + needed > self._storage.usable:
            raise SyscallError(Errno.ENOMEM, f"{self._count} pages, {needed} more")
        outgrows = self.origins is not None and self._outgrows(self._count + needed)
        unrecomputable = needed if self.unrecomputable or outgrows else 0
        if outgrows:
            unrecomputable += self._storage.quotas.count_recomputable(self.pages)
        pages = self._storage.allocate(self.owner.live(), needed, (self,), unrecomputable)
        if replaced:
            self._replace_last_page(int(pages[0]))
            pages = pages[1:]
        self._extend(pages)
        if outgrows:
            self._make_unrecomputable()
        if self._storage.observer is not None:
            self._storage.observer.reserved(self.number, n)

    def use_spare(self, frame: int, owner: object) -> bool:
        """Put the page reserved last into a spare frame of `owner`; return whether."""
        last = self._count - 1
        if not self._storage.pool.use_spare(frame, owner, int(self._table[last])):
            return False
        self._frames[last] = frame  # no row has been given the replaced frame yet
        return True

    def block_table(self, entries: int) -> Int32:
        """Return the frames of the first `entries` entries, also reserved ones (a view).

        All pages must have frames. The array does not change when the file or its frames do.
        """
        pages = (entries + PAGE_TOKENS - 1) // PAGE_TOKENS
        assert pages <= self._count, "the table ends before these entries"
        if self._frame_version != self._storage.pool.frame_version:
            self._look_up()
        assert not self._absent, "a page of the table has no frame"
        return self._frames[:pages]

    def frame_of(self, entry: int) -> int:
        if self._frame_version != self._storage.pool.frame_version:
            self._look_up()
        return int(self._frames.item(entry // PAGE_TOKENS))

    def absent_pages(self) -> Int32:
        """Return the pages that are not on the device ([n]); a page may be in it twice.

        While there are any, nothing may be reserved, and no row may read the file.
        """
        pool = self._storage.pool
        if self._frame_version != pool.frame_version:
            self._look_up()
        return self.pages[pool.is_absent(self.pages)] if self._absent else NO_PAGES

    def unfilled_table(self, entries: int) -> Int32:
        """Return the frames of the first `entries` entries, also unfilled ones (a copy)."""
        frames: Int32 = self._storage.pool.frame[self._table[: page_count(entries)]]
        assert not len(frames) or frames.min() >= 0, "a page of the table has no frame"
        return frames

    @property
    def tier(self) -> Tier:
        """The slowest tier that one of its pages must come from; DEVICE if none is absent."""
        return self._storage.tiers.worst_of(self.absent_pages())

    def commit(
        self, tokens: UInt32, positions: Int32, parents: Sequence[int] | None = None
    ) -> None:
        """Make the reserved entries exist, with these tokens and positions ([n] each).

        `parents` ([n]) are given when not each entry saw all entries before it.
        """
        n = len(tokens)
        start = self.length
        assert start + n <= self._count * PAGE_TOKENS, "committed entries that were not reserved"
        if parents is not None:
            self._plant(tokens, positions, np.array(parents, np.int32))
        elif n == 1:
            self.commit_one(tokens.item(), positions.item())
            return
        pool = self._storage.pool
        slots = self._page_slots(np.arange(start, start + n))
        pool.tokens[slots] = tokens
        pool.positions[slots] = positions
        if self.plain == start and parents is None and _continues(positions, start):
            self.plain = start + n
        self.length = start + n

    def commit_one(self, token: int, position: int) -> None:
        """Make the next reserved entry exist; see `commit`."""
        start = self.length
        page, within = start // PAGE_TOKENS, start % PAGE_TOKENS
        assert page < self._count, "committed an entry that was not reserved"
        self._storage.pool.write(self._table.item(page), within, token, position)
        if position == start and self.plain == start:
            self.plain = start + 1
        self.length = start + 1

    def write_reserved(self, tokens: UInt32) -> None:
        """Write tokens ([n]) of reserved entries, which `commit` makes exist later."""
        entries = np.arange(self.length, self.length + len(tokens))
        slots, pool = self._page_slots(entries), self._storage.pool
        pool.tokens[slots] = tokens
        pool.positions[slots] = entries

    def exchange(self, first: int, pages: Int32) -> None:
        """Hold cached pages ([n]) in place of reserved ones, from index `first` on."""
        end, storage = first + len(pages), self._storage
        assert page_count(self.length) <= first, "a page with entries is exchanged"
        assert end <= self._count, "pages are exchanged that were not reserved"
        reserved = self._table[first:end].copy()
        storage.hold_cached(self.owner.live(), pages)
        self._table[first:end] = pages
        self._frames = self._frames.copy()  # a cancelled step may still read the old ones
        self._frames[first:end] = storage.pool.frame[pages]
        if storage.pool.absent:
            self._frame_version = _STALE
        storage.release(reserved)

    def unreserve(self) -> None:
        count = page_count(self.length)
        if count < self._count:
            self._shrink(count)
            if self._storage.observer is not None:
                self._storage.observer.unreserved(self.number)

    # -- Content --------------------------------------------------------------------------------
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
        """Pages that another file holds too, or this one a second time."""
        pool, cache = self._storage.pool, self._storage.cache
        return int((pool.references[self.pages] - cache.references[self.pages] > 1).sum())

    def page_tokens(self, pages: int) -> bytes:
        """Return the tokens of the first whole pages (u32, in order)."""
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
        """Return the slots of entries in their pages ([c] indices, also reserved ones)."""
        pages = self._table[entries // PAGE_TOKENS].astype(np.int64)
        return pages * PAGE_TOKENS + entries % PAGE_TOKENS

    # -- Lineage --------------------------------------------------------------------------------
    @property
    def lineage(self) -> Trail | None:
        """The trail of the first entries; None if each saw exactly those before it.

        All entries behind it were, so that tokens and positions say how.
        """
        return None if self.origins is None else self.origins.trail

    @property
    def recomputable(self) -> bool:
        """Whether all of it can be recomputed from tokens and lineage."""
        return self.origins is None or not self.origins.lost

    def restore_lineage(self, trail: Trail | None) -> None:
        """Take over the lineage that was stored with these entries (`lineage.unpack`)."""
        assert trail is None or trail.length <= self.length
        if trail is not None or self.origins is not None:
            self._known().set_trail(trail, self.adapter)

    @property
    def stored_lineage(self) -> Trail | None:
        """The trail to store with the entries: that of all, if an adapter has computed some."""
        return self.history() if self.adapter else self.lineage

    def history(self) -> Trail | None:
        """Return the trail of all its entries; None of an empty file."""
        return self._known().history(self.length, self._read, self.adapter)

    def plan(self, absent: Int64) -> list[Step]:
        """Return steps that recompute absent entries ([c] indices); see `lineage.planning`.

        For a file without lineage each step is in place: one for each run of absent entries.
        """
        return plan(self.history(), absent)

    def use_adapter(self, adapter: str) -> None:
        """Compute the next entries with an adapter, "" with none; EDQUOT.

        What another one has computed becomes lineage.
        """
        if self.length:
            known, storage = self._known(), self._storage
            history = self.history()
            kept = known.assess(history, adapter)
            becomes = not (self.unrecomputable or kept.fits(self._count, storage.usable))
            allowed = partial(self._allow_unrecomputable, NO_PAGES, 0)
            storage.decide(allowed if becomes else _allow_all)
            if becomes:
                self._make_unrecomputable()
            known.set_trail(history, adapter, kept=kept)
            self.plain = 0
        self.adapter = adapter

    # -- Unrecomputable files -------------------------------------------------------------------
    def would_be_unrecomputable(self, trail: Trail | None, pages: int) -> bool:
        """Whether the file could not be recomputed with this trail and so many pages."""
        if trail is None:
            return False
        return not self._known().assess(trail, self.adapter).fits(pages, self._storage.usable)

    def prepare_tree(self, tokens: UInt32, parents: Sequence[int]) -> None:
        """Make the file unrecomputable if this tree ([n]) will make it so; EDQUOT."""
        pages, storage = page_count(self.length + len(tokens)), self._storage
        becomes = not self.unrecomputable and self._would_outgrow(tokens, parents, pages)
        allowed = partial(self._allow_unrecomputable, NO_PAGES, max(pages - self._count, 0))
        storage.decide(allowed if becomes else _allow_all)
        if becomes:
            self._make_unrecomputable()

    def _would_outgrow(self, tokens: UInt32, parents: Sequence[int], pages: int) -> bool:
        known, entries = self._known(), self.length + len(tokens)
        if known.may_add(2, entries) and known.scratch_pages + 4 * pages < self._storage.usable:
            return False  # with any dependencies of the tree
        if is_branch(parents):
            return False
        above = np.array(parents, np.int32)
        planted = planted_trail(
            self.history(), tokens, tokens.astype(np.int32), above, self.adapter
        )
        return self.would_be_unrecomputable(planted, pages)

    def _make_unrecomputable(self) -> None:
        """Charge its pages as unrecomputable from now on: only copies can bring them back."""
        assert not self.unrecomputable
        self.unrecomputable = True
        self._storage.quotas.add_unrecomputable(self.owner.root, self.pages)

    def _make_recomputable(self) -> None:
        if self.unrecomputable:
            self.unrecomputable = False
            self._storage.quotas.remove_unrecomputable(self.pages)

    def _allow_unrecomputable(self, more: Int32, new: int) -> None:
        """Check that it may be unrecomputable with pages `more` ([n]) and `new` others.

        EDQUOT, also if one of its pages is in no tier, and cannot be kept.
        """
        pages, quotas = np.concatenate((self.pages, more)), self._storage.quotas
        if self._storage.tiers.worst_of(pages) is Tier.TOKENS:
            detail = "its lineage is too long, and a page that it needs is in no tier"
            raise SyscallError(Errno.EDQUOT, detail)
        quotas.allow_unrecomputable(self.owner, quotas.count_recomputable(pages) + new)

    def _outgrows(self, pages: int) -> bool:
        """Whether it becomes unrecomputable with so many pages, and is not yet."""
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
        """Add the tree behind the entries to the lineage."""
        if is_branch(parents):
            return
        # `prepare_tree` has charged what may become lost. The tenant's other files may have used up
        # the bound since: operations under way may exceed it.
        planted = planted_trail(
            self.history(), tokens.copy(), positions.copy(), parents, self.adapter
        )
        self._known().set_trail(planted, self.adapter, keep=not self.unrecomputable)

    def _inherit(
        self, source: "KVFile", n: int, begins: bool, trail: Trail | None, kept: KeptTrail | None
    ) -> None:
        """Take over the lineage of n entries of `source`, its first ones if `begins`."""
        if not begins:
            self._known().set_trail(trail, self.adapter, kept=kept)
        elif source.origins is not None:
            self.origins = source.origins.fork(self.tenant)
            self.origins.truncate(n, self.adapter)

    # -- Changes --------------------------------------------------------------------------------
    def share(self, source: "KVFile") -> None:
        """Become a fork of `source`; this file must be empty."""
        assert self._count == 0
        pages = source.pages[: page_count(source.length)]
        self._storage.pool.retain(pages)
        self._extend(pages)
        self.length = source.length
        self.plain, self.adapter = source.plain, source.adapter
        if source.unrecomputable:
            self._make_unrecomputable()
        if source.origins is not None:
            self.origins = source.origins.fork(self.tenant)
        self.texts = source.texts and dict(source.texts)
        self.computed_at = source.computed_at  # a fork continues the source's stream
        self.era, self.root = source.era, source.root

    def adopt(self, pages: Int32) -> None:
        """Become a file of whole cached pages ([n]), which no adapter has computed.

        It must be empty. ENOMEM, EDQUOT.
        """
        assert self._count == 0
        entries = len(pages) * PAGE_TOKENS
        self._allow_entries(entries)
        self._storage.adopt(self.owner.live(), pages)
        self._extend(pages)
        self.length = self.plain = entries

    def append(self, source: "KVFile", entries: Int64) -> int:
        """Append entries of `source` ([c] indices); return how many were copied; ENOMEM, EDQUOT.

        `source` may be this file. Whole pages are shared where they line up: where a page of this
        file would begin with the first entry of a source page and continue with those behind it.
        All other entries are copied.
        """
        self._allow_entries(len(entries))
        self._storage.on_edited(self)
        filling = self.length % PAGE_TOKENS
        head = min(len(entries), PAGE_TOKENS - filling) if filling else 0
        rest, run = entries[head:], is_run(entries)
        alike = _alike_pages(rest, run)
        sharing = int(alike.sum())
        copies = head > 0 or sharing < len(alike)
        # Before this file's table changes: it may be the source.
        sources = source._page_slots(entries) if copies else _NO_SLOTS  # noqa: SLF001
        shared = source.pages[rest[::PAGE_TOKENS][alike] // PAGE_TOKENS]
        replaced = 1 if head and self._shares_last_page() else 0
        new = replaced + len(alike) - sharing
        keep, storage = (self, source), self._storage
        begins = self.length == 0 and (not len(entries) or (run and entries.item(0) == 0))
        if begins:
            self.adapter = source.adapter
        history = None if begins else source.history()
        trail = None if history is None else history.pick(entries, self.history(), run)
        kept = None if trail is None else self._known().assess(trail, self.adapter)
        unrecomputable = self.unrecomputable or (begins and source.unrecomputable)
        if kept is not None and not unrecomputable:
            unrecomputable = not kept.fits(self._count + len(alike), storage.usable)
        readable = not storage.pool.absent or storage.recall(
            self.append_reads(source, entries), keep
        )
        allowed = partial(self._allow_unrecomputable, shared, new) if unrecomputable else _allow_all
        fresh = storage.allocate_for_call(
            self.owner.live(), new, keep, not unrecomputable, readable, allowed
        )
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
            self._inherit(source, len(entries), begins, trail, kept)
        self.length += len(entries)
        if unrecomputable and not self.unrecomputable:
            self._make_unrecomputable()
        return len(places)

    def truncate(self, length: int) -> None:
        assert 0 <= length <= self.length
        self._storage.on_edited(self)
        self.length = length
        self.plain = min(self.plain, length)
        if self.texts:
            self.texts = {text: base for text, base in self.texts.items() if base <= length}
        if self.origins is not None:
            self.origins.truncate(length, self.adapter)
        if self.unrecomputable and self.lineage is None:
            self._make_recomputable()
        self._shrink(page_count(length))

    def fill(
        self,
        tokens: UInt32,
        positions: Int32,
        plain: int,
        trail: Trail | None,
        *,
        frames: bool = False,
    ) -> None:
        """Give this empty file its entries ([n] each), as read from disk; ENOMEM, EDQUOT.

        Without `frames` the pages are in no tier afterwards: nothing is evicted for them, and the
        file may be larger than the device.
        """
        assert self.length == 0
        self._allow_entries(len(tokens))
        count, storage = page_count(len(tokens)), self._storage
        unrecomputable = self.would_be_unrecomputable(trail, count)
        account = self.owner.live()
        self._extend(storage.allocate_for_load(account, count, unrecomputable, frames))
        slots = self._page_slots(np.arange(len(tokens)))
        storage.pool.tokens[slots] = tokens
        storage.pool.positions[slots] = positions
        self.length, self.plain = len(tokens), plain
        self.restore_lineage(trail)
        if unrecomputable:
            self._make_unrecomputable()

    def take_pages(self) -> Int32:
        """Return all pages of a file without references, to be released; it is empty then."""
        if self.ranked or self.advice.until:
            self._storage.eviction_order.discard(self)
        self._make_recomputable()
        self._storage.on_edited(self)
        pages = self._table[: self._count]
        self._table = self._frames = NO_PAGES
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
        """Return the pages ([n], distinct) that must be on the device for `append`.

        They are the pages of copied entries; shared ones may be in any tier.
        """
        filling = self.length % PAGE_TOKENS
        pages = source.pages[_pages_copied(entries, filling)]
        if filling and len(entries):
            pages = np.append(pages, self._table[self.length // PAGE_TOKENS])
        return np.unique(pages)

    def _write_last_page(self) -> None:
        """Drop the copies of the last page, which is written in place unless it is shared."""
        if self.length % PAGE_TOKENS and not self._shares_last_page():
            self._storage.tiers.drop_copies(int(self._table[self.length // PAGE_TOKENS]))

    def _shares_last_page(self) -> bool:
        if self.length % PAGE_TOKENS == 0:
            return False
        page: int = self._table.item(self.length // PAGE_TOKENS)
        return self._storage.pool.each_references[page] > 1

    def _replace_last_page(self, page: int) -> None:
        """Copy the entries of the shared partial page to `page` and hold that one instead."""
        index = self.length // PAGE_TOKENS
        filled = _OFFSETS[: self.length % PAGE_TOKENS]
        old = self._table[index : index + 1].copy()
        self._table[index] = page
        self._frames = self._frames.copy()  # a cancelled step may still read the old ones
        self._frames[index] = self._storage.pool.frame[page]
        self._storage.copy(int(old[0]) * PAGE_TOKENS + filled, page * PAGE_TOKENS + filled)
        if self.unrecomputable:
            self._storage.quotas.add_unrecomputable(self.owner.root, np.array([page], np.int32))
            self._storage.quotas.remove_unrecomputable(old)
        self._storage.release(old)

    def _extend(self, pages: Int32) -> None:
        start, pool = self._count, self._storage.pool
        count = start + len(pages)
        if count > len(self._table):
            self._table = _grown(self._table, start, count)
            self._frames = _grown(self._frames, start, count)
        self._table[start:count] = pages
        self._frames[start:count] = pool.frame[pages]
        self._count = count
        if self.unrecomputable:
            self._storage.quotas.add_unrecomputable(self.owner.root, pages)
        if not self.ranked:
            self._storage.eviction_order.add(self)
        if pool.absent:
            self._frame_version = _STALE

    def _shrink(self, count: int) -> None:
        if count < self._count:
            dropped = self._table[count : self._count]
            self._table = _cut(self._table, count)
            # A cancelled step may still read the old frames: later changes must not reach them.
            self._frames = _cut(self._frames, count)
            self._count = count
            if self._absent:
                self._frame_version = _STALE
            if self.unrecomputable:
                self._storage.quotas.remove_unrecomputable(dropped)
            self._storage.release(dropped)

    def forget_frames(self) -> None:
        """Make the next use look the frames up: they are those of another process."""
        self._frames = np.full(len(self._table), NOWHERE, np.int32)
        self._frame_version = _STALE

    def _look_up(self) -> None:
        """Look the frames up: the pool has moved pages."""
        count, pool = self._count, self._storage.pool
        frames = np.empty(len(self._table), np.int32)
        frames[:count] = pool.frame[self._table[:count]]
        self._frames = frames
        self._absent = int(pool.is_absent(self.pages).sum()) if pool.absent else 0
        self._frame_version = pool.frame_version


def _allow_all() -> None:
    pass


def _grown(table: Int32, used: int, count: int) -> Int32:
    """Return a copy of a table's first `used` pages with space for at least `count`."""
    grown = np.empty(max(count, 2 * len(table), _TABLE_PAGES_MIN), np.int32)
    if used:
        grown[:used] = table[:used]
    return grown


def _cut(table: Int32, count: int) -> Int32:
    """Return a copy of a table's first `count` pages with space for a few."""
    return table[: max(count, _TABLE_PAGES_MIN)].copy()


def _continues(positions: Int32, start: int) -> bool:
    """Whether positions ([n], n > 0) are start, start + 1, .."""
    if len(positions) == 1:
        return bool(positions[0] == start)
    return np.array_equal(positions, np.arange(start, start + len(positions)))


def _alike_pages(entries: Int64, run: bool = False) -> Bool:
    """Return for each PAGE_TOKENS of `entries` if they are the first of a source page.

    `run`: they are consecutive.
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
    # The last page is filled up with consecutive entries, so that only real ones decide.
    flat[len(entries) :] = entries[-1] + 1 + np.arange(missing)
    alike: Bool = (rows[:, 0] % PAGE_TOKENS == 0) & (rows == rows[:, :1] + _OFFSETS).all(axis=1)
    return alike


def _pages_copied(entries: Int64, filling: int) -> Int64:
    """Return the indices ([n], distinct) of pages that entries ([c]) are copied from.

    They are appended behind `filling` entries of a page; all other pages are shared.
    """
    head = min(len(entries), PAGE_TOKENS - filling) if filling else 0
    rest = entries[head:]
    copied = np.repeat(~_alike_pages(rest), PAGE_TOKENS)[: len(rest)]
    pages: Int64 = np.unique(np.concatenate((entries[:head], rest[copied])) // PAGE_TOKENS)
    return pages
