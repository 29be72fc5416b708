"""A model of random weights, made on the device, and an executor with it."""

import asyncio
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from symphony_kernel.executor.base import Batch, Int32, ModelInfo, Row
from symphony_kernel.executor.cuda.model import CudaDecoder
from symphony_kernel.executor.cuda.network import CudaNetwork
from symphony_kernel.executor.device_queue import DeviceThread
from symphony_kernel.executor.models.config import Fields, ModelConfig, parse_config
from symphony_kernel.executor.network import Network
from symphony_kernel.executor.reference.decoder import Decoder
from symphony_kernel.executor.reference.network import TorchNetwork
from symphony_kernel.executor.torch_executor import TorchExecutor
from symphony_kernel.protocol.limits import PAGE_TOKENS
from torch import Tensor

from benchmarks.checkpoints import SHAPES, make_config
from benchmarks.serving.floor import Sizes

NAMES = {
    "tiny": "small",
    "0.5b": "0.5b",  # Qwen2.5's
    "1b": "1b",  # Llama 3.2's
    "8b": "8b",  # Llama 3.1's
}
_LOGITS_BYTES_MAX = 256 << 20


class RandomTensors:
    """Weights by their names in transformers: the same for a name and seed, however often taken.

    They are as wide as their inputs are many, so that what passes them keeps its size: attention
    and logits are then neither flat nor of one token.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype, seed: int = 0) -> None:
        self.device, self.dtype, self._seed = device, dtype, seed

    def take(self, name: str, *shape: int) -> Tensor:
        """Return a tensor."""
        generator = torch.Generator(self.device)
        generator.manual_seed(zlib.crc32(name.encode()) + self._seed)
        values = torch.randn(shape, generator=generator, device=self.device, dtype=torch.float32)
        if "norm" in name:
            values.mul_(0.1).add_(1.0)
        elif len(shape) == 1:
            values.mul_(0.1)
        elif "embed" not in name:
            values.mul_(shape[-1] ** -0.5)
        return values.to(self.dtype)


@dataclass(frozen=True, slots=True)
class Model:
    """A shape with random weights on a device."""

    name: str
    config: ModelConfig
    tensors: RandomTensors

    @property
    def sizes(self) -> Sizes:
        """What its floor needs to know."""
        config = self.config
        inner, kv_inner = config.heads * config.head_dim, config.kv_heads * config.head_dim
        attention = 2 * config.hidden_size * (inner + kv_inner)
        body = config.layers * (attention + 3 * config.hidden_size * config.intermediate_size)
        head = config.vocab_size * config.hidden_size
        width = self.tensors.dtype.itemsize
        return Sizes(config.layers, body, head, inner, kv_inner, width)


def make_model(name: str, device: torch.device, dtype: torch.dtype) -> Model:
    """Return a model of one of the shapes in `NAMES`."""
    kind = "bf16" if dtype == torch.bfloat16 else "fp32"
    config = parse_config(Fields(make_config(SHAPES[NAMES[name]], kind), name))
    return Model(name, config, RandomTensors(device, dtype))


def make_network(model: Model, kind: str, pages: int) -> Network:
    """Return a network of a kind, cuda or torch, with its pool."""
    config, dtype = model.config, model.tensors.dtype
    places = max(1, _LOGITS_BYTES_MAX // (4 * config.vocab_size))
    with torch.inference_mode():
        if kind == "cuda":
            return CudaNetwork(CudaDecoder(config, model.tensors, dtype), pages, places)
        return TorchNetwork(Decoder(config, model.tensors, dtype), pages)


def make_executor(model: Model, kind: str, pages: int) -> TorchExecutor:
    """Return an executor with a network of a kind; its pool has so many pages."""
    dtype = "bfloat16" if model.tensors.dtype == torch.bfloat16 else "float32"
    config = model.config
    info = ModelInfo(
        model.name, config.vocab_size, (), None, config.max_context, dtype, config.hidden_size
    )
    thread = DeviceThread(context=torch.inference_mode)
    try:
        network = thread.call(lambda: make_network(model, kind, pages))
    except BaseException:
        thread.stop()
        raise
    places = max(1, _LOGITS_BYTES_MAX // (4 * config.vocab_size))
    return TorchExecutor(info, network, pages, places, thread)


class Pool:
    """Pages of an executor, to be handed out."""

    def __init__(self, pages: int) -> None:
        # In no order: code that only works for pages one behind the other is to show.
        self._free = np.random.default_rng(7).permutation(pages).astype(np.int32)

    def table(self, entries: int) -> Int32:
        """Return a block table for so many entries."""
        count = pages_for(entries)
        table, self._free = self._free[:count], self._free[count:]
        assert len(table) == count, "the pool is too small"
        return table


def pages_for(entries: int) -> int:
    """Return in how many pages so many entries are."""
    return -(-entries // PAGE_TOKENS)


def run(executor: TorchExecutor, rows: Sequence[Row], **more: object) -> list[bytes]:
    """Run one step and return its results; an error of one is raised."""
    results = asyncio.run(executor.run(Batch(list(rows), **more)))  # type: ignore[arg-type]
    for result in results:
        if not isinstance(result, bytes):
            raise result
    return [result for result in results if isinstance(result, bytes)]
