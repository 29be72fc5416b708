"""Pages and frames: what files hold, and where on the device their K and V are.

A *page* is an id: files' tables hold it, and it is shared, counted and charged. Slot `s` is
entry `s % PAGE_TOKENS` of page `s // PAGE_TOKENS`; its token and position are stored here, so that
a fork shares them with the page and copies nothing. A *frame* is a place for a page's K and V in
the executor's pool, whose slots are numbered in the same way. A held page has a frame of its own or
none; there may be more pages than frames.

    page    0    1    2    3    4          pool.frame  [2, 0, -1, -1, 1]   page 2 is elsewhere
    frame   2    0    -    free 1          pool.page   [1, 4, 0]

A method that raises SyscallError has changed nothing.

Slots of a free page or frame keep the content of their last owner: a slot is read only after its
file has committed or copied it.
"""

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt
from mypy_extensions import mypyc_attr

from symphony_kernel.executor.base import Int32, Int64, UInt32
from symphony_kernel.protocol.errno import Errno, KernelBug, SyscallError
from symphony_kernel.protocol.limits import PAGE_TOKENS

Bool = npt.NDArray[np.bool_]
POISON_TOKEN: Final = 0xFFFFFFFF  # of freed pages' entries, if they are poisoned
POISON_POSITION: Final = -1
NOWHERE: Final = -1  # of a page: in no frame; of a frame: free
NO_PAGES: Final[Int32] = np.empty(0, np.int32)
_ONE: Final = np.int32(1)  # with a plain 1 `ufunc.at` takes twenty times as long


def page_count(entries: int) -> int:
    return (entries + PAGE_TOKENS - 1) // PAGE_TOKENS


@mypyc_attr(allow_interpreted_subclasses=True)
class NumberStack:
    """Unused numbers below `size`; a new stack gives them out in ascending order."""

    __slots__ = ("_numbers", "count")

    def __init__(self, size: int) -> None:
        self._numbers = np.arange(size - 1, -1, -1, dtype=np.int32)
        self.count = size

    def pop(self, n: int) -> Int32:
        """Take n of them ([n]); at least n must be left."""
        rest = self.count - n
        taken = self._numbers[rest : self.count][::-1].copy()
        self.count = rest
        return taken

    def push(self, numbers: Int32) -> None:
        self._numbers[self.count : self.count + len(numbers)] = numbers[::-1]
        self.count += len(numbers)

    def remove(self, numbers: Int32) -> None:
        """Take these numbers, which must be in the stack."""
        rest = self._numbers[: self.count]
        rest = rest[~np.isin(rest, numbers)]
        assert len(rest) == self.count - len(numbers)
        self._numbers[: len(rest)] = rest
        self.count = len(rest)

    def all(self) -> Int32:
        """Return them in ascending order."""
        return np.sort(self._numbers[: self.count])


