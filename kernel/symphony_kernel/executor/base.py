"""The executor contract: what the kernel needs from a device.

An executor owns the model's weights, a pool of frames on the device, and slots for pages in host
memory. A frame holds K and V of one page in all layers. The executor knows no files, tenants or
programs: a step names frames and slots. Slot `s` is entry `s % PAGE_TOKENS` of frame
`s // PAGE_TOKENS`; a host slot holds a whole page.

Steps run one after the other, in the order in which they were given. Each write of a later step
happens after all reads of earlier steps. So the kernel can reuse a frame or a host slot at once,
as soon as no later step can read it for its old owner.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from mypy_extensions import mypyc_attr

from symphony_kernel.executor.chained_batch import Chain
from symphony_kernel.protocol.errno import SyscallError
from symphony_kernel.protocol.limits import PAGE_TOKENS
from symphony_kernel.protocol.pred_options import DEFAULT, PredOptions

_T = TypeVar("_T")
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
UInt32 = npt.NDArray[np.uint32]
Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What `model_info` tells programs, and the windows, by which the kernel counts costs.

    `dtype` is "float32" or "bfloat16". `windows` has one a layer, None: it sees all entries; an
    empty one means that all layers do.
    """

    name: str
    vocab_size: int
    eos: tuple[int, ...]
    bos: int | None
    max_context: int
    dtype: str
    hidden_size: int
    windows: tuple[int | None, ...] = ()


class AdapterSize(NamedTuple):
    """What a loaded adapter takes."""

    bytes: int  # of memory
    rank: int  # the largest


@dataclass(frozen=True, slots=True)
class KVLayout:
    """The layout of pages that leave or enter an executor.

    Pages travel as one array [layers, 2 (K, V), pages, PAGE_TOKENS, kv_heads, head_dim] of the
    pool's `dtype`: "float32", "bfloat16" (its bits, as uint16), or "uint64" of the simulated
    executor. K is rotated already.
    """

    layers: int
    kv_heads: int
    head_dim: int
    dtype: str

    def shape(self, pages: int) -> tuple[int, int, int, int, int, int]:
        return (self.layers, 2, pages, PAGE_TOKENS, self.kv_heads, self.head_dim)

    @property
    def numpy(self) -> "np.dtype[np.generic]":
        """NumPy's type of one element."""
        return np.dtype("uint16" if self.dtype == "bfloat16" else self.dtype)

    @property
    def page_bytes(self) -> int:
        elements = self.layers * 2 * PAGE_TOKENS * self.kv_heads * self.head_dim
        return elements * self.numpy.itemsize


class Matcher(Protocol):
    """A constraint's state along one sequence: which tokens may come next."""

    ended: float  # when the last mask was made, in seconds of its thread's time

    def fill(
        self,
        start: int,
        tokens: UInt32,
        mask: UInt32,
        began: float | None = None,
        address: int | None = None,
    ) -> SyscallError | None:
        """Write which tokens may follow a row's own tokens ([q], from entry `start` on).

        `mask` is [ceil(vocab_size / 32)]: bit t % 32 of word t // 32 allows token t. Rows come in
        their sequence's order, except for rows that are repeated. An error becomes the row's
        result. EAGAIN means that the row will be repeated. `began` is the calling thread's time
        now, and `address` the mask's address, if the caller knows them.
        """


