"""The disk tier: pages below the host tier, in a file.

It writes behind: while few host slots are free, it copies the pages that have been on the host for
longest to disk, so that their slots can be freed at once when they are needed. A few slots
(`spare`) are reserved for reading, so that a page on disk can always come back. It writes nothing
while the disk has no more free space than its reserve, and for no tenant more than its
`disk_bytes`, or more than it leaves to others on that disk. The account that pays for a page (see
`quotas`) is charged for its slot.

A thread reads and writes (`disk_file.SpillFile`). A host slot that the thread uses belongs to the
thread until it has finished, even if the page is freed; and the thread only gets slots that no
unfinished step uses.
"""

import errno
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from symphony_kernel.executor.base import Int32
from symphony_kernel.executor.device_queue import StepFuture
from symphony_kernel.kvfs.pages.pool import NOWHERE, NumberStack
from symphony_kernel.kvfs.tiers.base import FREE_SHARE, SpillTier, spare_slots
from symphony_kernel.kvfs.tiers.disk_file import PIECES_MAX, SpillFile
from symphony_kernel.kvfs.tiers.tiers import Tiers
from symphony_kernel.protocol.errno import KernelBug

_log = logging.getLogger(__name__)
_GONE: Final = -1  # in place of a page that was freed or written while the thread had its slot


