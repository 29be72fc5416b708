"""Pages and frames: what files hold, and where on the device its K and V lie.

A *page* is an id: what a file's table holds, what is shared, counted and charged. Slot `s` is
entry `s % PAGE_TOKENS` of page `s // PAGE_TOKENS`; its token and position live here, so that a fork
shares them with the page and copies nothing. A *frame* is a place for a page's K and V in the
executor's pool, whose slots are numbered in the same way. A held page has a frame of its own or
none; there may be more pages than frames.

    page    0    1    2    3    4          pool.frame  [2, 0, -1, -1, 1]   page 2 is elsewhere
    frame   2    0    -    free 1          pool.page   [1, 4, 0]

Slots of a free page or frame hold whatever their last owner left: nobody reads a slot that its file
has not committed or copied first.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from mypy_extensions import mypyc_attr

from symphony_kernel.executor.base import Int32, Int64, UInt32
from symphony_kernel.protocol.errno import Errno, KernelBug, SyscallError
from symphony_kernel.protocol.limits import PAGE_TOKENS

Bool = npt.NDArray[np.bool_]
POISON_TOKEN: Final = 0xFFFFFFFF  # of freed pages' entries, where they are poisoned
POISON_POSITION: Final = -1
NOWHERE: Final = -1  # of a page: on no frame; of a frame: free
_ONE: Final = np.int32(1)  # of the counts' own type: with 1, `ufunc.at` takes twenty times as long


def page_count(entries: int) -> int:
    """Return how many pages hold `entries` entries."""
    return (entries + PAGE_TOKENS - 1) // PAGE_TOKENS


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """How full the device is, in frames, and how many pages are shared."""

    pages: int
    free: int
    shared: int


@mypyc_attr(allow_interpreted_subclasses=True)
class NumberStack:
    """Numbers below `size` that nobody uses. A fresh one hands them out in order."""

    __slots__ = ("_numbers", "count")

    def __init__(self, size: int) -> None:
        self._numbers = np.arange(size - 1, -1, -1, dtype=np.int32)
        self.count = size

    def pop(self, n: int) -> Int32:
        """Take n of them ([n]): there must be so many."""
        rest = self.count - n
        taken = self._numbers[rest : self.count][::-1].copy()
        self.count = rest
        return taken

    def push(self, numbers: Int32) -> None:
        """Give some back ([n])."""
        self._numbers[self.count : self.count + len(numbers)] = numbers[::-1]
        self.count += len(numbers)

    def remove(self, numbers: Int32) -> None:
        """Take these of them."""
        rest = self._numbers[: self.count]
        rest = rest[~np.isin(rest, numbers)]
        assert len(rest) == self.count - len(numbers)
        self._numbers[: len(rest)] = rest
        self.count = len(rest)

    def all(self) -> Int32:
        """Return them, from the lowest."""
        return np.sort(self._numbers[: self.count])


class PagePool:
    """Pages with reference counts over `frames` frames; `on_freed` hears of frames that come back.

    There are `pages` pages, or as many as frames. `moved` counts what gives or takes a held page
    its frame: while it is the same, `frame` is the same for all pages that were held all along. A
    page is *absent* when it has no frame, or is *hollow*: its frame is there to be computed again.
    Who takes frames and gives them is `tiers`.
    """

    def __init__(
        self,
        frames: int,
        on_freed: Callable[[Int32], None] | None = None,
        pages: int | None = None,
        sentinels: bool = False,
    ) -> None:
        self.frames = frames
        self.pages = frames if pages is None else pages
        assert 0 < frames <= self.pages
        self.references = np.zeros(self.pages, np.int32)
        self.tokens: UInt32 = np.zeros(self.pages * PAGE_TOKENS, np.uint32)  # [slots]
        self.positions: Int32 = np.zeros(self.pages * PAGE_TOKENS, np.int32)  # [slots]
        # The same three for one element at a time, which an array takes thrice as long for.
        self.each_references = self.references.data
        self.each_token, self.each_position = self.tokens.data, self.positions.data
        self.frame: Int32 = np.full(self.pages, NOWHERE, np.int32)  # [pages]
        self.page: Int32 = np.full(frames, NOWHERE, np.int32)  # [frames]
        self.hollow: Bool = np.zeros(self.pages, np.bool_)  # has a frame without its content
        # Another tenant has opened a file with it, since it was taken.
        self.lent: Bool = np.zeros(self.pages, np.bool_)
        self.moved = 0
        self.absent = 0  # held pages without a frame, or hollow
        self.copies = 0  # of held pages, on host and disk
        # Hears of pages ([n]) that are about to be free, while there is anything off the device.
        self.leaving: Callable[[Int32], None] = lambda _pages: None
        self.sentinels = sentinels  # freed pages' tokens and positions show that they are
        self._unused = NumberStack(self.pages)
        self._free = NumberStack(frames)
        # Free frames that a step writes in case somebody wants it, and for whom: the last to go.
        self._spares: dict[int, object] = {}
        self._marks: Int32 = np.zeros(self.pages, np.int32)  # scratch of `release`
        self._on_freed = on_freed

    @property
    def free(self) -> int:
        """Pages that could be allocated now: free frames, or fewer when pages run out first."""
        free, unused = self._free.count + len(self._spares), self._unused.count
        return free if free < unused else unused

    def allocate(self, n: int, frames: bool = True) -> Int32:
        """Return n pages ([n]), each held once, with frames or without.

        Raises:
            SyscallError: ENOMEM, and nothing has changed.
        """
        free = self.free if frames else self.unused
        if n > free:
            raise SyscallError(Errno.ENOMEM, f"{n} pages wanted, {free} free")
        taken = self._unused.pop(n)
        self.references[taken] = 1
        self.lent[taken] = False
        if frames:
            self._furnish(taken)
        else:
            self.absent += n
            self.moved += 1
        return taken

    def _furnish(self, taken: Int32) -> None:
        frames = self._pop_frames(len(taken))
        self.frame[taken] = frames
        self.page[frames] = taken

    def retain(self, pages: Int32) -> None:
        """Hold each of `pages` once more; a page may stand in it several times."""
        assert not len(pages) or self.references[pages].min() > 0, "a free page cannot be shared"
        np.add.at(self.references, pages, _ONE)

    def release(self, pages: Int32) -> Int32:
        """Let go of each of `pages` once; return those that nobody holds any more."""
        if not len(pages):
            return pages
        references = self.references
        np.subtract.at(references, pages, _ONE)
        left = references[pages]
        assert left.min() >= 0, "a page was released more often than it was held"
        freed: Int32 = pages[left == 0]
        if len(freed) > 1:
            # A page may stand there many times. Of equal ones the last to write its number stays.
            numbers = np.arange(len(freed), dtype=np.int32)
            self._marks[freed] = numbers
            freed = freed[self._marks[freed] == numbers]
        if len(freed):
            if self.absent or self.copies:
                self.leaving(freed)
            self._unused.push(freed)
            self._free_frames(freed)
            if self.sentinels:
                self.tokens.reshape(-1, PAGE_TOKENS)[freed] = POISON_TOKEN
                self.positions.reshape(-1, PAGE_TOKENS)[freed] = POISON_POSITION
        return freed

    def write(self, page: int, within: int, token: int, position: int) -> None:
        """Write an entry of a page: the token and its position."""
        assert self.each_references[page] == 1, "committed into a shared page"
        slot = page * PAGE_TOKENS + within
        self.each_token[slot], self.each_position[slot] = token, position

    def _free_frames(self, pages: Int32) -> None:
        """Give back the frames of pages that nobody holds any more."""
        frames = self.frame[pages]
        if self.absent:
            there = frames >= 0
            self.absent -= int((~there | self.hollow[pages]).sum())
            self.hollow[pages] = False
            frames = frames[there]
        self.frame[pages] = NOWHERE
        self._push_frames(frames)

    def _push_frames(self, frames: Int32) -> None:
        self.page[frames] = NOWHERE
        self._free.push(frames)
        if self._on_freed is not None:
            self._on_freed(frames)

    # -- Frames of pages that stay held: for `tiers` --------------------------------------------
    @property
    def free_frames(self) -> int:
        """Frames without a page."""
        return self._free.count + len(self._spares)

    @property
    def unused(self) -> int:
        """Pages that nobody holds."""
        return self._unused.count

    def idle_frames(self, n: int) -> Int32:
        """Return up to n frames that no page has ([n]); they stay free."""
        return self._free.all()[:n]

    def vacate(self, pages: Int32) -> Int32:
        """Free the frames of held pages ([n], distinct, each with one); return them."""
        frames = self.frame[pages]
        self.absent += len(pages) - int(self.hollow[pages].sum())
        self.hollow[pages] = False
        self.frame[pages] = NOWHERE
        self._push_frames(frames)
        self.moved += 1
        return frames

    def seat(self, pages: Int32, hollow: bool) -> Int32:
        """Give frames to held pages ([n], distinct, each without one) and return them.

        Raises:
            SyscallError: ENOMEM, and nothing has changed.
        """
        if len(pages) > self.free_frames:
            raise SyscallError(Errno.ENOMEM, f"{len(pages)} frames wanted, {self.free_frames} free")
        frames = self._pop_frames(len(pages))
        self.frame[pages] = frames
        self.page[frames] = pages
        self.hollow[pages] = hollow
        if not hollow:
            self.absent -= len(pages)
        self.moved += 1
        return frames

    def take_bench(self, n: int) -> Int32:
        """Take n free frames ([n]) for no page: to compute in what pages are to hold.

        There must be so many.
        """
        assert n <= self.free_frames
        frames = self._pop_frames(n)
        self.page[frames] = self.pages
        return frames

    def leave_bench(self, frames: Int32) -> None:
        """Free the frames of a bench."""
        self._push_frames(frames)

    def fill(self, pages: Int32) -> None:
        """Hollow pages ([n], distinct) have their content."""
        assert self.hollow[pages].all()
        self.hollow[pages] = False
        self.absent -= len(pages)
        self.moved += 1

    # -- Spares: free frames that somebody may want as they are ----------------------------------
    def take_spare(self, owner: object) -> int | None:
        """Return a free frame that a step may write for `owner`, if there is one; it stays free.

        Whoever else wants frames gets this one when no others are left.
        """
        if not self._free.count:
            return None
        frame = int(self._free.pop(1)[0])
        self._spares[frame] = owner
        self.page[frame] = self.pages
        return frame

    def has_spare(self, frame: int, owner: object) -> bool:
        """Whether a spare is still there."""
        return self._spares.get(frame) is owner

    def leave_spare(self, frame: int, owner: object) -> None:
        """Let go of a spare, if it is still there."""
        if self._spares.get(frame) is owner:
            del self._spares[frame]
            self._push_frames(np.array([frame], np.int32))

    def use_spare(self, frame: int, owner: object, page: int) -> bool:
        """Put a page that has just been taken into a spare; return whether it was still there."""
        if self._spares.get(frame) is not owner:
            return False
        del self._spares[frame]
        others = self.frame[page : page + 1].copy()
        self.frame[page], self.page[frame] = frame, page
        self._push_frames(others)
        return True

    def _pop_frames(self, n: int) -> Int32:
        """Take n free frames ([n]): there must be so many, spares included."""
        if n > self._free.count:
            for frame, owner in list(self._spares.items()):
                self.leave_spare(frame, owner)
        return self._free.pop(n)

    # -- Without a device -----------------------------------------------------------------------
    def lend_frames(self) -> None:
        """Give every page a frame that is nowhere, until `lose_frames`: nothing computes now."""
        held = np.flatnonzero(self.references > 0).astype(np.int32)
        self.frames = self.pages
        self.page = np.full(self.pages, NOWHERE, np.int32)
        self._free, self._spares = NumberStack(self.pages), {}
        self.frame[:] = NOWHERE
        self.hollow[:] = False
        frames = self._free.pop(len(held))
        self.frame[held], self.page[frames] = frames, held
        self.absent = 0
        self.moved += 1

    def lose_frames(self, frames: int) -> None:
        """Begin with a device of so many frames that has nothing of any page."""
        self.frames = frames
        self.page = np.full(frames, NOWHERE, np.int32)
        self._free, self._spares = NumberStack(frames), {}
        self.frame[:] = NOWHERE
        self.hollow[:] = False
        self.absent = int((self.references > 0).sum())
        self.moved += 1

    # -- Slots ----------------------------------------------------------------------------------

    def is_absent(self, pages: Int32) -> Bool:
        """Say for each page ([n]) whether its content is not on the device."""
        absent: Bool = (self.frame[pages] < 0) | self.hollow[pages]
        return absent

    def device_slots(self, slots: Int64) -> Int64:
        """Return the device's slots of pages' slots ([c] each); the pages must have frames."""
        frames = self.frame[slots // PAGE_TOKENS]
        assert not self.absent or not len(frames) or frames.min() >= 0, "a page has no frame"
        return frames.astype(np.int64) * PAGE_TOKENS + slots % PAGE_TOKENS

    def copy_entries(self, sources: Int64, destinations: Int64) -> None:
        """Copy tokens and positions from slots to slots ([c] each), all reads first."""
        self.tokens[destinations] = self.tokens[sources]
        self.positions[destinations] = self.positions[sources]

    def check_integrity(self, expected: Int64) -> None:
        """Compare the counts with what the files' page tables say (`expected`: [pages]).

        Raises:
            KernelBug: a count differs, the free pages are not exactly those that nobody holds, or a
                frame is lost or in use twice.
        """
        wrong = np.flatnonzero(self.references != expected)
        if len(wrong):
            page = int(wrong[0])
            raise KernelBug(
                f"{len(wrong)} pages have a wrong count; page {page} has "
                f"{int(self.references[page])}, the page tables hold it {int(expected[page])} times"
            )
        if not np.array_equal(self._unused.all(), np.flatnonzero(self.references == 0)):
            raise KernelBug("the free list is not the set of pages that nobody holds")
        self._check_frames()

    def _check_frames(self) -> None:
        there = np.flatnonzero(self.frame >= 0)
        if not (self.references[there] > 0).all():
            raise KernelBug("a page that nobody holds has a frame")
        used = np.flatnonzero((self.page >= 0) & (self.page < self.pages))  # others are benches
        if len(used) != len(there) or not np.array_equal(self.page[self.frame[there]], there):
            raise KernelBug("pages and frames do not say the same of each other")
        if not np.array_equal(self._free.all(), np.flatnonzero(self.page < 0)):
            raise KernelBug("the free frames are not those without a page")
        if not (self.frame[self.hollow] >= 0).all():
            raise KernelBug("a page without a frame is to be computed into one")
        whole = len(there) - int(self.hollow.sum())
        if self.absent != int((self.references > 0).sum()) - whole:
            raise KernelBug(f"{self.absent} held pages are counted as not on the device")

    def statistics(self) -> PoolStatistics:
        """Return how full the pool is."""
        return PoolStatistics(self.frames, self.free_frames, int((self.references > 1).sum()))
