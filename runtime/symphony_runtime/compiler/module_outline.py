"""The outline of a module: its sections, and how many items each one declares.

Some items are cheap to write into a module and expensive to have: a global costs a module five
bytes and each of its instances sixteen; an export is an object in every worker that loads it. So
they are counted before the module is parsed.
"""

from collections import Counter
from collections.abc import Iterator
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
CUSTOM, TYPE, IMPORT, FUNCTION, TABLE, GLOBAL, EXPORT, ELEMENT, CODE = 0, 1, 2, 3, 4, 6, 7, 9, 10
_LISTS: Final = frozenset({1, 2, 3, 4, 5, 6, 7, 9, 10, 11})  # sections that begin with a count
_NULLABLE: Final = 0x63  # prefix of a reference type
_NUMBER_BYTES_MAX: Final = 5  # of a u32 in LEB128

# Section, limit, name of its items.
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
    """Declared counts of items, and sizes in bytes, by section number."""

    counts: Counter[int] = field(default_factory=Counter)
    sizes: Counter[int] = field(default_factory=Counter)

    def problems(self) -> list[str]:
        """Return a sentence for each exceeded limit (except that of functions)."""
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
    """Return the outline of a module whose header has been checked.

    Raises ValueError: the sections do not add up to the bytes.
    """
    outline = Outline()
    for section, at, size in read_sections(wasm):
        if section in _LISTS:
            outline.counts[section] += read_number(wasm, at)[0]
        outline.sizes[section] += size
    return outline


def table_elements(wasm: bytes) -> int:
    """Return how many elements an instance's tables may grow to together.

    The module must be valid and use only proposals that the ABI lists.
    """
    return sum(_elements(wasm, at) for section, at, _ in read_sections(wasm) if section == TABLE)


def read_text(wasm: bytes, at: int) -> tuple[str, int]:
    """Return the text at `at`, and what follows it. Raise ValueError."""
    size, at = read_number(wasm, at)
    return wasm[at : at + size].decode(errors="replace"), at + size


def read_custom(wasm: bytes, title: str) -> bytes:
    """Return the content of a valid module's first custom section with this title, if any."""
    for section, at, size in read_sections(wasm):
        if section == CUSTOM:
            found, inside = read_text(wasm, at)
            if found == title:
                return wasm[inside : at + size]
    return b""


def read_sections(wasm: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield each section's number, start and size. Raise ValueError."""
    at = len(HEADER)
    while at < len(wasm):
        section = wasm[at]
        size, at = read_number(wasm, at + 1)
        if at + size > len(wasm):
            raise ValueError(f"section {section} is longer than the file")
        yield section, at, size
        at += size


def _elements(wasm: bytes, at: int) -> int:
    """Return the sum over the entries of the table section at `at`."""
    count, at = read_number(wasm, at)
    total = 0
    for _ in range(count):
        at += wasm[at] == _NULLABLE  # `funcref` also has a two-byte encoding
        has_most = wasm[at + 1] & 1  # after the element type
        _, at = read_number(wasm, at + 2)
        most = TABLE_ELEMENTS_MAX
        if has_most:
            most, at = read_number(wasm, at)
        total += min(most, TABLE_ELEMENTS_MAX)
    return total


def read_number(data: bytes, at: int) -> tuple[int, int]:
    """Return the LEB128 number at `at`, and what follows it. Raise ValueError."""
    value = 0
    for index, byte in enumerate(data[at : at + _NUMBER_BYTES_MAX]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, at + index + 1
    raise ValueError("a number has no end")


def write_custom(title: str, content: bytes) -> bytes:
    return write_section(CUSTOM, write_text(title) + content)


def write_section(number: int, content: bytes) -> bytes:
    return bytes([number]) + write_number(len(content)) + content


def write_text(text: str) -> bytes:
    data = text.encode()
    return write_number(len(data)) + data


def write_number(value: int) -> bytes:
    """Return a number in LEB128."""
    data = bytearray()
    while value > 127:
        data.append(value & 127 | 128)
        value >>= 7
    return bytes([*data, value])
