"""Pages of a pool on a GPU, and those in pinned host memory beside it.

Pages that leave are gathered into a staging buffer on the stream that computes, which takes no
longer than reading them, and go on to the host on a stream of their own, while the step computes.
Pages that come do so on another stream, and only their last move, from the staging buffer into
their frames, is the computing stream's:

    save   computing  ──[gather]──────────────────[rows]────────────────────
           leaving             └──[to the host]──────────── settle
    load   coming     ──[from the host]──┐
           computing  ───────────────────[scatter]──[rows]──────────────────

So a frame is read before any later step writes it, and rows wait for nothing but their own pages.
What is loaded while it is being saved waits for the save. On a CPU there are no streams, and all
is done in the order of the calls: for tests of it anywhere.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from symphony_kernel.executor.base import Int32, Int64, KVArray, KVLayout
from symphony_kernel.executor.cuda.staging import to_device
from symphony_kernel.executor.models.config import ModelConfig
from symphony_kernel.protocol.limits import PAGE_TOKENS

# Of one staging buffer, of which each direction has two: some 1.2 ms of a PCIe 5 link.
STAGING_BYTES = 64 << 20
_BUFFERS = 2


class CudaPages:
    """The pages of a pool, and those in host memory beside it (see `network.Pages`).

    `pool` is [layers, pages + 1, 2 (K, V), PAGE_TOKENS, kv_heads, head_dim]; its last page pads
    what has no entry and belongs to nobody. A host slot is a page of it, [layers, 2, PAGE_TOKENS,
    kv_heads, head_dim]. All calls but `host_page` come from the thread whose current stream
    computes.
    """

    def __init__(
        self, config: ModelConfig, pool: Tensor, staging_bytes: int = STAGING_BYTES
    ) -> None:
        self._page = (2, PAGE_TOKENS, config.kv_heads, config.head_dim)
        assert (pool.shape[0], *pool.shape[2:]) == (config.layers, *self._page), pool.shape
        dtype = "bfloat16" if pool.dtype == torch.bfloat16 else "float32"
        self.layout = KVLayout(config.layers, config.kv_heads, config.head_dim, dtype)
        self._pool = pool
        self._staging_bytes = staging_bytes
        # Pages are moved in words of 8 bytes: [pages + 1, layers, words], a view.
        self._frames = pool.flatten(2).view(torch.int64).transpose(0, 1)
        self._host = torch.empty(0, dtype=torch.int64)  # [slots, layers, words]
        self._pinned = 0  # its address, if it is
        self._leaving = _Lane(pool.device)
        self._coming = _Lane(pool.device)
        self._saved: list[Int32] = []  # host slots whose pages may be under way

    def close(self) -> None:
        """Give the memory back."""
        self.settle()
        if self._pinned:
            _unpin(self._pinned)
            self._pinned = 0
        self._leaving.buffers, self._coming.buffers = [], []
        self._pool = self._frames = self._host = torch.empty(0, dtype=torch.int64)

    def open_host(self, pages: int) -> None:
        """Make room for so many pages; beside a GPU the memory is pinned, so touched at once."""
        if len(self._host):
            assert pages == len(self._host), "the host's memory is there"
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
        except RuntimeError as error:  # torch's own for a lack of memory is one
            raise MemoryError(f"no memory for {pages} pages on the host") from error
        self._host = host

    def host_page(self, slot: int) -> memoryview:
        """Return the bytes of a host slot."""
        return self._host[slot].view(torch.uint8).numpy().reshape(-1).data

    def save(self, frames: Int32, slots: Int32) -> None:
        """Begin to copy pages from frames to host slots ([n] each): `settle` waits for them."""
        self._saved.append(slots)
        for portion, places in self._portions(frames, slots):
            buffer = self._leaving.next_buffer()
            staged = buffer.pages[: len(portion)]
            buffer.acquire()
            torch.index_select(self._frames, 0, self._index(portion), out=staged)
            self._leaving.follow()
            with self._leaving.copying():
                for here, there in _runs(places):
                    self._host[there].copy_(staged[here], non_blocking=True)
                buffer.release()

    def load(self, slots: Int32, frames: Int32) -> None:
        """Copy pages from host slots to frames ([n] each), before what is computed next."""
        if any(np.isin(saved, slots).any() for saved in self._saved):
            self._coming.follow(self._leaving)
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
        """Wait until what was saved is on the host, and what is loaded is needed there no more.

        Returns the seconds that the streams spent copying since the last time.
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
        """Return pages (see `KVLayout`)."""
        return self._canonical(self._frames.index_select(0, self._index(frames)).cpu())

    def write_frames(self, frames: Int32, values: KVArray) -> None:
        """Write pages (see `KVLayout`)."""
        pages = self._words(values).to(self._frames.device)
        self._frames.index_copy_(0, self._index(frames), pages)

    def read_host(self, slots: Int32) -> KVArray:
        """Return pages in host slots (see `KVLayout`)."""
        self.settle()
        return self._canonical(self._host[torch.from_numpy(slots.astype(np.int64))])

    def write_host(self, slots: Int32, values: KVArray) -> None:
        """Write pages into host slots (see `KVLayout`)."""
        self.settle()
        self._host[torch.from_numpy(slots.astype(np.int64))] = self._words(values)

    def _portions(self, frames: Int32, slots: Int32) -> Iterator[tuple[Int32, Int32]]:
        """Yield frames and their slots in the slots' order, as many as a staging buffer takes."""
        if not len(slots):
            return
        assert 0 <= slots.min() <= slots.max() < len(self._host)
        order = np.argsort(slots, kind="stable")
        room = len(self._leaving.buffers[0].pages)
        for begin in range(0, len(order), room):
            portion = order[begin : begin + room]
            yield frames[portion], slots[portion]

    def _index(self, numbers: Int32) -> Tensor:
        """Return numbers on the device, without waiting for what it is at."""
        index = torch.from_numpy(numbers.astype(np.int64))
        if not self._frames.is_cuda:
            return index
        return index.pin_memory().to(self._frames.device, non_blocking=True)

    def _canonical(self, pages: Tensor) -> KVArray:
        """From [n, layers, words]."""
        values = pages.numpy().view(self.layout.numpy)
        apart = values.reshape(len(pages), self.layout.layers, *self._page)
        return np.ascontiguousarray(apart.transpose(1, 2, 0, 3, 4, 5))

    def _words(self, values: KVArray) -> Tensor:
        """Return [n, layers, words]."""
        assert values.shape == self.layout.shape(values.shape[2]), values.shape
        assert values.dtype == self.layout.numpy, values.dtype
        apart = values.transpose(2, 0, 1, 3, 4, 5).copy()
        words = self._frames.shape[2]
        return torch.from_numpy(
            apart.view(np.int64).reshape(values.shape[2], self.layout.layers, words)
        )


