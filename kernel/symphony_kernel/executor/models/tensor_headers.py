"""The headers of safetensors files, checked without reading a tensor.

The format: eight bytes with the header's length, the header (JSON: dtype, shape and offsets of each
tensor), and the tensors, without gaps.
"""

import math
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from symphony_kernel.executor.models.config import ModelConfig
from symphony_kernel.executor.models.file_reader import (
    INDEX_BYTES_MAX,
    CheckpointError,
    open_plain,
    parse_json,
    read_optional,
    shown,
)
from symphony_kernel.executor.models.shapes import tensor_shapes

INDEX = "model.safetensors.index.json"
# Buffers that older versions of transformers saved; they follow from the configuration.
_IGNORED = re.compile(r"\.rotary_emb\.inv_freq$")

_LENGTH_BYTES = 8
_DTYPE_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_DTYPES_REFUSED = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1, "F8_E5M2FNUZ": 1,
    "F8_E4M3FNUZ": 1, "I16": 2, "U16": 2, "I32": 4, "U32": 4, "I64": 8, "U64": 8, "C64": 8,
}  # fmt: skip


class Header(NamedTuple):
    """One tensor's file, dtype and shape."""

    path: Path
    dtype: str
    shape: tuple[int, ...]


class Place(NamedTuple):
    """One tensor's dtype and shape, and its first and last byte (exclusive) in the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def check_tensors(directory: Path, config: ModelConfig) -> dict[str, Header]:
    """Compare a configuration with the tensors, before memory is allocated for them.

    Returns the tensors of the model, by name.

    Raises CheckpointError: a file is broken, or a tensor is missing, unexpected, of another shape
    or of an unsupported dtype.
    """
    headers, mine = read_headers(directory), {}
    for name, shape in tensor_shapes(config):
        found = headers.pop(name, None)
        if found is None:
            raise CheckpointError(f"{directory} has no tensor {name}")
        if found.shape != shape:
            raise CheckpointError(
                f"{name} in {found.path} has shape {shown(found.shape)}, "
                f"config.json implies {shape}"
            )
        if found.dtype not in _DTYPE_BYTES:
            raise CheckpointError(
                f"{name} in {found.path} is {found.dtype}: quantized, not supported"
            )
        mine[name] = found
    if config.tied:
        headers.pop("lm_head.weight", None)
    left = sorted(name for name in headers if not _IGNORED.search(name))
    if left:
        names = ", ".join(left[:5]) + (", ..." if len(left) > 5 else "")
        raise CheckpointError(f"{directory} has {len(left)} unexpected tensors: {names}")
    return mine


def read_headers(directory: Path) -> dict[str, Header]:
    """Return the tensors of all files of a checkpoint by name; CheckpointError."""
    index = _index(directory)
    files = sorted(set(index.values())) if index is not None else ["model.safetensors"]
    found: dict[str, Header] = {}
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


def _read_header(path: Path) -> dict[str, Header]:
    return {
        name: Header(path, place.dtype, place.shape) for name, place in read_places(path).items()
    }


def read_places(path: Path) -> dict[str, Place]:
    """Return the tensors of one safetensors file by name; CheckpointError."""
    try:
        descriptor = open_plain(path)
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    with os.fdopen(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if not 2 <= length <= min(size - _LENGTH_BYTES, INDEX_BYTES_MAX):
            raise _broken(
                path,
                f"it has {size} bytes, and its header claims {length} "
                f"(at most {INDEX_BYTES_MAX} are supported)",
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
    if not isinstance(dtype, str) or dtype not in _DTYPE_BYTES | _DTYPES_REFUSED:
        raise _broken(path, f"{where} has the unknown dtype {shown(dtype)}")
    if not _are_sizes(shape):
        raise _broken(path, f"{where} has the shape {shown(shape)}")
    if not _are_sizes(place) or len(place) != 2:
        raise _broken(path, f"{where} has the data_offsets {shown(place)}")
    wanted = (_DTYPE_BYTES | _DTYPES_REFUSED)[dtype] * math.prod(shape)
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
