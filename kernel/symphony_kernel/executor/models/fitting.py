"""Whether a model's weights and page pool fit into memory.

Checked before a weight is read. It compares what is certainly needed with all memory that could be
available, so that a model that fits is never refused. Norms, buffers of steps and libraries are
left out. On a CPU, so are the embedding, whose rows may stay in the file, and a pool of the default
size, which takes memory as it is used. Matrices that torch leaves in the file count: each step
reads all of them.
"""

import logging
from dataclasses import dataclass, replace
from pathlib import Path

from symphony_kernel.executor.base import KVLayout
from symphony_kernel.executor.models.config import ModelConfig
from symphony_kernel.executor.models.file_reader import CheckpointError
from symphony_kernel.executor.models.shapes import layer_elements
from symphony_kernel.protocol.limits import KV_POOL_BYTES_DEFAULT, KV_POOL_PAGES_MAX

_log = logging.getLogger(__name__)
ELEMENT_BYTES = {"float32": 4, "bfloat16": 2}
_WEIGHT_BYTES = {"int8": (1, 1), "int4": (0.5, 1)}  # of layers, and of the head; without scales


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """A model in a `dtype` of torch's name, over `ranks`, each with a pool.

    `held` are the bytes of a quantized checkpoint's matrices (see `tensor_headers.held_bytes`).
    """

    directory: Path
    config: ModelConfig
    dtype: str
    quantize: str = "none"
    ranks: int = 1
    pool_bytes: int | None = None
    held: int | None = None

    def check_host(self, available: int | None) -> None:
        """Check that all ranks fit into `available` bytes of this machine's memory.

        Raises CheckpointError: they do not.
        """
        products, head = _WEIGHT_BYTES.get(self.quantize, (ELEMENT_BYTES[self.dtype],) * 2)
        weights = int(products * self._products() + head * self._head())
        if self.held is not None and self.ranks == 1:
            weights = self.held  # with any `quantize`
        limit = "this machine, or its cgroup, can give"
        self._check(weights, self.ranks, limit, available, usual_pool=False)

    def check_device(self, available: int) -> None:
        """Check that one rank fits into `available` bytes of its device; CheckpointError."""
        elements = self._products() // self.ranks + self._head()  # the embedding is whole
        if not self.config.tied:
            elements += self._head() // self.ranks
        weights = ELEMENT_BYTES[self.dtype] * elements
        self._check(weights, 1, "the device has free", available, usual_pool=True)

    def _products(self) -> int:
        return self.config.layers * layer_elements(self.config)

    def _head(self) -> int:
        return self.config.vocab_size * self.config.hidden_size

    def _pool(self) -> int:
        """Return the bytes of one rank's pool: whole pages, at least one."""
        kv_heads = max(1, self.config.kv_heads // self.ranks)
        layout = replace(self.config, kv_heads=kv_heads).kv_layout(self.dtype)
        return layout.page_bytes * max(1, pool_pages(layout, self.pool_bytes))

    def _check(
        self, weights: int, pools: int, whose: str, available: int | None, *, usual_pool: bool
    ) -> None:
        """Check weights and pools; `usual_pool`: a default pool counts at once, too."""
        if available is None:
            return
        held = f"as {self.dtype}" + ("" if self.quantize == "none" else f", in {self.quantize}")
        if weights == self.held:
            held = "as the files have them"
        words = f"{self.directory}: the weights take {_mib(weights)} ({held})"
        limit = f"{whose} {_mib(available)}"
        if weights > available:
            raise CheckpointError(f"{words}, and {limit}")
        pool = pools * self._pool()
        if weights + pool <= available:
            return
        if self.pool_bytes is None and not usual_pool:
            _log.warning("%s and the page pool up to %s, and %s", words, _mib(pool), limit)
            return
        room = KV_POOL_BYTES_DEFAULT if self.pool_bytes is None else self.pool_bytes
        each = f" for each of {pools} ranks" if pools > 1 else ""
        raise CheckpointError(
            f"{words} and pool_bytes {room}{each}, {_mib(weights + pool)} in all, and {limit}"
        )


def pool_pages(layout: KVLayout, pool_bytes: int | None) -> int:
    """Return how many pages a pool of so many bytes has; None: of the default size."""
    room = KV_POOL_BYTES_DEFAULT if pool_bytes is None else pool_bytes
    return min(room // layout.page_bytes, KV_POOL_PAGES_MAX)


def _mib(size: int) -> str:
    return f"{size >> 20} MiB"