class _Buffer:
    """Room for pages between a pool and the host: [pages, layers, words] on the device."""

    __slots__ = ("_used", "pages")

    def __init__(self, pages: Tensor) -> None:
        self.pages = pages
        self._used: torch.cuda.Event | None = None

    def acquire(self) -> None:
        """Have the current stream wait for its last use."""
        if self._used is not None:
            torch.cuda.current_stream(self.pages.device).wait_event(self._used)

    def release(self) -> None:
        """Its use ends with what the current stream has been given."""
        if self.pages.is_cuda:
            self._used = torch.cuda.current_stream(self.pages.device).record_event()


class _Lane:
    """Copies of one direction: beside a GPU on a stream of its own, elsewhere at once."""

    def __init__(self, device: torch.device) -> None:
        self.buffers: list[_Buffer] = []
        self._device = device
        self.stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._turn = 0
        self._spans: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def next_buffer(self) -> _Buffer:
        """Return the buffer that has not been used for longest."""
        self._turn = (self._turn + 1) % len(self.buffers)
        return self.buffers[self._turn]

    @contextmanager
    def copying(self) -> Iterator[None]:
        """Let what is done within be done on its stream, and take the time."""
        if self.stream is None:
            yield
            return
        began, ended = _timed_event(), _timed_event()
        with torch.cuda.stream(self.stream):
            began.record()
            yield
            ended.record()
        self._spans.append((began, ended))

    def follow(self, other: "_Lane | None" = None) -> None:
        """What comes waits for what another lane, or the current stream, has been given."""
        if self.stream is None:
            return
        before = torch.cuda.current_stream(self._device) if other is None else other.stream
        assert before is not None
        self.stream.wait_stream(before)

    def join(self) -> None:
        """What the current stream is given next waits for what this one has been given."""
        if self.stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self.stream)

    def settle(self) -> float:
        """Wait for all of it; return the seconds that it took since the last time."""
        if self.stream is None:
            return 0.0
        self.stream.synchronize()
        milliseconds: float = sum(began.elapsed_time(ended) for began, ended in self._spans)
        self._spans.clear()
        return milliseconds / 1000


def _timed_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _runs(slots: Int32) -> Iterator[tuple[slice, slice]]:
    """Yield runs of consecutive numbers among [n] ascending ones: where they stand, and which."""
    breaks = np.flatnonzero(np.diff(slots) != 1) + 1
    for begin, end in pairwise([0, *breaks.tolist(), len(slots)]):
        first = int(slots[begin])
        yield slice(begin, end), slice(first, first + end - begin)


def _pin(host: Tensor) -> int:
    """Pin memory where it lies; return its address.

    torch's own allocator of pinned memory would round it up to the next power of two.
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
