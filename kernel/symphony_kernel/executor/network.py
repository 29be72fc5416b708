"""What computes a step for the executor: a model's weights and its page pool on one device.

Two things do: torch, on any device, and the native kernels, on a CPU that has what they need. All
calls but `prepare` come from one thread.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from symphony_kernel.executor.base import Pages, Results, Row
from symphony_kernel.executor.bitmask import BitmaskBuffers, RowMasks
from symphony_kernel.executor.sampling import SamplingRequest
from symphony_kernel.protocol.errno import SyscallError


class Network(Protocol):
    """A model and the K and V of its pages."""

    @property
    def pages(self) -> Pages:
        """The pages, as such."""

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
