"""The outline of a module: its sections, and how many things each one says it holds.

Some things are cheap to write into a module and dear to have: a global costs a module five bytes
and each of its instances sixteen, and an export is an object in every worker that loads it, while
others wait. So they are counted before anybody makes anything of them.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from symphony_kernel.protocol.limits import (
    PROGRAM_ELEMENTS_BYTES_MAX,
    PROGRAM_EXPORTS_MAX,
    PROGRAM_GLOBALS_MAX,
    PROGRAM_IMPORTS_MAX,
    PROGRAM_NAMES_BYTES_MAX,
    PROGRAM_TYPES_MAX,
    TABLE_ELEMENTS_MAX,
)

HEADER: Final = b"\0asm\x01\0\0\0"
TYPE, IMPORT, FUNCTION, TABLE, GLOBAL, EXPORT, ELEMENT = 1, 2, 3, 4, 6, 7, 9
_LISTS: Final = frozenset({1, 2, 3, 4, 5, 6, 7, 9, 10, 11})  # sections that begin with a number
_NULLABLE: Final = 0x63  # before a type of references
_NUMBER_BYTES_MAX: Final = 5  # of a u32 in LEB128

# What there is a limit of: section, how many, and what they are.
_COUNTS_MAX: Final = (
    (TYPE, PROGRAM_TYPES_MAX, "types"),
    (IMPORT, PROGRAM_IMPORTS_MAX, "imports"),
    (GLOBAL, PROGRAM_GLOBALS_MAX, "globals"),
    (EXPORT, PROGRAM_EXPORTS_MAX, "exports"),
)
_BYTES_MAX: Final = (
    (IMPORT, PROGRAM_NAMES_BYTES_MAX, "imports"),
    (EXPORT, PROGRAM_NAMES_BYTES_MAX, "exports"),
    (ELEMENT, PROGRAM_ELEMENTS_BYTES_MAX, "table elements"),
)


@dataclass(slots=True)
class Outline:
    """By the number of a section: the things that it says it holds, and its size in bytes."""

    counts: Counter[int] = field(default_factory=Counter)
    sizes: Counter[int] = field(default_factory=Counter)

    def problems(self) -> list[str]:
        """Return a sentence for each thing of which there is too much (but for functions)."""
        found = [
            f"the program has {self.counts[section]} {what}; the limit is {most}"
            for section, most, what in _COUNTS_MAX
            if self.counts[section] > most
        ]
        return found + [
            f"its {what} take {self.sizes[section]} bytes; the limit is {most}"
            for section, most, what in _BYTES_MAX
            if self.sizes[section] > most
        ]


def read_outline(wasm: bytes) -> Outline:
    """Return the outline of a module, whose header has been checked.

    Raises:
        ValueError: the sections do not add up to the bytes.
    """
    at, outline = len(HEADER), Outline()
    while at < len(wasm):
        section = wasm[at]
        size, at = _number(wasm, at + 1)
        if at + size > len(wasm):
            raise ValueError(f"section {section} is longer than the file")
        if section in _LISTS:
            outline.counts[section] += _number(wasm, at)[0]
        outline.sizes[section] += size
        at += size
    return outline


def table_elements(wasm: bytes) -> int:
    """Return how many elements the tables of a module may grow to together, in an instance.

    Of a module that the compiler has found valid, without proposals that the ABI does not list.
    """
    at = len(HEADER)
    while at < len(wasm):
        section = wasm[at]
        size, at = _number(wasm, at + 1)
        if section == TABLE:
            return _elements(wasm, at)
        at += size
    return 0


def _elements(wasm: bytes, at: int) -> int:
    """Return the sum over the entries of the table section at `at`."""
    count, at = _number(wasm, at)
    total = 0
    for _ in range(count):
        at += wasm[at] == _NULLABLE  # `funcref` has a long spelling, too
        has_most = wasm[at + 1] & 1  # behind the type of its elements
        _, at = _number(wasm, at + 2)
        most = TABLE_ELEMENTS_MAX
        if has_most:
            most, at = _number(wasm, at)
        total += min(most, TABLE_ELEMENTS_MAX)
    return total


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(data[at : at + _NUMBER_BYTES_MAX]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, at + index + 1
    raise ValueError("a number has no end")