class DiskTier(SpillTier):
    """The disk tier below `tiers`; `host_page` returns the bytes of a host slot."""

    def __init__(
        self, tiers: Tiers, spill: SpillFile, host_page: Callable[[int], memoryview]
    ) -> None:
        assert tiers.slots, "the disk tier reads and writes by way of host slots"
        self._tiers = tiers
        self._spill = spill
        self._host_page = host_page
        self.slots = spill.slots
        self._free = NumberStack(spill.slots)
        self.written = self.arrivals = 0
        self.spare = spare_slots(tiers.slots)
        self._free_wanted = self.spare + (tiers.slots + FREE_SHARE - 1) // FREE_SHARE
        self._order: deque[int] = deque()  # pages that came to the host, the oldest first
        self._clean: deque[int] = deque()  # pages that were written while they were on the host
        self._back: deque[int] = deque()  # pages that were read: their disk slots are freed first
        self._wanted: OrderedDict[int, None] = OrderedDict()  # pages to be read, in order
        self._reading: dict[int, int] = {}  # page -> host slot
        self._writing: dict[int, tuple[int, int]] = {}  # host slot -> page or _GONE, disk slot
        self._read_slots: set[int] = set()  # host slots that are read into
        self._broken = False  # the disk has failed: nothing more is written

    @property
    def used(self) -> int:
        return self.slots - self._free.count

    @property
    def waiting(self) -> bool:
        return bool(self._wanted)

    @property
    def busy(self) -> bool:
        return bool(self._wanted or self._read_slots or self._writing)

    # -- Called by `Tiers` ----------------------------------------------------------------------
    def saved(self, pages: Int32) -> None:
        self._order.extend(pages.tolist())

    def read(self, pages: Int32) -> None:
        for page in pages.tolist():
            if page not in self._reading:
                self._wanted[page] = None
        self.balance()

    def drop(self, pages: Int32) -> None:
        tiers = self._tiers
        for page in pages.tolist():
            self._wanted.pop(page, None)
            self._reading.pop(page, None)
        # The thread works in order: it reads a slot before it writes the slot's next page.
        self._free.push(tiers.disk[pages])
        tiers.take_disk(pages)

    def released(self, slots: Int32) -> Int32:
        """Return those of these slots that the thread is not writing; it keeps the others."""
        if not self._writing:
            return slots
        free: list[int] = []
        for slot in slots.tolist():
            if slot in self._writing:
                self._writing[slot] = _GONE, self._writing[slot][1]
            else:
                free.append(slot)
        return np.array(free, np.int32)

    def held_slots(self) -> Int32:
        orphans = [slot for slot, (page, _) in self._writing.items() if page == _GONE]
        return np.array([*orphans, *self._read_slots], np.int32)

    def balance(self) -> None:
        self._read()
        if not self._broken:
            self._write()

    def make_room(self, n: int) -> None:
        tiers = self._tiers
        chosen: list[int] = []
        while self._clean and len(chosen) < n:
            page = self._clean.popleft()
            if tiers.host[page] >= 0 and tiers.disk[page] >= 0 and page not in chosen:
                chosen.append(page)
        tiers.drop_host(np.array(chosen, np.int32))

    # -- Reading --------------------------------------------------------------------------------
    def _read(self) -> None:
        if not self._wanted:
            return
        wanted, tiers = list(self._wanted)[:PIECES_MAX], self._tiers
        slots = tiers.take_quiet_slots(len(wanted))
        if len(slots) < len(wanted):
            missing = len(wanted) - len(slots)
            missing -= tiers.drop_duplicates(missing)
            self.make_room(missing)
            slots = np.concatenate((slots, tiers.take_quiet_slots(len(wanted) - len(slots))))
        pairs = list(zip(wanted, slots.tolist(), strict=False))
        if not pairs:
            return
        for page, slot in pairs:
            del self._wanted[page]
            self._reading[page] = slot
            self._read_slots.add(slot)
        pieces = [(int(tiers.disk[page]), self._host_page(slot)) for page, slot in pairs]
        self._spill.read(pieces).then(lambda outcome: self._arrived(pairs, outcome))

    def _arrived(self, pairs: Sequence[tuple[int, int]], outcome: StepFuture[None]) -> None:
        tiers = self._tiers
        here = [(page, slot) for page, slot in pairs if self._reading.get(page) == slot]
        gone = [slot for page, slot in pairs if self._reading.get(page) != slot]
        self._read_slots.difference_update(slot for _, slot in pairs)
        for page, _ in here:
            del self._reading[page]
        pages, slots = (np.array([pair[side] for pair in here], np.int32) for side in (0, 1))
        tiers.give_slots(np.array(gone, np.int32))
        if outcome.error is None:
            tiers.put_host(pages, slots)
            tiers.finish_read(pages)
            self.arrivals += len(pages)
            self._back.extend(pages.tolist())
            self._clean.extend(pages.tolist())
        else:  # they are recomputed
            _log.error("%d pages could not be read", len(pages), exc_info=outcome.error)
            tiers.give_slots(slots)
            self.drop(pages)
            tiers.fail_read(pages)
        self.balance()
        tiers.on_arrived(pages)

    # -- Writing --------------------------------------------------------------------------------
    def _write(self) -> None:
        """Write the pages that are on the host for longest, while few slots are free."""
        tiers = self._tiers
        if tiers.free_slots >= self._free_wanted or not self._order or not self._spill.has_room():
            return
        pairs: list[tuple[int, int]] = []
        while self._order and len(pairs) < PIECES_MAX and len(self._writing) < 2 * PIECES_MAX:
            page = self._order[0]
            slot = int(tiers.host[page])
            if self._may_be_written(page, slot):
                # Until its save has ended, or a page has left the disk.
                if tiers.outstanding[slot] or not self._has_slot():
                    break
                disk_slot = int(self._free.pop(1)[0])
                self._writing[slot] = page, disk_slot
                pairs.append((slot, disk_slot))
            self._order.popleft()
        if pairs:
            pieces = [(disk_slot, self._host_page(slot)) for slot, disk_slot in pairs]
            self._spill.write(pieces).then(lambda outcome: self._landed(pairs, outcome))

    def _may_be_written(self, page: int, slot: int) -> bool:
        tiers = self._tiers
        if slot < 0 or tiers.disk[page] >= 0 or slot in self._writing:
            return False
        coming = [each for each, _ in self._writing.values() if each != _GONE]
        pages = tiers.disk_pages(page, coming)
        return pages is not None and self._spill.is_fair(pages)

    def _has_slot(self) -> bool:
        """Whether a disk slot is free; free one of a page that came back if necessary."""
        tiers = self._tiers
        while not self._free.count and self._back:
            back = self._back.popleft()
            if tiers.disk[back] >= 0 and (tiers.host[back] >= 0 or tiers.on_device(back)):
                self.drop(np.array([back], np.int32))
        return self._free.count > 0

    def _landed(self, pairs: Sequence[tuple[int, int]], outcome: StepFuture[None]) -> None:
        tiers = self._tiers
        if outcome.error is not None:
            full = isinstance(outcome.error, OSError) and outcome.error.errno == errno.ENOSPC
            if not full:
                self._broken = True
                _log.error("the disk tier writes nothing more", exc_info=outcome.error)
        landed = [self._writing.pop(slot)[0] for slot, _ in pairs]
        for page, (slot, disk_slot) in zip(landed, pairs, strict=True):
            if page == _GONE:
                tiers.give_slots(np.array([slot], np.int32))
            if page == _GONE or outcome.error is not None:
                self._free.push(np.array([disk_slot], np.int32))
                if page != _GONE:
                    self._order.append(page)
                continue
            tiers.put_disk(page, disk_slot)
            self.written += 1
            self._clean.append(page)
        if outcome.error is None:
            self.balance()
        else:  # the disk is full: the next pages that leave the device start the next write
            self._read()
        tiers.on_spilled(np.array([page for page in landed if page != _GONE], np.int32))

    # -- Audit ----------------------------------------------------------------------------------
    def check_integrity(self) -> None:
        """Check that no slot is lost or in use twice; KernelBug."""
        there = self._tiers.disk[self._tiers.disk >= 0]
        coming = [disk_slot for _, disk_slot in self._writing.values()]
        used = np.sort(np.concatenate((there, np.array(coming, np.int32))))
        if not np.array_equal(
            np.sort(np.concatenate((used, self._free.all()))), np.arange(self.slots)
        ):
            raise KernelBug("the free disk slots are not those without a page")
        for page, slot in self._reading.items():
            if self._tiers.disk[page] == NOWHERE or slot not in self._read_slots:
                raise KernelBug("a page is read from disk that is not on disk")

    def close(self) -> None:
        self._spill.close()