@mypyc_attr(allow_interpreted_subclasses=True)
class Row:
    """One sequence's share of a step: `q` new entries after `start` present ones.

    Entry i of the sequence (0 <= i < start + q) lies in slot
    `block_table[i // PAGE_TOKENS] * PAGE_TOKENS + i % PAGE_TOKENS`.
    New token j attends to all `start` present entries, to itself, and to the new tokens before it.
    With `parents` it attends to its ancestors only among the new tokens (parent -1: none). Order in
    the file, not position, decides what is visible; `positions` feed the rotary embedding. A
    sliding window counts the entries that a token would see without a window, itself included:
    other branches of a tree do not count.
    """

    # Row and Batch are no dataclasses: each token makes a row, and mypyc does not compile the code
    # that makes a dataclass.
    __slots__ = (
        "block_table", "matcher", "options", "parents", "places", "positions", "seed", "start",
        "tokens",
    )  # fmt: skip

    def __init__(
        self,
        tokens: UInt32,
        positions: Int32,
        start: int,
        block_table: Int32,
        places: Int32,
        options: PredOptions = DEFAULT,
        parents: Int32 | None = None,
        seed: int = 0,
        matcher: Matcher | None = None,
    ) -> None:
        self.tokens = tokens  # [q]
        self.positions = positions  # [q]
        self.start = start
        self.block_table = block_table  # [ceil((start + q) / PAGE_TOKENS)]
        self.places = places  # [w] indices into the q tokens, in the order of the results
        # get, sampling, top, of, biases, allow; the scheduler handles the rest
        self.options = options
        self.parents = parents  # [q]
        # u64 for Get.SAMPLE: options.sampling.seed, or a number that the kernel drew. The noise at
        # a place is a function of this seed, of the token's position (`positions[place]`) and of
        # its id.
        self.seed = seed
        self.matcher = matcher  # only of a row with one place, after its last token


@mypyc_attr(allow_interpreted_subclasses=True)
class Batch:
    """One step, in this order: saves, copies (group by group), poison, loads, rows."""

    __slots__ = (
        "chain", "copies", "loads", "moved_seconds", "note", "poison", "prepared", "results",
        "rows", "saves", "unadapted",
    )  # fmt: skip

    def __init__(
        self,
        rows: list[Row],
        copies: list[Int64] | None = None,
        saves: Int32 | None = None,
        loads: Int32 | None = None,
        poison: Int32 | None = None,
        chain: Chain | None = None,
    ) -> None:
        self.rows = rows
        # Each group is [2, c]: source and destination slots. Within a group all reads come before
        # all writes, and destinations are distinct.
        self.copies: list[Int64] = [] if copies is None else copies
        self.saves = saves  # [2, c]: frames, and the host slots to copy them to
        self.loads = loads  # [2, c]: host slots, and the frames to copy them to
        self.poison = poison  # frames to fill with a value that shows when it is read: for tests
        self.chain = chain  # the rows' tokens come from the batch before: see `Chain`
        # Seconds that saves and loads took; the executor sets it before the step ends.
        self.moved_seconds = 0.0
        self.unadapted: list[int] = []  # rows whose adapter the executor does not have
        # What the executor keeps for a batch that follows this one.
        self.prepared: Any = None
        self.results: Results = []  # once the step has ended
        self.note: Any = None  # the kernel's own: the state of its pages when it made the batch

    @property
    def tokens(self) -> int:
        return sum(len(row.tokens) for row in self.rows)

    def note_unadapted(self, loaded: Mapping[str, object] | None) -> None:
        """Note the rows whose adapter is not in `loaded`: their results are errors."""
        for index, row in enumerate(self.rows):
            adapter = row.options.adapter
            if adapter and (loaded is None or adapter not in loaded):
                self.unadapted.append(index)

    def begin(self, results: "Results") -> bool:
        """Begin a chained batch, if it may begin, and give its rows their tokens.

        `results` are of the batch before (see `Chain.begin`).
        """
        assert self.chain is not None
        if not self.chain.begin(results) or self.chain.tokens is None:
            return False
        for row, token in zip(self.rows, self.chain.tokens, strict=False):  # others have theirs
            row.tokens = np.array([token], np.uint32)
        return True


Results: TypeAlias = list[bytes | SyscallError]  # one a row
KVArray: TypeAlias = npt.NDArray[np.generic]  # see `KVLayout`


