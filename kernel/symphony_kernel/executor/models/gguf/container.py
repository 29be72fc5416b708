"""The structure of a GGUF file: key-value pairs, and where each tensor lies.

The format (versions 2 and 3, little-endian), as ggml's docs/gguf.md describes it: the head, which
is magic, version, counts, pairs and the tensors' descriptions, and then the tensors' data, each at
a multiple of the alignment. Strings have their length in front, arrays their type and count.

Strangers wrote the files. Every size is checked against the file before it is used, and an array
is not read before it is needed. So reading takes time and memory in proportion to the head, which
has at most HEAD_BYTES_MAX.
"""

import math
import mmap
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from symphony_kernel.executor.models.file_reader import CheckpointError, open_plain, shown

HEAD_BYTES_MAX = 64 << 20  # 262,144 tokens with scores, types and merges take about 12 MB
_ENTRIES_MAX = 1 << 16  # pairs, or tensors: models have about 50, and at most some thousands
_ITEMS_MAX = 1 << 23  # of one array
_NAME_BYTES_MAX = 1 << 10  # of a key, or a tensor's name
_DIMENSIONS_MAX = 4
_PARTS_MAX = 1 << 10
_ALIGNMENT_DEFAULT, _ALIGNMENT_MAX = 32, 1 << 16
_VERSIONS = (2, 3)

_STRING, _ARRAY = 8, 9
_NUMBERS: dict[int, str] = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip


class BlockType(NamedTuple):
    """A tensor's type: its name, and the values and bytes of a block."""

    name: str
    values: int
    bytes: int


# By their numbers in files.
BLOCK_TYPES: dict[int, BlockType] = {
    number: BlockType(*each)
    for number, each in {
        0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20),
        6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34),
        10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144),
        13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210),
        16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98),
        19: ("IQ1_S", 256, 50), 20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110),
        22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136), 24: ("I8", 1, 1), 25: ("I16", 1, 2),
        26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8), 29: ("IQ1_M", 256, 56),
        30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
    }.items()
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Texts:
    """An array of strings, read when it is asked for."""

    head: "_Head"
    key: str
    at: int
    count: int

    def __iter__(self) -> Iterator[str]:
        """Yield the strings; CheckpointError: one is not UTF-8."""
        at = self.at
        for index in range(self.count):
            data, at = self.head.text(at)
            try:
                yield data.decode("utf-8")
            except UnicodeDecodeError as error:
                raise self.head.broken(
                    f"string {index} of {shown(self.key)} is not UTF-8: {error.reason}"
                ) from None


@dataclass(frozen=True, slots=True)
class Numbers:
    """An array of numbers, read when it is asked for."""

    head: "_Head"
    kind: str  # of `struct`
    at: int
    count: int

    def array(self) -> npt.NDArray[np.generic]:
        """Return a copy, in NumPy's type of the same width."""
        found = np.frombuffer(self.head.data, f"<{self.kind}", self.count, self.at)
        return found.copy()


Value: TypeAlias = int | float | bool | str | Texts | Numbers


class Place(NamedTuple):
    """A tensor in a file: its type, shape (rows first) and bytes."""

    path: Path
    type: BlockType
    shape: tuple[int, ...]
    begin: int  # from the file's start
    bytes: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A GGUF file's values and tensors. All `parts` of a split file count as one."""

    path: Path
    values: dict[str, Value] = field(default_factory=dict)
    tensors: dict[str, Place] = field(default_factory=dict)
    parts: list[Path] = field(default_factory=list)


