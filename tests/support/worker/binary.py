"""Modules byte by byte, for what WAT cannot say or would say in megabytes; their problems."""

from collections.abc import Sequence
from dataclasses import dataclass

from symphony_runtime.compiler.validation import check_and_compile
from wasmtime import wat2wasm

# What every module needs, in WAT.
MEMORY = '(memory (export "memory") 1)'
START = '(func (export "_start"))'
HEADER = b"\0asm\x01\0\0\0"
I32, FUNCREF = b"\x7f", b"\x70"
VOID, RETURNS_I32, TAKES_TWO = b"\x60\0\0", b"\x60\0\x01\x7f", b"\x60\x02\x7f\x7f\x01\x7f"
EMPTY_BODY = b"\0\x0b"
AT_ZERO = b"\x41\0\x0b"  # i32.const 0: where a segment goes


def problems(source: str | bytes) -> list[str]:
    """Return what is wrong with a module, WAT or Wasm; this must return for any bytes."""
    wasm = bytes(wat2wasm(source)) if isinstance(source, str) else source
    return check_and_compile(wasm).problems


def leb(value: int) -> bytes:
    """An unsigned number, as modules write them."""
    out = bytearray()
    while True:
        value, low = value >> 7, value & 0x7F
        out.append(low | (0x80 if value else 0))
        if not value:
            return bytes(out)


def section(number: int, content: bytes) -> bytes:
    """A section with its length."""
    return bytes([number]) + leb(len(content)) + content


def vector(items: Sequence[bytes]) -> bytes:
    """Things with their number before them."""
    return leb(len(items)) + b"".join(items)


def name(text: str | bytes) -> bytes:
    """A name with its length."""
    raw = text.encode() if isinstance(text, str) else text
    return leb(len(raw)) + raw


@dataclass(frozen=True, kw_only=True)
class Binary:
    """A module that exports `memory` and, as `_start`, its first function; all else as given."""

    types: Sequence[bytes] = (VOID, RETURNS_I32, TAKES_TWO)
    imports: Sequence[bytes] = ()
    functions: int = 1
    bodies: Sequence[bytes] | None = None  # by default empty ones
    tables: Sequence[bytes] = ()
    pages: int = 1
    globals: Sequence[bytes] = ()
    exports: Sequence[bytes] = ()
    elements: Sequence[bytes] = ()
    data: Sequence[bytes] = ()

    def wasm(self) -> bytes:
        """The bytes."""
        first = leb(len(self.imports))
        exports = [name("memory") + b"\x02\0", name("_start") + b"\0" + first, *self.exports]
        bodies = self.bodies if self.bodies is not None else [EMPTY_BODY] * self.functions
        parts = [
            (1, self.types), (2, self.imports), (3, [b"\0"] * self.functions), (4, self.tables),
            (5, [b"\0" + leb(self.pages)]), (6, self.globals), (7, exports), (9, self.elements),
            (10, [leb(len(body)) + body for body in bodies]), (11, self.data),
        ]  # fmt: skip
        sections = [section(number, vector(items)) for number, items in parts if items]
        return HEADER + b"".join(sections)
