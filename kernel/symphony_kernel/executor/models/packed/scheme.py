"""What config.json says of the quantization of a folder's weights.

The layouts say most themselves: which matrices are quantized, bits and groups follow from the
tensors' names, dtypes and shapes. What remains is here. The descriptions are AutoAWQ's, AutoGPTQ's,
compressed-tensors' and transformers' documentation.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from symphony_kernel.executor.models.file_reader import CheckpointError, parse_json, shown
from symphony_kernel.executor.models.model_files import open_model, required

QUANTIZATION_KEYS = ("quantization_config", "compression_config")  # the latter is older
_METHODS = ("awq", "gptq", "compressed-tensors", "fp8", "fbgemm_fp8")
_FORMATS = (
    "dense", "pack-quantized", "int-quantized", "float-quantized", "naive-quantized",
    "mixed-precision",
)  # fmt: skip
_BLOCK_MAX = 1 << 16


@dataclass(frozen=True, slots=True)
class Scheme:
    """How a folder's weights are quantized.

    `block` are the outputs and inputs that share a scale, where that is a rectangle. GPTQ's
    original format stores zero points less one: then `zeros_less_one`.
    """

    method: str
    block: tuple[int, int] | None = None
    zeros_less_one: bool = False


def load_scheme(directory: Path) -> Scheme | None:
    """Return the scheme of a folder, None: its weights are not quantized; CheckpointError."""
    files = open_model(directory)
    path = files.where("config.json")
    return scheme_of(parse_json(path, required(files, "config.json")), str(path))


def scheme_of(config: dict[str, Any], source: str) -> Scheme | None:
    """Return the scheme that a config.json has; CheckpointError: it is not supported."""
    given = next((config[key] for key in QUANTIZATION_KEYS if config.get(key) is not None), None)
    if given is None:
        return None
    if not isinstance(given, dict):
        raise CheckpointError(f"{source}: quantization_config must be an object")
    method = given.get("quant_method", "compressed-tensors" if "config_groups" in given else None)
    if not isinstance(method, str) or method not in _METHODS:
        raise CheckpointError(
            f"{source}: quantization_config: quant_method must be one of {', '.join(_METHODS)}, "
            f"not {shown(method)}"
        )
    if method == "awq" and str(given.get("version") or "gemm").lower() != "gemm":
        raise _unsupported(source, "version", given)
    if method == "gptq":
        layout = given.get("checkpoint_format") or "gptq"
        if layout not in ("gptq", "gptq_v2"):
            raise _unsupported(source, "checkpoint_format", given)
        return Scheme(method, zeros_less_one=layout == "gptq")
    if method == "compressed-tensors":
        return Scheme(method, _compressed_block(given, source))
    return Scheme(method, _block(given.get("weight_block_size"), source))


def _compressed_block(given: dict[str, Any], source: str) -> tuple[int, int] | None:
    """Check a compressed-tensors configuration; return the one block size that its groups have."""
    if given.get("format", "dense") not in _FORMATS:
        raise _unsupported(source, "format", given)
    sparsity = given.get("sparsity_config") or {}
    if not isinstance(sparsity, dict) or sparsity.get("format", "dense") != "dense":
        raise _unsupported(source, "sparsity_config", given)
    if given.get("transform_config"):
        raise _unsupported(source, "transform_config", given)
    groups = given.get("config_groups") or {}
    if not isinstance(groups, dict) or not all(isinstance(g, dict) for g in groups.values()):
        raise _unsupported(source, "config_groups", given)
    weights = [group.get("weights") or {} for group in groups.values()]
    if not all(isinstance(each, dict) for each in weights):
        raise _unsupported(source, "config_groups", given)
    blocks = {_block(each.get("block_structure"), source) for each in weights} - {None}
    if len(blocks) > 1:
        raise _unsupported(source, "config_groups", given)
    return next(iter(blocks), None)


def _block(given: Any, source: str) -> tuple[int, int] | None:
    if given is None:
        return None
    sizes = isinstance(given, list) and len(given) == 2
    if not sizes or not all(type(size) is int and 0 < size <= _BLOCK_MAX for size in given):
        raise CheckpointError(f"{source}: quantization_config: a block of {shown(given)}")
    return given[0], given[1]


def _unsupported(source: str, key: str, given: dict[str, Any]) -> CheckpointError:
    return CheckpointError(
        f"{source}: quantization_config: {key} {shown(given.get(key))} is not supported"
    )