class PagePool:
    """Pages with counts of references, and frames; `on_freed` gets freed frames.

    There are `pages` pages, or as many as frames. `frame_version` counts the changes of held pages'
    frames: while it is the same, so is `frame` for all pages that were held all the time. A page is
    *absent* if it has no frame or is *unfilled*: its frame is there, its content is still to come.
    `tiers` decides which pages have frames.
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
        # Views of the same three for single elements, which are three times as fast.
        self.each_references = self.references.data
        self.each_token, self.each_position = self.tokens.data, self.positions.data
        self.frame: Int32 = np.full(self.pages, NOWHERE, np.int32)  # [pages]
        self.page: Int32 = np.full(frames, NOWHERE, np.int32)  # [frames]
        self.unfilled: Bool = np.zeros(self.pages, np.bool_)  # has a frame without its content
        # Another tenant has opened a file with the page since it was allocated.
        self.opened_by_others: Bool = np.zeros(self.pages, np.bool_)
        self.frame_version = 0
        self.absent = 0  # held pages that are absent
        self.copies = 0  # of held pages, on host and disk
        # Called with pages ([n]) that are about to be free, while any page is off the device.
        self.on_freeing: Callable[[Int32], None] = lambda _pages: None
        self.sentinels = sentinels  # overwrite freed pages' tokens and positions
        self._unused = NumberStack(self.pages)
        self._free = NumberStack(frames)
        # Free frames that a look-ahead step writes, and for whom: they are allocated last.
        self._spares: dict[int, object] = {}
        self._marks: Int32 = np.zeros(self.pages, np.int32)  # scratch of `release`
        self._on_freed = on_freed

    @property
    def free(self) -> int:
        """Pages that can be allocated: free frames, or unused pages if they are fewer."""
        free, unused = self._free.count + len(self._spares), self._unused.count
        return free if free < unused else unused

    def allocate(self, n: int, frames: bool = True) -> Int32:
        """Return n pages ([n]), each held once, with frames or without; ENOMEM."""
        free = self.free if frames else self.unused
        if n > free:
            raise SyscallError(Errno.ENOMEM, f"{n} pages wanted, {free} free")
        taken = self._unused.pop(n)
        self.references[taken] = 1
        self.opened_by_others[taken] = False
        if frames:
            self._furnish(taken)
        else:
            self.absent += n
            self.frame_version += 1
        return taken

    def _furnish(self, pages: Int32) -> None:
        frames = self._pop_frames(len(pages))
        self.frame[pages] = frames
        self.page[frames] = pages

    def retain(self, pages: Int32) -> None:
        """Hold each of `pages` once more; a page may be given several times."""
        assert not len(pages) or self.references[pages].min() > 0, "a free page cannot be shared"
        np.add.at(self.references, pages, _ONE)

    def release(self, pages: Int32) -> Int32:
        """Release each of `pages` once; return those that are free now, each once."""
        if not len(pages):
            return pages
        references = self.references
        np.subtract.at(references, pages, _ONE)
        left = references[pages]
        assert left.min() >= 0, "a page was released more often than it was held"
        freed: Int32 = pages[left == 0]
        if len(freed) > 1:
            # A page may be given many times. Of equal ones the last to write its number remains.
            numbers = np.arange(len(freed), dtype=np.int32)
            self._marks[freed] = numbers
            freed = freed[self._marks[freed] == numbers]
        if len(freed):
            if self.absent or self.copies:
                self.on_freeing(freed)
            self._unused.push(freed)
            self._free_frames(freed)
            if self.sentinels:
                self.tokens.reshape(-1, PAGE_TOKENS)[freed] = POISON_TOKEN
                self.positions.reshape(-1, PAGE_TOKENS)[freed] = POISON_POSITION
        return freed

    def write(self, page: int, within: int, token: int, position: int) -> None:
        assert self.each_references[page] == 1, "committed into a shared page"
        slot = page * PAGE_TOKENS + within
        self.each_token[slot], self.each_position[slot] = token, position

    def _free_frames(self, pages: Int32) -> None:
        frames = self.frame[pages]
        if self.absent:
            there = frames >= 0
            self.absent -= int((~there | self.unfilled[pages]).sum())
            self.unfilled[pages] = False
            frames = frames[there]
        self.frame[pages] = NOWHERE
        self._push_frames(frames)

    def _push_frames(self, frames: Int32) -> None:
        self.page[frames] = NOWHERE
        self._free.push(frames)
        if self._on_freed is not None:
            self._on_freed(frames)

    # -- Frames of held pages, for `tiers` ------------------------------------------------------
    @property
    def free_frames(self) -> int:
        return self._free.count + len(self._spares)

    @property
    def unused(self) -> int:
        return self._unused.count

    def idle_frames(self, n: int) -> Int32:
        """Return up to n free frames ([n]); they stay free."""
        return self._free.all()[:n]

    def detach_frames(self, pages: Int32) -> None:
        """Free the frames of held pages ([n], distinct, each with one)."""
        frames = self.frame[pages]
        self.absent += len(pages) - int(self.unfilled[pages].sum())
        self.unfilled[pages] = False
        self.frame[pages] = NOWHERE
        self._push_frames(frames)
        self.frame_version += 1

    def attach_frames(self, pages: Int32, unfilled: bool) -> None:
        """Give frames to held pages ([n], distinct, without); ENOMEM."""
        if len(pages) > self.free_frames:
            raise SyscallError(Errno.ENOMEM, f"{len(pages)} frames wanted, {self.free_frames} free")
        self._furnish(pages)
        self.unfilled[pages] = unfilled
        if not unfilled:
            self.absent -= len(pages)
        self.frame_version += 1

    def take_scratch_frames(self, n: int) -> Int32:
        """Take n free frames ([n]) that belong to no page, to compute in; n must be free."""
        assert n <= self.free_frames
        frames = self._pop_frames(n)
        self.page[frames] = self.pages
        return frames

    def free_scratch_frames(self, frames: Int32) -> None:
        self._push_frames(frames)

    def mark_filled(self, pages: Int32) -> None:
        assert self.unfilled[pages].all()
        self.unfilled[pages] = False
        self.absent -= len(pages)
        self.frame_version += 1

    # -- Spare frames: free, and written in advance ----------------------------------------------
    def take_spare(self, owner: object) -> int | None:
        """Return a free frame that a step may write for `owner`, or None; it stays free.

        Other allocations take it when no other frame is left.
        """
        if not self._free.count:
            return None
        frame = int(self._free.pop(1)[0])
        self._spares[frame] = owner
        self.page[frame] = self.pages
        return frame

    def has_spare(self, frame: int, owner: object) -> bool:
        return self._spares.get(frame) is owner

    def free_spare(self, frame: int, owner: object) -> None:
        if self._spares.get(frame) is owner:
            del self._spares[frame]
            self._push_frames(np.array([frame], np.int32))

    def use_spare(self, frame: int, owner: object, page: int) -> bool:
        """Put a page that was just allocated into a spare frame; return whether."""
        if self._spares.get(frame) is not owner:
            return False
        del self._spares[frame]
        others = self.frame[page : page + 1].copy()
        self.frame[page], self.page[frame] = frame, page
        self._push_frames(others)
        return True

    def _pop_frames(self, n: int) -> Int32:
        """Take n free frames ([n]), spares last; n must be free."""
        if n > self._free.count:
            for frame, owner in list(self._spares.items()):
                self.free_spare(frame, owner)
        return self._free.pop(n)

    # -- Recovery -------------------------------------------------------------------------------
    def attach_imaginary_frames(self) -> None:
        """Give every held page an imaginary frame until `reset_frames`."""
        self.reset_frames(self.pages)
        self._furnish(np.flatnonzero(self.references > 0).astype(np.int32))
        self.absent = 0

    def reset_frames(self, frames: int) -> None:
        """Start with a device of `frames` frames that has no page's content."""
        self.frames = frames
        self.page = np.full(frames, NOWHERE, np.int32)
        self._free, self._spares = NumberStack(frames), {}
        self.frame[:] = NOWHERE
        self.unfilled[:] = False
        self.absent = int((self.references > 0).sum())
        self.frame_version += 1

    # -- Slots ----------------------------------------------------------------------------------
    def is_absent(self, pages: Int32) -> Bool:
        """Return for each page ([n]) whether its content is not on the device."""
        absent: Bool = (self.frame[pages] < 0) | self.unfilled[pages]
        return absent

    def device_slots(self, slots: Int64) -> Int64:
        """Return the device's slots for slots of pages with frames ([c] each)."""
        frames = self.frame[slots // PAGE_TOKENS]
        assert not self.absent or not len(frames) or frames.min() >= 0, "a page has no frame"
        return frames.astype(np.int64) * PAGE_TOKENS + slots % PAGE_TOKENS

    def check_integrity(self, expected: Int64) -> None:
        """Compare the counts with the files' page tables (`expected`: [pages]); KernelBug."""
        wrong = np.flatnonzero(self.references != expected)
        if len(wrong):
            page = int(wrong[0])
            raise KernelBug(
                f"{len(wrong)} pages have a wrong count; page {page} has "
                f"{int(self.references[page])}, the page tables hold it {int(expected[page])} times"
            )
        if not np.array_equal(self._unused.all(), np.flatnonzero(self.references == 0)):
            raise KernelBug("the free list is not the set of pages without references")
        self._check_frames()

    def _check_frames(self) -> None:
        there = np.flatnonzero(self.frame >= 0)
        if not (self.references[there] > 0).all():
            raise KernelBug("a page without references has a frame")
        used = np.flatnonzero((self.page >= 0) & (self.page < self.pages))  # others are scratch
        if len(used) != len(there) or not np.array_equal(self.page[self.frame[there]], there):
            raise KernelBug("pages and frames disagree")
        if not np.array_equal(self._free.all(), np.flatnonzero(self.page < 0)):
            raise KernelBug("the free frames are not those without a page")
        if not (self.frame[self.unfilled] >= 0).all():
            raise KernelBug("a page without a frame is marked as unfilled")
        whole = len(there) - int(self.unfilled.sum())
        if self.absent != int((self.references > 0).sum()) - whole:
            raise KernelBug(f"{self.absent} held pages are counted as not on the device")
