"""Pages of a pool on a GPU and in pinned host memory.

Pages that leave are gathered into a staging buffer on the computing stream, which takes no longer
than reading them. Another stream copies them to the host while the step computes. Pages that come
use a third stream; only the last move, from the staging buffer into their frames, is on the
computing stream:

   save   computing  ──[gather]──────────────────[rows]────────────────────
          leaving             └──[to the host]──────────── settle
   load   coming     ──[from the host]──┐
          computing  ───────────────────[scatter]──[rows]──────────────────

So a frame is read before any later step writes it, and rows wait only for their own pages. A load
of a slot that is being saved waits for the save. On a CPU there are no streams and all is done in
the order of the calls, for tests.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from symphony_kernel.executor.base import Int32, Int64, KVArray
from symphony_kernel.executor.cuda.staging import to_device
from symphony_kernel.executor.models.config import ModelConfig
from symphony_kernel.protocol.limits import PAGE_TOKENS

# Of one staging buffer; each direction has two. It takes some 1.2 ms of a PCIe 5 link.
STAGING_BYTES = 64 << 20
_BUFFERS = 2


class CudaPages:
    """The pages of a GPU pool (see `base.Pages`).

    `pool` is [layers, pages + 1, 2 (K, V), PAGE_TOKENS, kv_heads, head_dim]; its last page is
    padding and belongs to no file. A host slot is a page of it, [layers, 2, PAGE_TOKENS, kv_heads,
    head_dim]. All calls but `host_page` come from the thread whose current stream computes.
    """

    def __init__(
        self, config: ModelConfig, pool: Tensor, staging_bytes: int = STAGING_BYTES
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
        self._leaving = _Lane(pool.device)
        self._coming = _Lane(pool.device)
        self._saved: list[Int32] = []  # host slots whose pages may be on their way

    def close(self) -> None:
        self.settle()
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
        staged = max(1, min(pages, self._staging_bytes // self.layout.page_bytes))
        page = self._frames.shape[1:]
        try:
            for lane in (self._leaving, self._coming):
                lane.buffers = [
                    _Buffer(self._frames.new_empty((staged, *page))) for _ in range(_BUFFERS)
                ]
            host = torch.empty((pages, *page), dtype=torch.int64)
            if self._frames.is_cuda and pages:
                self._pinned = _pin(host)
        except RuntimeError as error:  # torch reports a lack of memory so
            raise MemoryError(f"no memory for {pages} pages on the host") from error
        self._host = host

    def host_page(self, slot: int) -> memoryview:
        return self._host[slot].view(torch.uint8).numpy().reshape(-1).data

    def save(self, frames: Int32, slots: Int32) -> None:
        """Start to copy pages from frames to host slots ([n] each)."""
        self._saved.append(slots)
        for portion, places in self._portions(frames, slots):
            buffer = self._leaving.next_buffer()
            staged = buffer.pages[: len(portion)]
            buffer.acquire()
            torch.index_select(self._frames, 0, self._index(portion), out=staged)
            self._leaving.wait_for()
            with self._leaving.copying():
                for here, there in _runs(places):
                    self._host[there].copy_(staged[here], non_blocking=True)
                buffer.release()

    def load(self, slots: Int32, frames: Int32) -> None:
        if any(np.isin(saved, slots).any() for saved in self._saved):
            self._coming.wait_for(self._leaving)
        for portion, places in self._portions(frames, slots):
            buffer = self._coming.next_buffer()
            staged = buffer.pages[: len(portion)]
            with self._coming.copying():
                buffer.acquire()
                for here, there in _runs(places):
                    staged[here].copy_(self._host[there], non_blocking=True)
            self._coming.join()
            self._frames.index_copy_(0, self._index(portion), staged)
            buffer.release()

    def settle(self) -> float:
        """Wait for all saves and loads.

        Returns the seconds that the streams spent copying since the last call.
        """
        self._saved.clear()
        return self._leaving.settle() + self._coming.settle()

    def copy(self, group: Int64) -> None:
        source, destination = to_device(np.ascontiguousarray(group, np.int64), self._pool.device)
        values = self._pool[:, source // PAGE_TOKENS, :, source % PAGE_TOKENS]
        self._pool[:, destination // PAGE_TOKENS, :, destination % PAGE_TOKENS] = values

    def poison(self, frames: Int32) -> None:
        self._pool[:, to_device(frames.astype(np.int64), self._pool.device)] = float("nan")

    def read_frames(self, frames: Int32) -> KVArray:
        return self._canonical(self._frames.index_select(0, self._index(frames)).cpu())

    def write_frames(self, frames: Int32, values: KVArray) -> None:
        pages = self._words(values).to(self._frames.device)
        self._frames.index_copy_(0, self._index(frames), pages)

    def read_host(self, slots: Int32) -> KVArray:
        self.settle()
        return self._canonical(self._host[torch.from_numpy(slots.astype(np.int64))])

    def write_host(self, slots: Int32, values: KVArray) -> None:
        self.settle()
        self._host[torch.from_numpy(slots.astype(np.int64))] = self._words(values)

    def _portions(self, frames: Int32, slots: Int32) -> Iterator[tuple[Int32, Int32]]:
        """Yield frames and slots in the slots' order, at most a staging buffer's pages."""
        if not len(slots):
            return
        assert 0 <= slots.min() <= slots.max() < len(self._host)
        order = np.argsort(slots, kind="stable")
        count = len(self._leaving.buffers[0].pages)
        for begin in range(0, len(order), count):
            portion = order[begin : begin + count]
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


class _Buffer:
    """A staging buffer on the device: [pages, layers, words]."""

    __slots__ = ("_used", "pages")

    def __init__(self, pages: Tensor) -> None:
        self.pages = pages
        self._used: torch.cuda.Event | None = None

    def acquire(self) -> None:
        """Make the current stream wait for the buffer's last use."""
        if self._used is not None:
            torch.cuda.current_stream(self.pages.device).wait_event(self._used)

    def release(self) -> None:
        """Mark the end of the buffer's use, after the current stream's queued work."""
        if self.pages.is_cuda:
            self._used = torch.cuda.current_stream(self.pages.device).record_event()


class _Lane:
    """Copies of one direction: on a GPU on their own stream, elsewhere at once."""

    def __init__(self, device: torch.device) -> None:
        self.buffers: list[_Buffer] = []
        self._device = device
        self.stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._turn = 0
        self._spans: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def next_buffer(self) -> _Buffer:
        self._turn = (self._turn + 1) % len(self.buffers)
        return self.buffers[self._turn]

    @contextmanager
    def copying(self) -> Iterator[None]:
        """Run the block's copies on the lane's stream, and measure their time."""
        if self.stream is None:
            yield
            return
        began, ended = _timed_event(), _timed_event()
        with torch.cuda.stream(self.stream):
            began.record()
            yield
            ended.record()
        self._spans.append((began, ended))

    def wait_for(self, other: "_Lane | None" = None) -> None:
        """Make later copies wait for the queued work of a lane or the current stream."""
        if self.stream is None:
            return
        before = torch.cuda.current_stream(self._device) if other is None else other.stream
        assert before is not None
        self.stream.wait_stream(before)

    def join(self) -> None:
        """Make later work of the current stream wait for this lane's queued copies."""
        if self.stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self.stream)

    def settle(self) -> float:
        """Wait for all copies; return the seconds that they took since the last call."""
        if self.stream is None:
            return 0.0
        self.stream.synchronize()
        milliseconds: float = sum(began.elapsed_time(ended) for began, ended in self._spans)
        self._spans.clear()
        return milliseconds / 1000


def _timed_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


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
