"""Whether Triton computes a model: it is installed, and the model fits its kernels."""

import importlib
import importlib.util
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from symphony_kernel.executor.cuda.sampler import SampledTokens, SamplingChoices
from symphony_kernel.executor.cuda.staging import MovedArrays
from symphony_kernel.executor.cuda.triton_kernels.tiles import partial_floats, tile_shape
from symphony_kernel.executor.models.config import ModelConfig

if TYPE_CHECKING:
    from symphony_kernel.executor.cuda.triton_kernels.library import TritonLibrary

_log = logging.getLogger(__name__)

Chooser = Callable[[Tensor, SamplingChoices, MovedArrays, Tensor | None], SampledTokens]

_LIBRARY = "symphony_kernel.executor.cuda.triton_kernels.library"
_SAMPLER = "symphony_kernel.executor.cuda.triton_kernels.sampler"
_HEAD_DIM_MAX = 256
_GROUP_MAX = 64
_PROGRAMS_PER_PROCESSOR = 4  # as many decode tiles fit into a multiprocessor's memory
_PROGRAMS_ON_A_CPU = 24  # in Triton's interpreter
_CAPABILITY_MIN = (8, 0)  # bfloat16 in products


def find_triton(
    config: ModelConfig, dtype: torch.dtype, device: torch.device
) -> "TritonLibrary | None":
    """Return Triton's kernels for a model, or None: they do not compute it, as the log says."""
    reason = unsupported(config, dtype, device)
    if reason is not None:
        _log.warning("torch computes attention, slower than Triton: %s", reason)
        return None
    programs = triton_programs(device)
    library: TritonLibrary = importlib.import_module(_LIBRARY).TritonLibrary(
        config, dtype, programs, device
    )
    return library


def find_chooser(device: torch.device) -> Chooser | None:
    """Return Triton's choice of tokens for a device, or None: torch chooses them.

    It goes with any kernels of attention: torch reads the logits many times.
    """
    if _lack_of(device) is not None:
        return None
    chooser: Chooser = importlib.import_module(_SAMPLER).choose_tokens
    return chooser


def unsupported(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> str | None:
    """Return why Triton's kernels cannot compute a model on a device, or None."""
    lack = _lack_of(device)
    if lack is not None:
        return lack
    if dtype not in (torch.bfloat16, torch.float32):
        return f"its kernels compute bfloat16 and float32, not {dtype}"
    if config.head_dim > _HEAD_DIM_MAX:
        return f"its kernels have heads of up to {_HEAD_DIM_MAX}, not {config.head_dim}"
    if config.heads // config.kv_heads > _GROUP_MAX:
        return f"at most {_GROUP_MAX} heads share K and V, not {config.heads // config.kv_heads}"
    return None


def _lack_of(device: torch.device) -> str | None:
    """Return why Triton's kernels run on a device for no model, or None."""
    if importlib.util.find_spec("triton") is None:
        return "it is not installed"
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < _CAPABILITY_MIN:
        return "the device multiplies no bfloat16"
    return None


def triton_workspace_bytes(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> int:
    """Return the size of the buffer for parts of rows, 0 where Triton does not compute a model."""
    if unsupported(config, dtype, device) is not None:
        return 0
    return 4 * partial_floats(tile_shape(config, dtype), triton_programs(device))


def triton_programs(device: torch.device) -> int:
    """Return how many programs attention is divided into where rows are few."""
    if device.type != "cuda":
        return _PROGRAMS_ON_A_CPU
    properties = torch.cuda.get_device_properties(device)
    return _PROGRAMS_PER_PROCESSOR * int(properties.multi_processor_count)
