"""What computes a step for the executor: a model's weights and its page pool on one device.

Two things do: torch, on any device, and the native kernels, on a CPU that has what they need. All
calls but `prepare` come from one thread.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from symphony_kernel.executor.base import Int32, Int64, KVArray, KVLayout, Results, Row
from symphony_kernel.executor.bitmask import BitmaskBuffers, RowMasks
from symphony_kernel.executor.sampling import SamplingRequest
from symphony_kernel.protocol.errno import SyscallError


class Pages(Protocol):
    """The pages of a network's pool, and those in host memory beside it, by number ([n], distinct).

    What is read and written as an array is described at `KVLayout`.
    """

    @property
    def layout(self) -> KVLayout:
        """What K and V of a page are here."""

    def open_host(self, pages: int) -> None:
        """Make room for so many pages in host memory, of one number for ever; MemoryError."""

    def host_page(self, slot: int) -> memoryview:
        """Return the bytes of a host slot; any thread may ask, before and after `open_host`."""

    def save(self, frames: Int32, slots: Int32) -> None:
        """Copy pages from frames to host slots; they are there when `settle` has returned."""

    def load(self, slots: Int32, frames: Int32) -> None:
        """Copy pages from host slots to frames, before what is computed next reads them."""

    def settle(self) -> float:
        """Wait until no page moves from or to the host, at the end of each step that moved any.

        Returns the seconds that moves took beside what the calls of `save` and `load` did.
        """

    def read_frames(self, frames: Int32) -> KVArray:
        """Return pages in frames."""

    def write_frames(self, frames: Int32, values: KVArray) -> None:
        """Write pages into frames."""

    def read_host(self, slots: Int32) -> KVArray:
        """Return pages in host slots."""

    def write_host(self, slots: Int32, values: KVArray) -> None:
        """Write pages into host slots."""


class Network(Protocol):
    """A model and the K and V of its pages."""

    @property
    def pages(self) -> Pages:
        """The pages, as such."""

    def copy(self, group: Int64) -> None:
        """Copy slots of all layers: [2, c] sources and destinations, all reads first."""

    def poison(self, pages: Int32) -> None:
        """Fill pages with NaN."""

    def prepare(self, rows: Sequence[Row]) -> Any:
        """Do what can be done of a step of at least one row before its turn comes, for `compute`.

        On the thread that gives steps. None: it is to be computed with `forward` and `answer`.
        """

    def room(self, step: Any) -> BitmaskBuffers | None:
        """Return where the masks of a prepared step's rows belong, if it has a place for them."""

    def compute(self, step: Any, masks: Callable[[], RowMasks] | None = None) -> Results:
        """Compute what `prepare` returned, once; return each row's result.

        `masks` waits for the masks of rows that have one; it is called when they are needed, if
        they are not in the step's own room by then.
        """

    def forward(self, rows: Sequence[Row]) -> list[int]:
        """Compute the entries of at least one row.

        Returns the rows that want results, in the order in which `answer` numbers their places.
        """

    def answer(self, first: int, asks: Sequence[SamplingRequest]) -> list[bytes | SyscallError]:
        """Return what is asked about places of the last `forward`, from `first` on.

        Each ask has as many places as positions (see `sampling.answer`).
        """

    def release(self) -> None:
        """Give the memory back."""
