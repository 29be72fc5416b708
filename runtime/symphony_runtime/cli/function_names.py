"""The names of an AssemblyScript program's functions, by which a trap says where it was.

The compiler's name section takes a fifth of the module, for names of libraries mostly. Here each of
the program's own functions gets its name, its file and its lines, and the others get none: so the
reason of a trap names what the author wrote. The lines are those of the compiler's source map.
"""

import json
from bisect import bisect_left
from collections.abc import Iterator

from symphony_runtime.compiler.module_outline import HEADER, read_number, read_sections

_CUSTOM, _CODE = 0, 10  # sections
_FUNCTIONS = 1  # subsection of the name section
_REPLACED = ("name", "sourceMappingURL")  # custom sections
_LIBRARY = "~lib/"
_DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


def name_own_functions(wasm: bytes, source_map: str) -> bytes:
    """Return asc's module, built with `--debug`, with the names of its own functions alone."""
    kept, names, bodies = [HEADER], dict[int, str](), list[tuple[int, int]]()
    for section, at, size in read_sections(wasm):
        title, inside = _read_text(wasm, at) if section == _CUSTOM else ("", at)
        if title == "name":
            names = _read_names(wasm, inside, at + size)
        elif section == _CODE:
            bodies = list(_read_bodies(wasm, at))
        if title not in _REPLACED:
            kept.append(_section(section, wasm[at : at + size]))
    lines = _Lines(source_map)
    own = {}
    # asc names every function that has a body.
    for (index, full_name), (start, end) in zip(sorted(names.items()), bodies, strict=True):
        if name := lines.describe(full_name, start, end):
            own[index] = name
    return b"".join([*kept, _name_section(own)])


class _Lines:
    """The lines of the program's own sources, by place in the module."""

    def __init__(self, source_map: str) -> None:
        parsed = json.loads(source_map)
        self.sources = [name for name in parsed["sources"] if not name.startswith(_LIBRARY)]
        self.places = list(_read_places(parsed["sources"], parsed["mappings"]))

    def describe(self, name: str, start: int, end: int) -> str:
        """Return a function's name with its file and lines; "" of a library's."""
        plain = name.removeprefix("start:")
        for source in self.sources:
            stem = source.removesuffix(".ts")
            if plain != stem and not plain.startswith(stem + "/"):
                continue
            first = bisect_left(self.places, (start,))
            inside = self.places[first : bisect_left(self.places, (end,))]
            lines = [line for _, of, line in inside if of == source]
            place = f"{source}:{min(lines)}-{max(lines)}" if lines else source
            if lines and min(lines) == max(lines):
                place = f"{source}:{lines[0]}"
            return f"{plain[len(stem) + 1 :] or 'the start'} at {place}"
        return ""


def _read_places(sources: list[str], mappings: str) -> Iterator[tuple[int, str, int]]:
    """Yield offset in the module, source and line of each mapping (source map, revision 3)."""
    offset = source = line = 0
    for segment in mappings.replace(";", ",").split(","):
        fields = list(_read_fields(segment))
        if not fields:
            continue
        offset += fields[0]
        if len(fields) > 1:
            source, line = source + fields[1], line + fields[2]
            yield offset, sources[source], line + 1


def _read_fields(segment: str) -> Iterator[int]:
    """Yield a segment's numbers: six bits a digit, the highest says that more come."""
    value = shift = 0
    for digit in map(_DIGITS.index, segment):
        value |= (digit & 31) << shift
        shift += 5
        if digit < 32:
            yield -(value >> 1) if value & 1 else value >> 1
            value = shift = 0


def _read_bodies(wasm: bytes, at: int) -> Iterator[tuple[int, int]]:
    """Yield the start and the end of each function in the code section."""
    count, at = read_number(wasm, at)
    for _ in range(count):
        size, at = read_number(wasm, at)
        yield at, at + size
        at += size


def _read_names(wasm: bytes, at: int, end: int) -> dict[int, str]:
    """Return the functions' names of a name section."""
    names: dict[int, str] = {}
    while at < end:
        size, inside = read_number(wasm, at + 1)
        if wasm[at] == _FUNCTIONS:
            count, place = read_number(wasm, inside)
            for _ in range(count):
                index, place = read_number(wasm, place)
                names[index], place = _read_text(wasm, place)
        at = inside + size
    return names


def _read_text(wasm: bytes, at: int) -> tuple[str, int]:
    size, at = read_number(wasm, at)
    return wasm[at : at + size].decode(), at + size


def _name_section(names: dict[int, str]) -> bytes:
    items = [_number(index) + _text(name) for index, name in names.items()]
    functions = _number(len(items)) + b"".join(items)
    return _section(_CUSTOM, _text("name") + _section(_FUNCTIONS, functions))


def _section(number: int, content: bytes) -> bytes:
    return bytes([number]) + _number(len(content)) + content


def _text(text: str) -> bytes:
    data = text.encode()
    return _number(len(data)) + data


def _number(value: int) -> bytes:
    """Return a number in LEB128."""
    data = bytearray()
    while value > 127:
        data.append(value & 127 | 128)
        value >>= 7
    return bytes([*data, value])