class _Head:
    """Reads the head; every read is within it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            descriptor = open_plain(path)
        except FileNotFoundError:
            raise CheckpointError(f"{path} is missing") from None
        try:
            self.size = os.fstat(descriptor).st_size
            length = min(self.size, HEAD_BYTES_MAX)
            if length < 24:
                raise self.broken(f"it has {self.size} bytes")
            self.data = mmap.mmap(descriptor, length, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error
        finally:
            os.close(descriptor)
        self.length = length

    def broken(self, words: str) -> CheckpointError:
        return CheckpointError(f"{self.path} is not a usable GGUF file: {words}")

    def need(self, at: int, size: int) -> int:
        """Return the end of `size` bytes; CheckpointError if the head does not have them."""
        if at + size <= self.length:
            return at + size
        if self.length < self.size:
            raise self.broken(f"its head exceeds the {HEAD_BYTES_MAX} bytes that are supported")
        raise self.broken(f"it ends within its head, after {self.size} bytes")

    def number(self, at: int, kind: str) -> tuple[int | float | bool, int]:
        end = self.need(at, struct.calcsize(kind))
        return struct.unpack_from("<" + kind, self.data, at)[0], end

    def integer(self, at: int, kind: str) -> tuple[int, int]:
        value, end = self.number(at, kind)
        assert isinstance(value, int)
        return value, end

    def text(self, at: int) -> tuple[bytes, int]:
        begin = self.need(at, 8)
        end = self.need(begin, int.from_bytes(self.data[at:begin], "little"))
        return self.data[begin:end], end

    def name(self, at: int, what: str) -> tuple[str, int]:
        data, end = self.text(at)
        if not 0 < len(data) <= _NAME_BYTES_MAX:
            raise self.broken(f"{what} has a name of {len(data)} bytes")
        try:
            return data.decode("utf-8"), end
        except UnicodeDecodeError:
            raise self.broken(f"{what} has the name {shown(data)}, which is not UTF-8") from None

    def value(self, key: str, kind: int, at: int) -> tuple[Value, int]:
        if kind in _NUMBERS:
            return self.number(at, _NUMBERS[kind])
        if kind == _STRING:
            data, end = self.text(at)
            try:
                return data.decode("utf-8"), end
            except UnicodeDecodeError:
                raise self.broken(f"the value of {shown(key)} is not UTF-8") from None
        if kind == _ARRAY:
            return self._array(key, at)
        raise self.broken(f"{shown(key)} has the unknown type {kind}")

    def _array(self, key: str, at: int) -> tuple[Value, int]:
        kind, at = self.integer(at, "I")
        count, at = self.integer(at, "Q")
        if count > _ITEMS_MAX:
            raise self.broken(
                f"{shown(key)} has {count} elements; at most {_ITEMS_MAX} are supported"
            )
        if kind in _NUMBERS:
            end = self.need(at, count * struct.calcsize(_NUMBERS[kind]))
            return Numbers(self, _NUMBERS[kind], at, count), end
        if kind != _STRING:
            words = "arrays" if kind == _ARRAY else f"the unknown type {kind}"
            raise self.broken(f"{shown(key)} is an array of {words}, which is not supported")
        begin, data, length = at, self.data, self.length
        for _ in range(count):  # as `text` does, faster
            end = at + 8
            at = end + int.from_bytes(data[at:end], "little")
            if at > length:
                self.need(at, 0)
        return Texts(self, key, begin, count), self.need(at, 0)


def is_gguf(path: Path) -> bool:
    """Return whether a path is that of a GGUF file: by its name, which users see."""
    return path.suffix.lower() == ".gguf"


def read_gguf(path: Path) -> GgufFile:
    """Return the values and tensors of a file, and of all its parts if it is split.

    Raises CheckpointError: it is no GGUF file, is broken, or exceeds a limit.
    """
    found = _read_one(path)
    found.parts.append(path)
    for part in _other_parts(found):
        found.parts.append(part)
        for name, place in _read_one(part).tensors.items():
            if name in found.tensors:
                raise CheckpointError(f"{name} is in both {found.tensors[name].path} and {part}")
            found.tensors[name] = place
    return found


def _read_one(path: Path) -> GgufFile:
    head = _Head(path)
    if head.data[:4] != b"GGUF":
        raise head.broken(f"it begins with {shown(bytes(head.data[:4]))}, not with b'GGUF'")
    version, at = head.integer(4, "I")
    if version not in _VERSIONS:
        words = " (of a big-endian machine)" if version & 0xFFFF == 0 else ""
        raise head.broken(f"its version is {version}{words}; 2 and 3 are supported")
    tensors, at = head.integer(at, "Q")
    pairs, at = head.integer(at, "Q")
    for what, count in (("tensors", tensors), ("values", pairs)):
        if count > _ENTRIES_MAX:
            raise head.broken(f"it has {count} {what}; at most {_ENTRIES_MAX} are supported")
    found = GgufFile(path)
    for index in range(pairs):
        key, at = head.name(at, f"value {index}")
        kind, at = head.integer(at, "I")
        if key in found.values:
            raise head.broken(f"it has {shown(key)} twice")
        found.values[key], at = head.value(key, kind, at)
    described = []
    for index in range(tensors):
        entry, at = _description(head, index, at)
        described.append(entry)
    _place_tensors(head, found, described, at)
    return found


class _Description(NamedTuple):
    """A tensor as the head describes it; `offset` is from the data's start."""

    offset: int
    bytes: int
    name: str
    type: BlockType
    shape: tuple[int, ...]


