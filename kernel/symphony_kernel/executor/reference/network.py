"""The network in plain torch: correct on any device, the oracle of the fast paths."""

from collections.abc import Sequence

import torch

from symphony_kernel.executor.adapters.files import AdapterFile
from symphony_kernel.executor.adapters.reference import ReferenceAdapter
from symphony_kernel.executor.base import Float32, Row
from symphony_kernel.executor.network import ForwardOnlyNetwork
from symphony_kernel.executor.reference.decoder import Decoder
from symphony_kernel.executor.reference.pages import TorchPages
from symphony_kernel.executor.reference.step_plan import Geometry, plan_step
from symphony_kernel.executor.sampling import SamplingRequest, answer, host_floats
from symphony_kernel.protocol.errno import SyscallError
from symphony_kernel.protocol.limits import PAGE_TOKENS


class TorchNetwork(ForwardOnlyNetwork):
    """A decoder and its page pool (see `network.Network`).

    The pool is [layers, slots, 2, kv_heads, head_dim] in the model's dtype. After the pages' slots
    it has a page of zeros, which belongs to no file and pads gathered entries.
    """

    computes = "torch"

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
        self.adapters: dict[str, ReferenceAdapter] = {}

    def pack_adapter(self, adapter: AdapterFile) -> ReferenceAdapter:
        return ReferenceAdapter(adapter.products())

    def forward(self, rows: Sequence[Row]) -> list[int]:
        inputs = plan_step(rows, self._geometry, self.adapters)
        self._hidden = self._decoder.forward(inputs, self._pool)
        return inputs.indices

    def answer(self, first: int, requests: Sequence[SamplingRequest]) -> list[bytes | SyscallError]:
        count = sum(len(request.positions) for request in requests)
        return answer(self._decoder.logits(self._hidden[first : first + count]), requests)

    def hidden(self, first: int, count: int) -> Float32:
        return host_floats(self._hidden[first : first + count])

    def release(self) -> None:
        self.pages.close()
        self._pool = self._pool.new_empty(0)
