"""A network on plain torch: correct on any device, and what native kernels are compared with."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from symphony_kernel.executor.base import Results, Row
from symphony_kernel.executor.bitmask import BitmaskBuffers, RowMasks
from symphony_kernel.executor.reference.decoder import Decoder
from symphony_kernel.executor.reference.pages import TorchPages
from symphony_kernel.executor.reference.step_plan import Geometry, plan_step
from symphony_kernel.executor.sampling import SamplingRequest, answer
from symphony_kernel.protocol.errno import SyscallError
from symphony_kernel.protocol.limits import PAGE_TOKENS


class TorchNetwork:
    """A decoder and its page pool (see `network.Network`).

    The pool is [layers, slots, 2, kv_heads, head_dim] in the model's dtype. After the pages' slots
    it has one page of zeros, which belongs to nobody and pads what is gathered.
    """

    def __init__(self, decoder: Decoder, pages: int) -> None:
        self._decoder = decoder
        config = decoder.config
        slots = (pages + 1) * PAGE_TOKENS
        self._pool = torch.zeros(
            (config.layers, slots, 2, config.kv_heads, config.head_dim),
            dtype=decoder.dtype,
            device=decoder.device,
        )
        self.pages = TorchPages(config, self._pool)
        windows = tuple(dict.fromkeys(config.windows))
        self._geometry = Geometry(windows, pages * PAGE_TOKENS, decoder.dtype, decoder.device)
        self._hidden = self._pool.new_empty(0)

    def prepare(self, rows: Sequence[Row]) -> None:
        """There is nothing to prepare."""

    def room(self, step: Any) -> BitmaskBuffers | None:
        """Never called: nothing was prepared."""
        raise AssertionError(step)

    def compute(self, step: Any, masks: Callable[[], RowMasks] | None = None) -> Results:
        """Never called: nothing was prepared."""
        raise AssertionError(step, masks)

    def forward(self, rows: Sequence[Row]) -> list[int]:
        """Compute the rows' entries."""
        plan = plan_step(rows, self._geometry)
        self._hidden = self._decoder.forward(plan.inputs, self._pool)
        return plan.indices

    def answer(self, first: int, asks: Sequence[SamplingRequest]) -> list[bytes | SyscallError]:
        """Answer from the logits of places of the last step."""
        count = sum(len(ask.positions) for ask in asks)
        return answer(self._decoder.logits(self._hidden[first : first + count]), asks)

    def release(self) -> None:
        """Give the pool back."""
        self.pages.close()
        self._pool = self._pool.new_empty(0)
