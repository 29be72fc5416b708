"""The tensors that a model has, checked without reading one.

The format of safetensors: eight bytes with the header's length, the header (JSON: dtype, shape and
offsets of each tensor), and the tensors, without gaps.
"""

import math
import os
import re
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from symphony_kernel.executor.models.config import ModelConfig
from symphony_kernel.executor.models.file_reader import (
    INDEX_BYTES_MAX,
    CheckpointError,
    open_plain,
    parse_json,
    read_optional,
    shown,
)
from symphony_kernel.executor.models.gguf.container import is_gguf, read_gguf
from symphony_kernel.executor.models.gguf.tensors import GgufTensor, checkpoint_tensors
from symphony_kernel.executor.models.packed.parts import PackedTensor, join_parts
from symphony_kernel.executor.models.packed.scheme import load_scheme
from symphony_kernel.executor.models.packed.stored import DTYPE_BYTES, Stored
from symphony_kernel.executor.models.shapes import EMBEDDING, tensor_shapes

INDEX = "model.safetensors.index.json"
# Buffers that older versions of transformers saved; they follow from the configuration.
_IGNORED = re.compile(r"\.rotary_emb\.inv_freq$")

_LENGTH_BYTES = 8

TensorHeader: TypeAlias = Stored | PackedTensor | GgufTensor