class Pages(Protocol):
    """The K and V of an executor's pages, in frames and in host slots.

    Numbers of frames and slots are [n] and distinct. All methods but `host_page` run on the
    device's thread: call them through `Executor.after_steps`. `KVLayout` describes the arrays.
    """

    @property
    def layout(self) -> KVLayout: ...

    def open_host(self, pages: int) -> None:
        """Allocate host slots for `pages` pages (see `Executor.open_host`)."""

    def host_page(self, slot: int) -> memoryview:
        """Return the bytes of a host slot, in the executor's own format, to read or write.

        All slots have the same size. Any thread may call this; the caller knows that no present or
        future step moves a page from or to the slot while it uses the bytes. Waits for moves of
        steps that have ended, if they still use the slot.
        """

    def save(self, frames: Int32, slots: Int32) -> None:
        """Copy pages from frames to host slots; who wants a slot waits for it (`host_page`)."""

    def load(self, slots: Int32, frames: Int32) -> None:
        """Copy pages from host slots to frames, before the next computation reads them."""

    def settle(self) -> float:
        """Return the seconds of saves and loads in addition to their calls; may wait for them.

        Called at the end of each step that has any. Of moves that go on it is an estimate.
        """

    def copy(self, group: Int64) -> None:
        """Copy slots in all layers: [2, c] sources and destinations, all reads first."""

    def poison(self, frames: Int32) -> None:
        """Fill frames with a value that shows when it is read, e.g. NaN. For tests."""

    def read_frames(self, frames: Int32) -> KVArray: ...

    def write_frames(self, frames: Int32, values: KVArray) -> None: ...

    def read_host(self, slots: Int32) -> KVArray: ...

    def write_host(self, slots: Int32, values: KVArray) -> None: ...


def prepare_pages(pages: Pages, batch: Batch) -> None:
    """Do what comes before a batch's rows, in its order; set `moved_seconds`."""
    seconds = 0.0
    if batch.saves is not None:
        began = time.perf_counter()
        pages.save(*batch.saves)
        seconds += time.perf_counter() - began
    for group in batch.copies:
        pages.copy(group)
    if batch.poison is not None:
        pages.poison(batch.poison)
    if batch.loads is not None:
        began = time.perf_counter()
        pages.load(*batch.loads)
        seconds += time.perf_counter() - began
    batch.moved_seconds = seconds


class Executor(Protocol):
    """A device with a model and a pool of `frame_count` frames.

    It may also have `start(batch) -> StepFuture[Results]`: `run` without a coroutine, which the
    step loop prefers. `follows` says that it takes batches that follow others; the results of such
    a batch are empty if it never began. `launches_ahead` says that it launches them before that.
    """

    model: ModelInfo
    computes: str  # for operators: "native", "cuda", "torch" or "simulated"
    frame_count: int

    @property
    def pages(self) -> Pages: ...

    def open_host(self, pages: int) -> None:
        """Allocate `pages` host slots; their memory is touched when it comes into use.

        Blocks. Call it before the first step. A second call with the same number does nothing.

        Raises MemoryError: there is no memory for them.
        """

    async def run(self, batch: Batch) -> Results:
        """Compute one step; return each row's result, places in order (see `options.Get`).

        A row whose options cannot be answered, such as an `allow` mask that allows no token, has a
        `SyscallError` as its result; its entries are computed all the same.

        Calls may overlap; steps do not. Raises what went wrong on the device. Then the contents of
        the batch's new slots are undefined and everything else is intact.
        """

    async def after_steps(self, work: Callable[[], _T]) -> _T:
        """Return the result of `work`, run on the device's thread after the given steps.

        Example: `await executor.after_steps(lambda: executor.pages.read_frames(frames))`.
        """

    def load_adapter(self, identity: str, folder: Path) -> AdapterSize:
        """Load an adapter; rows whose options have this identity use it from then on.

        Blocks, on any thread. Raises AdapterError, CheckpointError: the folder cannot be used;
        MemoryError.
        """

    def drop_adapter(self, identity: str) -> None:
        """Unload an adapter. Rows that are given later and have it fail with EIO."""

    async def close(self) -> None:
        """Wait for the last step and release the device."""
