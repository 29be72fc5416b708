"""Names and lines of an AssemblyScript program's own functions, for the reason of a trap.

The compiler's name section takes a fifth of the module, for names of libraries mostly. It is
replaced by the names of the program's own functions, and the compiler's source map by a section of
the lines of its own sources: so the reason of a trap names what the author wrote.
"""

import json
from collections.abc import Iterator

from symphony_runtime.compiler.module_outline import (
    CUSTOM,
    HEADER,
    read_number,
    read_sections,
    read_text,
    write_custom,
    write_number,
    write_section,
    write_text,
)
from symphony_runtime.engine.source_lines import SECTION, pack_lines

_FUNCTIONS = 1  # subsection of the name section
_REPLACED = ("name", "sourceMappingURL")  # custom sections
_LIBRARY = "~lib/"
_DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


def name_own_functions(wasm: bytes, source_map: str) -> bytes:
    """Return asc's module, built with `--debug`, with names and lines of its own sources alone."""
    parsed = json.loads(source_map)
    own = [source for source in parsed["sources"] if not source.startswith(_LIBRARY)]
    kept, names = [HEADER], b""
    for section, at, size in read_sections(wasm):
        title, inside = read_text(wasm, at) if section == CUSTOM else ("", at)
        if title == "name":
            names = _own_names(wasm, inside, at + size, [_stem(source) for source in own])
        if title not in _REPLACED:
            kept.append(write_section(section, wasm[at : at + size]))
    sources = [source if source in own else "" for source in parsed["sources"]]
    lines = pack_lines(_read_places(sources, parsed["mappings"]))
    kept += [write_custom("name", names), write_custom(SECTION, lines)]
    return b"".join(kept)


def _stem(source: str) -> str:
    """Return what asc's names of a source's functions begin with."""
    return source.removesuffix(".ts") + "/"


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


def _own_names(wasm: bytes, at: int, end: int, stems: list[str]) -> bytes:
    """Return the name section that has the functions of these sources alone."""
    kept = []
    while at < end:
        size, inside = read_number(wasm, at + 1)
        count, place = read_number(wasm, inside) if wasm[at] == _FUNCTIONS else (0, inside)
        for _ in range(count):
            index, place = read_number(wasm, place)
            name, place = read_text(wasm, place)
            stem = next((stem for stem in stems if name.startswith(stem)), "")
            if stem:
                kept.append(write_number(index) + write_text(name.removeprefix(stem)))
        at = inside + size
    return write_section(_FUNCTIONS, write_number(len(kept)) + b"".join(kept))