class Place(NamedTuple):
    """One tensor's dtype and shape, and its first and last byte (exclusive) in the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def check_tensors(path: Path, config: ModelConfig) -> dict[str, TensorHeader]:
    """Compare a configuration with the tensors, before memory is allocated for them.

    Returns the tensors of the model, by name.

    Raises CheckpointError: a file is broken, or a tensor is missing, unexpected, of another shape
    or of an unsupported dtype.
    """
    headers, mine = _all_tensors(path, config), {}
    for name, shape in tensor_shapes(config):
        found = headers.pop(name, None)
        if found is None:
            raise CheckpointError(f"{path} has no tensor {name}")
        if found.shape != shape:
            raise CheckpointError(
                f"{name} in {found.path} has shape {shown(found.shape)}, "
                f"config.json implies {shape}"
            )
        refused = found.refused()
        if refused is not None:
            raise CheckpointError(f"{name} in {found.path} {refused}")
        mine[name] = found
    if config.tied:
        headers.pop("lm_head.weight", None)
    left = sorted(name for name in headers if not _IGNORED.search(name))
    if left:
        names = ", ".join(left[:5]) + (", ..." if len(left) > 5 else "")
        raise CheckpointError(f"{path} has {len(left)} unexpected tensors: {names}")
    return mine


def held_bytes(path: Path, config: ModelConfig, element_bytes: int) -> int | None:
    """Return the bytes of all products' matrices, at least, as native kernels hold them.

    None: the model's weights are not quantized. Scales are left out. CheckpointError.
    """
    tensors = check_tensors(path, config)
    matrices = [
        each for name, each in tensors.items() if len(each.shape) == 2 and name != EMBEDDING
    ]
    if config.tied:
        matrices.append(tensors[EMBEDDING])  # the head, too
    if all(each.held_bits is None for each in matrices):
        return None
    bits = (math.prod(each.shape) * (each.held_bits or 8 * element_bytes) for each in matrices)
    return sum(bits) // 8


def _all_tensors(path: Path, config: ModelConfig) -> dict[str, TensorHeader]:
    """Return all tensors of a folder or a GGUF file by the names of checkpoints."""
    if is_gguf(path):
        return {**checkpoint_tensors(read_gguf(path), config.heads, config.kv_heads)}
    headers = read_headers(path)
    scheme = load_scheme(path)
    if scheme is None:
        return {**headers}
    return {**join_parts(headers, scheme, dict(tensor_shapes(config)))}


def read_headers(directory: Path) -> dict[str, Stored]:
    """Return the tensors of all files of a checkpoint by name; CheckpointError."""
    index = _index(directory)
    files = sorted(set(index.values())) if index is not None else ["model.safetensors"]
    found: dict[str, Stored] = {}
    for name in files:
        if Path(name).name != name:
            raise CheckpointError(
                f"{directory / INDEX} names a file outside its directory: {shown(name)}"
            )
        for tensor, header in _read_header(directory / name).items():
            if tensor in found:
                raise CheckpointError(f"{tensor} is in both {found[tensor].path} and {header.path}")
            found[tensor] = header
    missing = sorted(set(index or ()) - found.keys())
    if missing:
        raise CheckpointError(
            f"{directory / INDEX} names tensors that no file has: {', '.join(missing[:5])}"
        )
    return found


def _index(directory: Path) -> dict[str, str] | None:
    path = directory / INDEX
    data = read_optional(path, INDEX_BYTES_MAX)
    if data is None:
        return None
    places = parse_json(path, data).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise CheckpointError(f"{path} has no weight_map")
    return {tensor: str(name) for tensor, name in places.items()}


def _read_header(path: Path) -> dict[str, Stored]:
    return {
        name: Stored(name, path, place.dtype, place.shape)
        for name, place in read_places(path).items()
    }


def read_places(path: Path, header_bytes_max: int = INDEX_BYTES_MAX) -> dict[str, Place]:
    """Return the tensors of one safetensors file by name; CheckpointError.

    Parsing a header takes up to 25 times its bytes of memory, and no other thread runs meanwhile.
    """
    try:
        descriptor = open_plain(path)
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    with os.fdopen(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if not 2 <= length <= min(size - _LENGTH_BYTES, header_bytes_max):
            raise _broken(
                path,
                f"it has {size} bytes, and its header claims {length} "
                f"(at most {header_bytes_max} are supported)",
            )
        entries = parse_json(path, file.read(length))
    entries.pop("__metadata__", None)
    first = _LENGTH_BYTES + length
    found = {name: _entry(path, name, entry, first) for name, entry in entries.items()}
    ends = sorted((place.begin, place.end, name) for name, place in found.items())
    _check_places(path, ends, first, size)
    return found


def _entry(path: Path, name: str, entry: Any, first: int) -> Place:
    """Return a header's tensor; the file's tensors begin at byte `first`; CheckpointError."""
    where = shown(name)
    if not isinstance(entry, dict):
        raise _broken(path, f"{where} is {shown(entry)}")
    dtype: Any = entry.get("dtype")
    shape: Any = entry.get("shape")
    place: Any = entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise _broken(path, f"{where} has the unknown dtype {shown(dtype)}")
    if not _are_sizes(shape):
        raise _broken(path, f"{where} has the shape {shown(shape)}")
    if not _are_sizes(place) or len(place) != 2:
        raise _broken(path, f"{where} has the data_offsets {shown(place)}")
    wanted = DTYPE_BYTES[dtype] * math.prod(shape)
    if place[1] - place[0] != wanted:
        size = shown(place[1] - place[0])
        words = f"{where} has {size} bytes, its dtype and shape take {shown(wanted)}"
        raise _broken(path, words)
    return Place(dtype, tuple(shape), first + place[0], first + place[1])


def _are_sizes(value: Any) -> bool:
    """Return whether `value` is a list of a few whole numbers that a file may have."""
    return (
        isinstance(value, list)
        and len(value) <= 8
        and all(type(each) is int and 0 <= each < 1 << 62 for each in value)
    )


def _check_places(path: Path, places: list[tuple[int, int, str]], first: int, size: int) -> None:
    """Check that the tensors follow each other without gaps and fill the file."""
    at = first
    for begin, end, name in places:
        if begin != at:
            words = (
                f"{shown(name)} begins at {begin - first}, "
                f"and what lies before it ends at {at - first}"
            )
            raise _broken(path, words)
        at = end
    if at != size:
        raise _broken(
            path, f"its tensors have {size - first} bytes, and its header claims {at - first}"
        )


def _broken(path: Path, words: str) -> CheckpointError:
    return CheckpointError(f"{path} is not a safetensors file: {words}")
