"""A trap in words: why, and in which functions. `fiber.py` asks for both when a guest has trapped.

The names are the guest's: they are cut, made printable, and read as Rust's or AssemblyScript's
where they look so.
"""

import re
from collections.abc import Sequence
from itertools import dropwhile, groupby

from wasmtime import Frame, Trap, TrapCode

from symphony_runtime.engine.source_lines import find_line

REASONS: dict[TrapCode, str] = {
    TrapCode.STACK_OVERFLOW: "stack overflow: the recursion is too deep",
    TrapCode.MEMORY_OUT_OF_BOUNDS: "out-of-bounds memory access",
    TrapCode.TABLE_OUT_OF_BOUNDS: "out-of-bounds table access",
    TrapCode.INDIRECT_CALL_TO_NULL: "indirect call to a null function",
    TrapCode.BAD_SIGNATURE: "indirect call to a function of another type",
    TrapCode.INTEGER_OVERFLOW: "integer overflow",
    TrapCode.INTEGER_DIVISION_BY_ZERO: "integer division by zero",
    TrapCode.BAD_CONVERSION_TO_INTEGER: "conversion of a float that is no integer",
    TrapCode.UNREACHABLE: "unreachable instruction",
    TrapCode.NULL_REFERENCE: "use of a null reference",
}
# Not "stack overflow" in front, which names the server's limit of the other stack.
_OWN_STACK = "the program's own stack overflowed: the recursion is too deep"
_FRAMES_KNOWN = 20  # the engine's limit, so a longer stack shows as many
_FRAMES_SHOWN = 8
_NAME_MAX = 200  # characters of each
_SYMBOL_MAX = 1000  # characters of one before it is read
_LIBRARY = "~lib/"  # AssemblyScript's prefix for functions that are not the program's own
# What runs in Rust between a panic and the trap. Its message is a line of the run's log.
_PANIC = re.compile(
    r"(core|std)::(panicking|rt|sys(_common)?::backtrace)::|std::process::abort|abort$|"
    r"rust_(panic|begin_unwind)|__rust(c::|_start_panic|_abort|_alloc_error)|__rg_oom|"
    r"core::(option|result|cell|slice::index|str)::\w*(fail|failed|panic)\w*|"
    r"alloc::(alloc::(handle_alloc_error|rust_oom)|raw_vec::(capacity_overflow|handle_error))|"
    r"std::alloc::(rust_oom|default_alloc_error_hook)"
)
_LENGTH = re.compile(r"\d{1,4}")
_HASH = re.compile(r"h[0-9a-f]{16}")
_ESCAPE = re.compile(r"\$(u[0-9a-f]{1,6}|[A-Z]{1,2})\$")
_ESCAPES = {"SP": "@", "BP": "*", "RF": "&", "LT": "<", "GT": ">", "LP": "(", "RP": ")", "C": ","}
# In Rust's newer form: an identifier's length, or a number that is no part of the name.
_V0_PART = re.compile(r"(\d+)_?|[sB][0-9a-zA-Z]*_")


def reason(trap: Trap) -> str:
    """Return why it trapped."""
    code = trap.trap_code
    if code is TrapCode.MEMORY_OUT_OF_BOUNDS and _recurses([f.func_index for f in trap.frames]):
        return _OWN_STACK
    if code in REASONS:
        return REASONS[code]
    return str(code.name if code else trap.message.splitlines()[0]).lower().replace("_", " ")


def where(trap: Trap, lines: bytes = b"") -> str:
    """Return the functions it came from, innermost first; empty where the module has no names.

    `lines` are the module's, of `source_lines`.
    """
    names = [
        _readable(demangle(frame.func_name[:_SYMBOL_MAX])) + _line(frame, lines)
        for frame in trap.frames
        if frame.func_name
    ]
    names = list(dropwhile(_PANIC.match, names)) or names
    names = [name for name in names if not name.startswith(_LIBRARY)] or names
    return ", called by ".join([name for name, _ in groupby(names)][:_FRAMES_SHOWN])


def _line(frame: Frame, lines: bytes) -> str:
    offset = frame.module_offset
    line = find_line(lines, offset - frame.func_offset, offset) if lines else ""
    return f" {_readable(line)}" if line else ""


def demangle(symbol: str) -> str:
    """Return a Rust symbol as its path (the newer form's without generics), others as they are."""
    parts = None
    if symbol.startswith("_ZN"):
        parts = _legacy(symbol)
    elif symbol.startswith("_R"):
        parts = _v0(symbol)
    return "::".join(parts) if parts else symbol


def _recurses(frames: Sequence[int]) -> bool:
    """Return whether a few functions call each other, deeper than the engine shows.

    Compilers put a program's own stack below all else in its memory, so that one that grows too
    long shows as an access in front of the memory.
    """
    return len(frames) >= _FRAMES_KNOWN and len(set(frames)) <= len(frames) // 2


def _legacy(symbol: str) -> list[str] | None:
    """Read `_ZN`, parts that begin with their length, `E`; the last part is a hash."""
    parts, at = [], len("_ZN")
    while (digits := _LENGTH.match(symbol, at)) is not None:
        end = digits.end() + int(digits.group())
        parts.append(symbol[digits.end() : end])
        at = end
    if not parts or symbol[at : at + 1] != "E":
        return None
    if len(parts) > 1 and _HASH.fullmatch(parts[-1]):
        parts.pop()
    return [_unescape(part) for part in parts]


def _unescape(part: str) -> str:
    part = part.removeprefix("_") if part.startswith("_$") else part
    part = _ESCAPE.sub(_character, part)
    return part.replace("..", "::")


def _character(escape: re.Match[str]) -> str:
    name = escape.group(1)
    if name in _ESCAPES:
        return _ESCAPES[name]
    number = int(name[1:], 16) if name[0] == "u" else -1
    return chr(number) if 0 <= number < 0x110000 else escape.group()


def _v0(symbol: str) -> list[str]:
    """Return the identifiers of a symbol of the form that newer compilers give.

    https://doc.rust-lang.org/rustc/symbol-mangling/v0.html
    """
    parts, at = [], len("_R")
    while at < len(symbol):
        part = _V0_PART.match(symbol, at)
        if part is None:
            at += 1
            continue
        at = part.end()
        if part.group(1):
            length = int(part.group(1)[:4])
            if length:
                parts.append(symbol[at : at + length])
            at += length
    return parts


def _readable(name: str) -> str:
    """Return a function's name, cut and printable: a guest chooses it freely."""
    cut = name[:_NAME_MAX]
    return "".join(c if c.isprintable() else "?" for c in cut) + ("..." if cut != name else "")
