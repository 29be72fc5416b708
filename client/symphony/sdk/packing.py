"""Numbers as the ABI's bytes, and options as MessagePack."""

import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import msgpack

T = TypeVar("T")
_CHOICE = struct.Struct("<If")
# The ABI's floats have 32 bits: an option is rounded here as it is in other languages.
_packer = msgpack.Packer(use_bin_type=True, use_single_float=True)
if array("I").itemsize != 4:
    raise ImportError("Symphony needs a platform whose unsigned int has 32 bits")


class Choice(NamedTuple):
    """A token and its log-probability, which is 0 or less."""

    token: int
    logprob: float


class Scored(NamedTuple):
    """A chosen token, and the best ones of the distribution that it comes from, best first."""

    choice: Choice
    best: list[Choice]


class TokenSet:
    """A set of tokens of a vocabulary, as a mask for `allowed_tokens` and its like."""

    def __init__(self, tokens: Iterable[int], vocab_size: int) -> None:
        """IndexError: a token is none of the vocabulary."""
        mask = bytearray((vocab_size + 7) // 8)
        for token in tokens:
            mask[token // 8] |= 1 << token % 8
        self.mask = bytes(mask)  # bit t%8 of byte t/8 is token t's

    def __contains__(self, token: int) -> bool:
        at = token // 8
        return at < len(self.mask) and bool(self.mask[at] >> token % 8 & 1)


def words(numbers: Iterable[int]) -> bytes:
    """Return little-endian u32 numbers; OverflowError, TypeError: one is none."""
    packed = array("I", numbers)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def numbers(packed: bytes) -> list[int]:
    """Return the numbers of little-endian u32 bytes."""
    read = array("I")
    read.frombytes(packed)
    if sys.byteorder == "big":
        read.byteswap()
    return read.tolist()


def options(given: dict[str, Any]) -> bytes:
    """Return options in MessagePack; nothing at all if they are the defaults."""
    return cast("bytes", _packer.pack(given)) if given else b""


def choice(packed: bytes) -> Choice:
    return Choice(*_CHOICE.unpack(packed))


def choices(packed: bytes) -> list[Choice]:
    return [Choice(*pair) for pair in _CHOICE.iter_unpack(packed)]


def scored(packed: bytes) -> Scored:
    first, *best = choices(packed)
    return Scored(first, best)


def floats(packed: bytes) -> list[float]:
    read = array("f")
    read.frombytes(packed)
    if sys.byteorder == "big":
        read.byteswap()
    return read.tolist()


def vector(packed: bytes) -> Any:
    """Return f32 numbers as a NumPy array if there is NumPy, else as an `array`."""
    try:
        import numpy as np
    except ImportError:
        read = array("f")
        read.frombytes(packed)
        if sys.byteorder == "big":
            read.byteswap()
        return read
    return np.frombuffer(packed, dtype="<f4")


def split(packed: bytes, places: int, read: Callable[[bytes], T]) -> list[T]:
    """Return the results of so many places, all of the same size."""
    if not places:
        return []
    size = len(packed) // places
    return [read(packed[at : at + size]) for at in range(0, size * places, size or 1)]


def spans(ranges: Sequence[range | tuple[int, int]]) -> bytes:
    """Return ranges of entries as pairs of their starts and ends."""
    pairs = [(r.start, r.stop) if isinstance(r, range) else r for r in ranges]
    return words(end for pair in pairs for end in pair)
