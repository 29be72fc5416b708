"""The executor on plain torch: the embedded default on the CPU, and correct on any device.

All device work happens on one thread of its own, one step after the other; torch releases the GIL
while it computes, so the kernel's loop goes on beside it.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from symphony_kernel.executor.base import Batch, Int32, Int64, ModelInfo, Row
from symphony_kernel.executor.models.assets import load_assets
from symphony_kernel.executor.models.config import CheckpointError, ModelConfig, load_config
from symphony_kernel.executor.models.decoder import Decoder
from symphony_kernel.executor.models.loader import Progress, Weights
from symphony_kernel.executor.sampling import Ask, answer
from symphony_kernel.executor.step import Geometry, plan_step
from symphony_kernel.protocol.errno import SyscallError
from symphony_kernel.protocol.limits import (
    KV_POOL_BYTES_DEFAULT,
    KV_POOL_PAGES_MAX,
    PAGE_TOKENS,
)

_T = TypeVar("_T")

# Logits are computed for as many places at a time as fit into this.
_LOGITS_BYTES_MAX = 64 << 20


class TorchExecutor:
    """A model and its page pool on one device (see `base.Executor`).

    The pool is [layers, slots, 2, kv_heads, head_dim] in the model's dtype. After the pages' slots
    it has one page of zeros, which belongs to nobody and pads what is gathered.
    """

    def __init__(
        self,
        model: ModelInfo,
        decoder: Decoder,
        pages: int,
        thread: ThreadPoolExecutor | None = None,
    ) -> None:
        self._model = model
        self._decoder = decoder
        self._pages = pages
        self._thread = thread or _one_thread(None)
        config = decoder.config
        slots = (pages + 1) * PAGE_TOKENS
        self._pool = torch.zeros(
            (config.layers, slots, 2, config.kv_heads, config.head_dim),
            dtype=decoder.dtype,
            device=decoder.device,
        )
        windows = tuple(dict.fromkeys(config.windows))
        self._geometry = Geometry(windows, pages * PAGE_TOKENS, decoder.dtype, decoder.device)
        self._logits_places = max(1, _LOGITS_BYTES_MAX // (4 * config.vocab_size))

    @classmethod
    def load(
        cls,
        directory: Path,
        *,
        dtype: str = "auto",
        device: str = "auto",
        pool_bytes: int | None = None,
        threads: int | None = None,
        name: str | None = None,
        progress: Progress | None = None,
    ) -> "TorchExecutor":
        """Load a checkpoint in Hugging Face layout; blocks until it is ready.

        `dtype` is auto, fp32 or bf16, `device` auto, cpu or cuda; `threads` are torch's, for the
        whole process; `progress` hears the share of the weights that is loaded.

        Raises:
            CheckpointError: the directory holds no model that this executor can run, or the pool is
                too small for a single page.
        """
        model = load_assets(directory, dtype, name).model
        config = load_config(directory)
        place = torch.device(_device(device))
        kind = getattr(torch, model.dtype)
        room = KV_POOL_BYTES_DEFAULT if pool_bytes is None else pool_bytes
        pages = pool_pages(config, room, kind.itemsize)
        thread = _one_thread(threads)

        def build() -> Decoder:
            with torch.inference_mode(), Weights(directory, kind, place, progress) as weights:
                return Decoder(config, weights, kind)

        try:
            return cls(model, thread.submit(build).result(), pages, thread)
        except BaseException:
            thread.shutdown()
            raise

    @property
    def model(self) -> ModelInfo:
        """The model it runs."""
        return self._model

    @property
    def pages(self) -> int:
        """Physical pages in the pool."""
        return self._pages

    async def run(self, batch: Batch) -> list[bytes | SyscallError]:
        """Compute one step (see `base.Executor.run`)."""
        return await self._on_thread(lambda: self._step(batch))

    async def poison(self, pages: Int32) -> None:
        """Fill pages with NaN, after the steps given so far: for tests of what a step reads."""

        def fill() -> None:
            slots = pages.astype(np.int64)[:, None] * PAGE_TOKENS + np.arange(PAGE_TOKENS)
            self._pool[:, torch.from_numpy(slots.ravel()).to(self._pool.device)] = float("nan")

        await self._on_thread(fill)

    async def close(self) -> None:
        """Wait for the last step and give the device back."""
        await self._on_thread(self._release)
        self._thread.shutdown()

    def _release(self) -> None:
        self._pool = self._pool.new_empty(0)

    async def _on_thread(self, work: Callable[[], _T]) -> _T:
        def run() -> _T:
            with torch.inference_mode():
                return work()

        return await asyncio.get_running_loop().run_in_executor(self._thread, run)

    def _step(self, batch: Batch) -> list[bytes | SyscallError]:
        for group in batch.copies:
            self._copy(group)
        results: list[bytes | SyscallError] = [b""] * len(batch.rows)
        if not batch.rows:
            return results
        plan = plan_step(batch.rows, self._geometry)
        hidden = self._decoder.forward(plan.inputs, self._pool)
        for index, result in zip(plan.indices, self._answers(hidden, plan.rows), strict=True):
            results[index] = result
        return results

    def _copy(self, group: Int64) -> None:
        source, destination = torch.from_numpy(group).to(self._pool.device)
        self._pool.index_copy_(1, destination, self._pool.index_select(1, source))

    def _answers(self, hidden: Tensor, rows: list[Row]) -> list[bytes | SyscallError]:
        """Return each row's result from the outputs at its places."""
        results: list[bytes | SyscallError] = [b""] * len(rows)
        for begin, asks, owners in _portions(rows, self._logits_places):
            count = sum(len(ask.positions) for ask in asks)
            logits = self._decoder.logits(hidden[begin : begin + count])
            for owner, part in zip(owners, answer(logits, asks), strict=True):
                before = results[owner]
                if isinstance(part, bytes) and isinstance(before, bytes):
                    results[owner] = before + part if before else part
                else:
                    results[owner] = part
        return results


def _portions(rows: list[Row], places_max: int) -> list[tuple[int, list[Ask], list[int]]]:
    """Split the rows' places: (first place, asks, whose they are) of each portion."""
    portions: list[tuple[int, list[Ask], list[int]]] = [(0, [], [])]
    first = used = 0
    for owner, row in enumerate(rows):
        positions = row.positions[row.places]
        while len(positions):
            if used == places_max:
                first += used
                used = 0
                portions.append((first, [], []))
            part, positions = np.split(positions, [places_max - used])
            portions[-1][1].append(Ask(row.options, row.seed, part))
            portions[-1][2].append(owner)
            used += len(part)
    return portions if rows else []


def pool_pages(config: ModelConfig, pool_bytes: int, element_bytes: int) -> int:
    """Return how many pages fit into a pool of so many bytes."""
    entry = 2 * config.layers * config.kv_heads * config.head_dim * element_bytes
    pages = min(pool_bytes // (entry * PAGE_TOKENS), KV_POOL_PAGES_MAX)
    if pages < 1:
        raise CheckpointError(f"a pool of {pool_bytes} bytes holds no page of this model's")
    return pages


def _device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise CheckpointError("device cuda: torch finds no such device here")
    if name not in ("cpu", "cuda"):
        raise CheckpointError(f"device {name!r} is none of auto, cpu, cuda")
    return name


def _one_thread(threads: int | None) -> ThreadPoolExecutor:
    # torch keeps the number of threads for the process and for each thread that starts work.
    def start() -> None:
        if threads is not None:
            torch.set_num_threads(threads)

    return ThreadPoolExecutor(1, thread_name_prefix="executor", initializer=start)
