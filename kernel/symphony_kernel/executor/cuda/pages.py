"""Pages of a pool on a GPU and in pinned host memory.

Pages that leave are gathered into a staging buffer on the computing stream, which takes no longer
than reading them. Another stream copies them to the host while the step computes. Pages that come
use a third stream; only the last move, from the staging buffer into their frames, is on the
computing stream:

   save   computing  ──[gather]──────────────────[rows]────────────────────
          leaving             └──[to the host]──────────── host_page
   load   coming     ──[from the host]──┐
          computing  ───────────────────[scatter]──[rows]──────────────────

So a frame is read before any later step writes it, and rows wait only for their own pages. A load
of a slot that is being saved waits for the save. A step does not wait for its moves: who wants a
host slot waits for those that use it. Pages that are read or written for journals take the same
ways, through pinned buffers. On a CPU there are no streams and all is done in the order of the
calls, for tests.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from symphony_kernel.executor.base import Int32, Int64, KVArray
from symphony_kernel.executor.cuda.lanes import Buffer, Event, Lane
from symphony_kernel.executor.cuda.staging import to_device
from symphony_kernel.executor.models.config import ModelConfig
from symphony_kernel.protocol.limits import PAGE_TOKENS

# Of one staging buffer; each direction has two. It takes some 1.2 ms of a PCIe 5 link.
STAGING_BYTES = 64 << 20
_BUFFERS = 2


@dataclass(frozen=True, slots=True)
class _Move:
    """Pages on their way between a buffer and host slots."""

    slots: Int32
    saves: bool
    began: Event
    ended: Event


class CudaPages:
    """The pages of a GPU pool (see `base.Pages`).

    `pool` is [layers, pages + 1, 2 (K, V), PAGE_TOKENS, kv_heads, head_dim]; its last page is
    padding and belongs to no file. A host slot is a page of it, [layers, 2, PAGE_TOKENS, kv_heads,
    head_dim]. All calls but `host_page` come from the thread whose current stream computes.
    """

    def __init__(
        self,
        config: ModelConfig,
        pool: Tensor,
        staging_bytes: int = STAGING_BYTES,
        lane: Callable[[torch.device], Lane] = Lane,
    ) -> None:
        self._page = (2, PAGE_TOKENS, config.kv_heads, config.head_dim)
        assert (pool.shape[0], *pool.shape[2:]) == (config.layers, *self._page), pool.shape
        dtype = "bfloat16" if pool.dtype == torch.bfloat16 else "float32"
        self.layout = config.kv_layout(dtype)
        self._pool = pool
        self._staging_bytes = staging_bytes
        # A view, in words of 8 bytes: [pages + 1, layers, words].
        self._frames = pool.flatten(2).view(torch.int64).transpose(0, 1)
        self._host = torch.empty(0, dtype=torch.int64)  # [slots, layers, words]
        self._pinned = 0  # its address, if pinned
        self._leaving, self._coming = lane(pool.device), lane(pool.device)
        self._moves: tuple[_Move, ...] = ()  # that had not ended when they were last looked at
        self._moved = 0  # pages, since the last `settle`
        self._page_seconds = 0.0  # of a page's move, as far as known

    def close(self) -> None:
        self._wait_for_moves()
        self._moves = ()
        if self._pinned:
            _unpin(self._pinned)
            self._pinned = 0
        self._leaving.buffers, self._coming.buffers = [], []
        self._pool = self._frames = self._host = torch.empty(0, dtype=torch.int64)

    def open_host(self, pages: int) -> None:
        """Allocate host slots; with a GPU the memory is pinned, so touched at once."""
        if len(self._host):
            assert pages == len(self._host), "host memory has another size already"
            return
        try:
            self._make_buffers()
            host = torch.empty((pages, *self._frames.shape[1:]), dtype=torch.int64)
            if self._frames.is_cuda and pages:
                self._pinned = _pin(host)
        except RuntimeError as error:  # torch reports a lack of memory so
            raise MemoryError(f"no memory for {pages} pages on the host") from error
        self._host = host

    def host_page(self, slot: int) -> memoryview:
        """Return a slot's bytes; wait for a move of an ended step that still uses them."""
        if self._moves:
            self._wait_for_moves(np.array([slot], np.int32))
        return self._host[slot].view(torch.uint8).numpy().reshape(-1).data

    def save(self, frames: Int32, slots: Int32) -> None:
        """Start to copy pages from frames to host slots ([n] each)."""
        for portion, places in self._portions(frames, slots):
            buffer = self._gather(portion)
            with self._moving(self._leaving, places, saves=True):
                for here, there in _runs(places):
                    self._leaving.copy(self._host[there], buffer.pages[here])
                buffer.used = self._leaving.mark()

    def load(self, slots: Int32, frames: Int32) -> None:
        if any(move.saves and np.isin(move.slots, slots).any() for move in self._moves):
            self._coming.wait_for(self._leaving)
        for portion, places in self._portions(frames, slots):
            buffer = self._coming.next_buffer()
            with self._moving(self._coming, places, saves=False):
                buffer.used.wait()
                for here, there in _runs(places):
                    self._coming.copy(buffer.pages[here], self._host[there])
            self._scatter(buffer, portion)

    def settle(self) -> float:
        """Return the seconds that the link takes for the moves since the last call.

        It waits for none of them, but for the first of all: the seconds are reckoned from what
        earlier ones took. Who wants a slot waits for its own (`host_page`).
        """
        if not self._page_seconds:
            self._wait_for_moves()
        pages, seconds = 0, 0.0
        for move in self._moves:
            if move.ended.query():
                pages += len(move.slots)
                seconds += move.began.elapsed_time(move.ended) / 1000
        # Replaced, not changed: `host_page` reads it on another thread.
        self._moves = tuple(move for move in self._moves if not move.ended.query())
        if pages:
            self._page_seconds = seconds / pages
        moved, self._moved = self._moved, 0
        return moved * self._page_seconds

    def copy(self, group: Int64) -> None:
        source, destination = to_device(np.ascontiguousarray(group, np.int64), self._pool.device)
        values = self._pool[:, source // PAGE_TOKENS, :, source % PAGE_TOKENS]
        self._pool[:, destination // PAGE_TOKENS, :, destination % PAGE_TOKENS] = values

    def poison(self, frames: Int32) -> None:
        self._pool[:, to_device(frames.astype(np.int64), self._pool.device)] = float("nan")

    def read_frames(self, frames: Int32) -> KVArray:
        """Read pages through pinned memory, next to what computes.

        Steps that were launched go on meanwhile: the host waits for the gather and its copy alone.
        """
        values = np.empty(self.layout.shape(len(frames)), self.layout.numpy)
        before: tuple[slice, Buffer] | None = None
        for places in self._parts(len(frames)):
            buffer = self._gather(frames[places])
            with self._leaving.copying():
                count = places.stop - places.start
                self._leaving.copy(buffer.host[:count], buffer.pages[:count])
                buffer.used = buffer.copied = self._leaving.mark()
            if before is not None:  # two buffers: this one's pages come while those are taken
                self._take(*before, values)
            before = places, buffer
        if before is not None:
            self._take(*before, values)
        return values

    def write_frames(self, frames: Int32, values: KVArray) -> None:
        """Write pages through pinned memory; return before they have been written."""
        for places in self._parts(len(frames)):
            buffer = self._coming.next_buffer()
            count = places.stop - places.start
            buffer.copied.synchronize()
            buffer.host[:count] = self._words(values[:, :, places])
            with self._coming.copying():
                buffer.used.wait()
                self._coming.copy(buffer.pages[:count], buffer.host[:count])
                buffer.copied = self._coming.mark()
            self._scatter(buffer, frames[places])

    def read_host(self, slots: Int32) -> KVArray:
        self._wait_for_moves(slots)
        return self._canonical(self._host[torch.from_numpy(slots.astype(np.int64))])

    def write_host(self, slots: Int32, values: KVArray) -> None:
        self._wait_for_moves(slots)
        self._host[torch.from_numpy(slots.astype(np.int64))] = self._words(values)

    def _gather(self, frames: Int32) -> Buffer:
        """Gather pages into a buffer on the computing stream; the leaving lane waits for that."""
        self._make_buffers()
        buffer = self._leaving.next_buffer()
        buffer.used.wait()
        out = buffer.pages[: len(frames)]
        torch.index_select(self._frames, 0, self._index(frames), out=out)
        self._leaving.wait_for()
        return buffer

    def _scatter(self, buffer: Buffer, frames: Int32) -> None:
        """Write what comes to a buffer into frames, on the computing stream."""
        self._coming.join()
        self._frames.index_copy_(0, self._index(frames), buffer.pages[: len(frames)])
        buffer.used = self._coming.mark()

    def _take(self, places: slice, buffer: Buffer, values: KVArray) -> None:
        """Wait for the pages that leave through a buffer, and put them among `values`."""
        buffer.copied.synchronize()
        values[:, :, places] = self._canonical(buffer.host[: places.stop - places.start])

    @contextmanager
    def _moving(self, lane: Lane, slots: Int32, saves: bool) -> Iterator[None]:
        """Run the block's copies on a lane, and note when they begin and end."""
        with lane.copying():
            began = lane.mark()
            yield
            self._moves = (*self._moves, _Move(slots, saves, began, lane.mark()))
        self._moved += len(slots)

    def _wait_for_moves(self, slots: Int32 | None = None) -> None:
        """Wait for the moves of these host slots; None: for all."""
        for move in self._moves:
            if slots is None or np.isin(move.slots, slots).any():
                move.ended.synchronize()

    def _make_buffers(self) -> None:
        """Make the staging buffers, at first use."""
        if self._leaving.buffers:
            return
        page = self._frames.shape[1:]
        count = max(1, min(len(self._frames), self._staging_bytes // self.layout.page_bytes))
        for lane in (self._leaving, self._coming):
            lane.buffers = [Buffer(self._frames.new_empty((count, *page))) for _ in range(_BUFFERS)]

    def _parts(self, pages: int) -> Iterator[slice]:
        """Yield slices of so many pages, at most a staging buffer's."""
        self._make_buffers()
        count = len(self._leaving.buffers[0].pages)
        for begin in range(0, pages, count):
            yield slice(begin, min(begin + count, pages))

    def _portions(self, frames: Int32, slots: Int32) -> Iterator[tuple[Int32, Int32]]:
        """Yield frames and slots in the slots' order, at most a staging buffer's pages."""
        if not len(slots):
            return
        assert 0 <= slots.min() <= slots.max() < len(self._host)
        order = np.argsort(slots, kind="stable")
        for places in self._parts(len(order)):
            portion = order[places]
            yield frames[portion], slots[portion]

    def _index(self, numbers: Int32) -> Tensor:
        """Return numbers on the device, without waiting for its work."""
        index = torch.from_numpy(numbers.astype(np.int64))
        if not self._frames.is_cuda:
            return index
        return index.pin_memory().to(self._frames.device, non_blocking=True)

    def _canonical(self, pages: Tensor) -> KVArray:
        """Convert [n, layers, words] to the layout of `KVLayout`."""
        values = pages.numpy().view(self.layout.numpy)
        apart = values.reshape(len(pages), self.layout.layers, *self._page)
        return np.ascontiguousarray(apart.transpose(1, 2, 0, 3, 4, 5))

    def _words(self, values: KVArray) -> Tensor:
        assert values.shape == self.layout.shape(values.shape[2]), values.shape
        assert values.dtype == self.layout.numpy, values.dtype
        apart = values.transpose(2, 0, 1, 3, 4, 5).copy()
        words = self._frames.shape[2]
        return torch.from_numpy(
            apart.view(np.int64).reshape(values.shape[2], self.layout.layers, words)
        )


def _runs(slots: Int32) -> Iterator[tuple[slice, slice]]:
    """Yield runs of consecutive numbers among [n] ascending ones: indices, numbers."""
    breaks = np.flatnonzero(np.diff(slots) != 1) + 1
    for begin, end in pairwise([0, *breaks.tolist(), len(slots)]):
        first = int(slots[begin])
        yield slice(begin, end), slice(first, first + end - begin)


def _pin(host: Tensor) -> int:
    """Pin memory in place; return its address.

    torch's own allocator of pinned memory would round the size up to a power of two.
    """
    address = host.data_ptr()
    result = torch.cuda.cudart().cudaHostRegister(  # type: ignore[no-untyped-call]
        address, host.nbytes, 0
    )
    if int(result):
        raise RuntimeError(f"cudaHostRegister of {host.nbytes} bytes: error {int(result)}")
    return address


def _unpin(address: int) -> None:
    torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]
