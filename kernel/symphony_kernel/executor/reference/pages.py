"""The pages of the torch network: its pool, and host memory."""

import numpy as np
import torch
from torch import Tensor

from symphony_kernel.executor.base import Int32, Int64, KVArray
from symphony_kernel.executor.models.config import ModelConfig
from symphony_kernel.protocol.limits import PAGE_TOKENS


class TorchPages:
    """The pages of a torch pool (see `base.Pages`).

    `pool` is [layers, slots, 2, kv_heads, head_dim]. A host slot is a page of it, [layers,
    PAGE_TOKENS, 2, kv_heads, head_dim].
    """

    def __init__(self, config: ModelConfig, pool: Tensor) -> None:
        dtype = "bfloat16" if pool.dtype == torch.bfloat16 else "float32"
        self.layout = config.kv_layout(dtype)
        self._slots = pool
        # A view: [layers, pages, PAGE_TOKENS, 2, kv_heads, head_dim].
        self._pool = pool.view(config.layers, -1, PAGE_TOKENS, *pool.shape[2:])
        self._host = pool.new_empty(0)

    def close(self) -> None:
        self._slots = self._pool = self._host = self._pool.new_empty(0)

    def open_host(self, pages: int) -> None:
        if len(self._host):
            assert pages == len(self._host), "host memory has another size already"
            return
        try:
            self._host = torch.empty((pages, *self._pool[:, 0].shape), dtype=self._pool.dtype)
        except RuntimeError as error:
            raise MemoryError(f"no memory for {pages} pages on the host") from error

    def host_page(self, slot: int) -> memoryview:
        page = self._host[slot].view(torch.uint8).numpy()
        return page.reshape(-1).data

    def save(self, frames: Int32, slots: Int32) -> None:
        pages = self._pool.index_select(1, self._index(frames)).transpose(0, 1)
        self._host.index_copy_(0, _cpu_index(slots), pages.cpu())

    def load(self, slots: Int32, frames: Int32) -> None:
        pages = self._host.index_select(0, _cpu_index(slots)).to(self._pool.device)
        self._pool.index_copy_(1, self._index(frames), pages.transpose(0, 1))

    def settle(self) -> float:
        return 0.0

    def copy(self, group: Int64) -> None:
        source, destination = torch.from_numpy(group).to(self._slots.device)
        self._slots.index_copy_(1, destination, self._slots.index_select(1, source))

    def poison(self, frames: Int32) -> None:
        self._pool[:, self._index(frames)] = float("nan")

    def read_frames(self, frames: Int32) -> KVArray:
        return _canonical(self._pool.index_select(1, self._index(frames)))

    def write_frames(self, frames: Int32, values: KVArray) -> None:
        pages = _from_canonical(values, self._pool.dtype).to(self._pool.device)
        self._pool.index_copy_(1, self._index(frames), pages)

    def read_host(self, slots: Int32) -> KVArray:
        return _canonical(self._host.index_select(0, _cpu_index(slots)).transpose(0, 1))

    def write_host(self, slots: Int32, values: KVArray) -> None:
        pages = _from_canonical(values, self._host.dtype).transpose(0, 1)
        self._host.index_copy_(0, _cpu_index(slots), pages)

    def _index(self, frames: Int32) -> Tensor:
        return _cpu_index(frames).to(self._pool.device)


def _cpu_index(numbers: Int32) -> Tensor:
    return torch.from_numpy(numbers.astype(np.int64))


def _canonical(pages: Tensor) -> KVArray:
    """Return [layers, n, PAGE_TOKENS, 2, ..] in the layout of `KVLayout`."""
    apart = pages.permute(0, 3, 1, 2, 4, 5).contiguous().cpu()
    if apart.dtype == torch.bfloat16:
        apart = apart.view(torch.uint16)
    values: KVArray = apart.numpy()
    return values


def _from_canonical(values: KVArray, dtype: torch.dtype) -> Tensor:
    apart = torch.from_numpy(np.ascontiguousarray(values))
    return apart.view(dtype).permute(0, 2, 3, 1, 4, 5)
