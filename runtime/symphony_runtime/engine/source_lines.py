"""Lines of a program's sources by place in its module, for the reason of a trap.

`symphony build` writes them into a custom section of the module, the compiler copies that into the
artefact, and a worker reads them when the program traps.

The format, little endian: the number of places: u32; of each place, by offset, its offset in the
module: u32, its source: u16, its line: u16; the names of the sources: UTF-8, one a line. Source
65,535 is a library's code, which has been inlined behind the place before.
"""

import struct
from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

SECTION: Final = "symphony.lines"
BYTES_MAX: Final = 256 << 10  # of a section that is read
_COUNT = struct.Struct("<I")
_PLACE = struct.Struct("<IHH")
_LIBRARY = 65_535  # stands for all sources that are not the program's own
_NAME_MAX = 200  # characters of a source's name in a reason


def pack_lines(places: Iterable[tuple[int, str, int]]) -> bytes:
    """Return the section of places, each its offset in the module, its source and its line.

    The source "" is a library's.
    """
    sources: dict[str, int] = {}
    packed, last = bytearray(), (_LIBRARY, 0)
    for offset, source, line in sorted(places):
        known = source and line < _LIBRARY
        number = sources.setdefault(source, len(sources)) if known else _LIBRARY
        place = (number, line) if known else (_LIBRARY, 0)
        if place != last:
            packed += _PLACE.pack(offset, *place)
            last = place
    count = _COUNT.pack(len(packed) // _PLACE.size)
    return count + bytes(packed) + "\n".join(sources).encode()


def find_line(lines: bytes, start: int, offset: int) -> str:
    """Return "at source:line" of the last place from `start` to `offset`; "" where there is none.

    It is "near" that line in a library's code that has been inlined there, or in one of the next
    lines. Any program may bring any bytes here: what they do not tell is not told.
    """
    if not _COUNT.size <= len(lines) <= BYTES_MAX:
        return ""
    (count,) = _COUNT.unpack_from(lines)
    sources = _COUNT.size + count * _PLACE.size
    if sources > len(lines):
        return ""

    def place(index: int) -> tuple[int, int, int]:
        found: tuple[int, int, int] = _PLACE.unpack_from(lines, _COUNT.size + index * _PLACE.size)
        return found

    index = bisect_right(range(count), offset, key=lambda index: place(index)[0]) - 1
    inlined = index > 0 and place(index)[1] == _LIBRARY
    index -= inlined
    if index < 0:
        return ""
    at, number, line = place(index)
    names = lines[sources:].decode(errors="replace").split("\n")
    if at < start or number >= len(names):
        return ""
    return f"{'near' if inlined else 'at'} {names[number][:_NAME_MAX]}:{line}"
