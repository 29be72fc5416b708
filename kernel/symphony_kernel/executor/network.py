"""The contract of what computes a step: a model's weights and its page pool.

`reference` implements it with torch on any device, `native` with C++ on a CPU, `cuda` on a GPU, and
`parallel` over several ranks. All calls except `prepare` come from one thread.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from symphony_kernel.executor.adapters.files import AdapterFile
from symphony_kernel.executor.base import Float32, Pages, Results, Row
from symphony_kernel.executor.bitmask import BitmaskBuffers, RowMasks
from symphony_kernel.executor.sampling import SamplingRequest
from symphony_kernel.protocol.errno import SyscallError


class Network(Protocol):
    """A model and the K and V of its pages."""

    computes: str  # see `Executor.computes`

    @property
    def adapters(self) -> dict[str, Any] | None:
        """The packed adapters by identity; None: it computes without adapters."""

    @property
    def pages(self) -> Pages: ...

    def pack_adapter(self, adapter: AdapterFile) -> Any:
        """Return an adapter for `adapters`, which has `bytes`; on any thread; AdapterError."""

    def prepare(self, rows: Sequence[Row]) -> Any:
        """Return a step of at least one row, prepared for `compute` ahead of its turn.

        Called on the thread that queues steps. None: compute the rows with `forward`, `answer` and
        `hidden`; so it is with rows that want hidden states.
        """

    def mask_buffers(self, step: Any) -> BitmaskBuffers | None:
        """Return the buffers for the bitmasks of a prepared step, if it has its own."""

    def compute(self, step: Any, masks: Callable[[], RowMasks] | None = None) -> Results:
        """Compute what `prepare` returned, once; return each row's result.

        `masks` waits for the bitmasks of constrained rows. It is called when they are needed,
        unless they are in the step's own buffers by then.
        """

    def forward(self, rows: Sequence[Row]) -> list[int]:
        """Compute the entries of at least one row.

        Returns the indices of the rows with places, in the order in which `answer` numbers the
        places.
        """

    def answer(self, first: int, requests: Sequence[SamplingRequest]) -> list[bytes | SyscallError]:
        """Return results at places of the last `forward`, starting at place `first`.

        Each request has as many places as positions (see `sampling.answer`).
        """

    def hidden(self, first: int, count: int) -> Float32:
        """Return [count, hidden_size] outputs of the last `forward`, from place `first` on.

        They are what the head multiplies: after the final norm.
        """

    def release(self) -> None:
        """Release the memory."""


class AdapterlessNetwork:
    """A network that computes without adapters."""

    adapters: None = None

    def pack_adapter(self, adapter: AdapterFile) -> Any:
        raise AssertionError(adapter)


class ForwardOnlyNetwork:
    """A network without prepared steps: all go through `forward` and `answer`."""

    def prepare(self, rows: Sequence[Row]) -> None: ...

    def mask_buffers(self, step: Any) -> BitmaskBuffers | None:
        raise AssertionError(step)

    def compute(self, step: Any, masks: Callable[[], RowMasks] | None = None) -> Results:
        raise AssertionError(step, masks)