def _description(head: _Head, index: int, at: int) -> tuple[_Description, int]:
    """Return a tensor's description, and the end of it."""
    name, at = head.name(at, f"tensor {index}")
    dimensions, at = head.integer(at, "I")
    if not 1 <= dimensions <= _DIMENSIONS_MAX:
        raise head.broken(f"{shown(name)} has {dimensions} dimensions")
    sizes = []
    for _ in range(dimensions):
        size, at = head.integer(at, "Q")
        sizes.append(size)
    number, at = head.integer(at, "I")
    offset, at = head.integer(at, "Q")
    kind = BLOCK_TYPES.get(number)
    if kind is None:
        raise head.broken(f"{shown(name)} has the unknown type {number}")
    # The first size is that of a row, which consists of whole blocks.
    if sizes[0] % kind.values or math.prod(sizes) == 0:
        raise head.broken(f"{shown(name)} is {kind.name} of the sizes {shown(sizes)}")
    size = math.prod(sizes) // kind.values * kind.bytes
    return _Description(offset, size, name, kind, tuple(reversed(sizes))), at


def _place_tensors(head: _Head, found: GgufFile, described: list[_Description], at: int) -> None:
    """Add the tensors to `found`; check that they lie within the file and do not overlap."""
    alignment = found.values.get("general.alignment", _ALIGNMENT_DEFAULT)
    if type(alignment) is not int or alignment % 8 or not 8 <= alignment <= _ALIGNMENT_MAX:
        raise head.broken(
            f"general.alignment is {shown(alignment)}; multiples of 8 to {_ALIGNMENT_MAX} are "
            "supported"
        )
    begin, end = -(-at // alignment) * alignment, 0
    for each in sorted(described):
        if each.name in found.tensors:
            raise head.broken(f"it has the tensor {shown(each.name)} twice")
        if each.offset % alignment or each.offset < end:
            raise head.broken(
                f"{shown(each.name)} begins at {each.offset}: not at a multiple of {alignment}, or "
                "within another tensor"
            )
        end = each.offset + each.bytes
        if begin + end > head.size:
            raise head.broken(
                f"{shown(each.name)} ends at byte {begin + end}, and the file has {head.size}"
            )
        place = Place(head.path, each.type, each.shape, begin + each.offset, each.bytes)
        found.tensors[each.name] = place


def _other_parts(first: GgufFile) -> list[Path]:
    """Return the paths of a split file's other parts: NAME-00001-of-00003.gguf is the first."""
    count, number = first.values.get("split.count", 1), first.values.get("split.no", 0)
    if type(count) is not int or not 0 <= count <= _PARTS_MAX:
        raise CheckpointError(f"{first.path}: split.count is {shown(count)}")
    if count <= 1:
        return []
    name = re.fullmatch(r"(.+)-00001-of-(\d{5})\.gguf", first.path.name)
    if number != 0 or name is None or int(name[2]) != count:
        raise CheckpointError(
            f"{first.path} is part {shown(number)} (from 0) of {count} of a split file: name the "
            f"first part, which must end with -00001-of-{count:05}.gguf"
        )
    every = range(2, count + 1)
    return [first.path.with_name(f"{name[1]}-{n:05}-of-{count:05}.gguf") for n in every]
