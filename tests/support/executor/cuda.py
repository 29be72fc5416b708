"""Executors on `CudaNetwork`, on a CPU and on a GPU, and what they are compared on."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
import torch
from symphony_kernel.executor.cuda.model import CudaDecoder
from symphony_kernel.executor.cuda.network import CudaNetwork
from symphony_kernel.executor.device_queue import DeviceThread
from symphony_kernel.executor.models.assets import load_assets
from symphony_kernel.executor.models.config import load_config
from symphony_kernel.executor.models.loader import Weights
from symphony_kernel.executor.torch_executor import TorchExecutor

from tests.support.executor import flashinfer_reference
from tests.support.executor.models import POOL_PAGES, Checkpoint, ExecutorRig
from tests.support.executor.triton_interpreter import prepare_triton
from tests.support.requirements import need_module, requires

LOGITS_PLACES = 96
GRAPH_ROWS = (1, 2, 4, 8)


@dataclass(frozen=True)
class Way:
    """How a network computes, and how close it comes to exact arithmetic."""

    device: str
    dtype: str
    tolerance: float
    graph_rows: Sequence[int] | None = ()
    library: ModuleType | None = None
    triton: bool = False


CPU_WAYS = {
    "torch": Way("cpu", "fp32", 1e-4),
    "torch, padded": Way("cpu", "fp32", 1e-4, GRAPH_ROWS),
    "reference of FlashInfer": Way("cpu", "fp32", 1e-4, (), flashinfer_reference),
    "reference, padded": Way("cpu", "fp32", 1e-4, GRAPH_ROWS, flashinfer_reference),
}
TRITON_WAYS = {
    "Triton": Way("cpu", "fp32", 1e-4, triton=True),
    "Triton, padded": Way("cpu", "fp32", 1e-4, GRAPH_ROWS, triton=True),
}
GPU_WAYS = {
    "GPU, torch": Way("cuda", "fp32", 1e-3),
    "GPU, FlashInfer": Way("cuda", "bf16", 0.04),
    "GPU, graphs": Way("cuda", "bf16", 0.04, GRAPH_ROWS),
    "GPU, Triton": Way("cuda", "bf16", 0.04, (), triton=True),
    "GPU, Triton, fp32": Way("cuda", "fp32", 1e-3, (), triton=True),
    "GPU, Triton, graphs": Way("cuda", "bf16", 0.04, GRAPH_ROWS, triton=True),
}
ON_GPU = [
    pytest.mark.gpu,
    requires("gpu", torch.cuda.is_available(), "torch finds no NVIDIA GPU here"),
]
WAYS = [
    *(pytest.param(way, id=name) for name, way in CPU_WAYS.items()),
    *(pytest.param(way, id=name, marks=ON_GPU) for name, way in GPU_WAYS.items()),
]
# What FlashInfer's operators want of a model: heads of 64, sizes that are multiples of 8.
SIZES: dict[str, Any] = {"head_dim": 64}


def load_cuda(checkpoint: Checkpoint, way: Way) -> ExecutorRig:
    """Load a checkpoint into a rig whose network is a `CudaNetwork`."""
    if way.triton:
        prepare_triton()
    elif way.device == "cuda" and way.dtype == "bf16":
        need_module("flashinfer", "flashinfer")
    model = load_assets(checkpoint.directory, way.dtype, None).model
    config = load_config(checkpoint.directory)
    place, kind = torch.device(way.device), getattr(torch, model.dtype)
    thread = DeviceThread(context=torch.inference_mode)

    def build() -> CudaNetwork:
        loading = Weights(checkpoint.directory, config, kind, place)
        with torch.inference_mode(), loading as weights:
            decoder = CudaDecoder(config, weights, kind)
            return CudaNetwork(
                decoder, POOL_PAGES, LOGITS_PLACES, way.graph_rows, way.library, way.triton
            )

    network = thread.call(build)
    return ExecutorRig(TorchExecutor(model, network, POOL_PAGES, LOGITS_PLACES, thread))
