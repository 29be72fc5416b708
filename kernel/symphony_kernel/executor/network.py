"""What computes a step for the executor: a model's weights and its page pool on one device.

Two things do: torch, on any device, and the native kernels, on a CPU that has what they need. All
calls but `prepare` come from one thread.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from symphony_kernel.executor.base import Int32, Int64, Results, Row
from symphony_kernel.executor.sampling import Ask
from symphony_kernel.protocol.errno import SyscallError


class Network(Protocol):
    """A model and the K and V of its pages."""

    def copy(self, group: Int64) -> None:
        """Copy slots of all layers: [2, c] sources and destinations, all reads first."""

    def poison(self, pages: Int32) -> None:
        """Fill pages with NaN."""

    def prepare(self, rows: Sequence[Row]) -> Any:
        """Do what can be done of a step of at least one row before its turn comes, for `compute`.

        On the thread that gives steps. None: it is to be computed with `forward` and `answer`.
        """

    def compute(self, step: Any) -> Results:
        """Compute what `prepare` returned, once; return each row's result."""

    def forward(self, rows: Sequence[Row]) -> list[int]:
        """Compute the entries of at least one row.

        Returns the rows that want results, in the order in which `answer` numbers their places.
        """

    def answer(self, first: int, asks: Sequence[Ask]) -> list[bytes | SyscallError]:
        """Return what is asked about places of the last `forward`, from `first` on.

        Each ask has as many places as positions (see `sampling.answer`).
        """

    def release(self) -> None:
        """Give the memory back."""
