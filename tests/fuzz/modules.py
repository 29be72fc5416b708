"""Cases of modules: bytes that a client uploads.

A case is a valid module with some damage (sections left out, put twice, in another order or taken
from another module; lengths that lie, numbers that are too long, flipped bytes), or one made of
valid pieces at their limits. It goes to a process of its own, which does what the compiler's child
does, then loads what was accepted as a worker would, and runs it for a moment. What must hold: that
process neither dies nor takes long, and every accepted module can be loaded.
"""

import contextlib
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import IO

from wasmtime import wat2wasm

from tests.fuzz.guest import player
from tests.fuzz.values import shortened
from tests.support.worker import guests

SECONDS_MAX = 90  # of real time, for one module, on a slow machine
_HEADER = b"\0asm\x01\0\0\0"
_REPLY = 4  # bytes of a reply's length
_NAME = b"\x04name"


@dataclass(frozen=True)
class Case:
    """A module."""

    wasm: bytes

    def __str__(self) -> str:
        return self.wasm.hex() if len(self.wasm) < 4_000 else f"{len(self.wasm)} bytes"


# -- Making ----------------------------------------------------------------------------------------
def leb128(value: int, size: int = 0) -> bytes:
    """Return an unsigned number, in `size` bytes where that is more than it needs."""
    out = bytearray()
    while True:
        byte = value & 0x7F
        value >>= 7
        more = value or len(out) + 1 < size
        out.append(byte | 0x80 if more else byte)
        if not more:
            return bytes(out)


def sections(wasm: bytes) -> list[tuple[int, bytes]]:
    """Return a valid module's sections: (id, content)."""
    at, found = len(_HEADER), []
    while at < len(wasm):
        number, at = wasm[at], at + 1
        size = shift = 0
        while True:
            byte = wasm[at]
            at += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        found.append((number, wasm[at : at + size]))
        at += size
    return found


def joined(parts: list[tuple[int, bytes]]) -> bytes:
    return _HEADER + b"".join(bytes([n]) + leb128(len(body)) + body for n, body in parts)


@lru_cache(maxsize=1)
def _valid() -> tuple[bytes, ...]:
    texts = (guests.HELLO, guests.SPIN, guests.DECODE)
    return (*(bytes(wat2wasm(text)) for text in texts), player())


def make(rng: Random) -> Case:
    if rng.random() < 0.25:
        return Case(_generated(rng))
    base = rng.choice(_valid())
    if rng.random() < 0.2:  # anything anywhere
        return Case(_flipped(rng, base, rng.choice((1, 1, 2, 8))))
    parts = sections(base)
    for _ in range(rng.choice((1, 1, 2, 4))):
        _damage(rng, parts)
    wasm = joined(parts)
    return Case(_lies(rng, parts) if rng.random() < 0.3 else wasm)


def _flipped(rng: Random, data: bytes, count: int) -> bytes:
    out = bytearray(data)
    for _ in range(count if out else 0):
        out[rng.randrange(len(out))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    return bytes(out)


def _damage(rng: Random, parts: list[tuple[int, bytes]]) -> None:
    at = rng.randrange(len(parts)) if parts else 0
    what = rng.randrange(8)
    if what == 0 and parts:
        del parts[at]
    elif what == 1 and parts:
        parts.insert(rng.randrange(len(parts) + 1), parts[at])
    elif what == 2:
        rng.shuffle(parts)
    elif what == 3:
        parts.insert(at, rng.choice(sections(rng.choice(_valid()))))
    elif what == 4:
        number = rng.choice((0, 0, 12, 13, 14, 0x7F, 0xFF))
        content = rng.choice((_NAME, b"", leb128(1 << 31, 5))) + rng.randbytes(rng.choice((0, 40)))
        parts.insert(at, (number, content))
    elif parts:
        number, body = parts[at]
        parts[at] = number, _changed(rng, body)


def _changed(rng: Random, body: bytes) -> bytes:
    what = rng.randrange(5)
    if what == 0:  # the first number says how many there are
        return leb128(rng.choice((0, 1, 127, 50_001, 1 << 20, (1 << 32) - 1)), 5) + body[1:]
    if what == 1:
        return body[: rng.randrange(len(body) + 1)]
    if what == 2:
        at = rng.randrange(len(body) + 1)
        return body[:at] + rng.choice((b"\x80" * 9, b"\xff" * 5, leb128(1, 5))) + body[at:]
    if what == 3:
        at = rng.randrange(len(body) + 1)
        return body[:at] + body[at : at + 30] * rng.choice((2, 50)) + body[at + 30 :]
    return _flipped(rng, body, rng.choice((1, 2, 5)))


def _lies(rng: Random, parts: list[tuple[int, bytes]]) -> bytes:
    """Return a module of sections of which one says another length."""
    out, liar = _HEADER, rng.randrange(len(parts) or 1)
    for index, (number, body) in enumerate(parts):
        size = len(body)
        length = leb128(size)
        if index == liar:
            lies = (size + 1, max(size - 1, 0), 0, (1 << 32) - 1, 1 << 31, size << 7)
            other = leb128(rng.choice(lies), rng.choice((0, 5)))
            length = rng.choice((other, other, b"\x80" * 6, leb128(size, 5), leb128(size, 6)))
        out += bytes([number]) + length + body
    return out


def _generated(rng: Random) -> bytes:
    """Return a module of valid pieces at, and past, their limits."""
    parts = [rng.choice(_PIECES) for _ in range(rng.choice((1, 2, 4)))]
    pages = rng.choice(("1", "0", "1 1", "1024", "1025", "65536", "1 65536", "2 1"))
    body = rng.choice(_BODIES)
    deep = rng.choice((1, 50, 5_000))
    fill = {
        "deep": "(block " * deep + ")" * deep,
        "many": " ".join(["(drop (i32.const 1))"] * deep),
    }
    text = f"""(module (memory (export "memory") {pages}) {" ".join(parts)}
        (func (export "lip_main") (result i32) {body} (i32.const 0)))"""
    try:
        return bytes(wat2wasm(text.format(**fill)))
    except Exception:  # the text itself is refused: it is a case all the same
        return _HEADER + text.encode()[: rng.randrange(200)]


_PIECES = (
    "(table 10 funcref)", "(table 65537 funcref)", '(table (export "t") 4000000000 funcref)',
    "(table 1 externref)", "(table 1 funcref) (table 1 funcref) (table 1 funcref)",
    "(global (mut i64) (i64.const -1))", "(global v128 (v128.const i64x2 1 2))",
    '(data (i32.const 65535) "xx")', '(data (i32.const -1) "x")', '(data "passive")',
    "(func $s (loop (br 0))) (start $s)", "(func $s unreachable) (start $s)",
    "(func $s (drop (memory.grow (i32.const 60000)))) (start $s)", "(func $r (call $r))",
    '(func (export "_initialize") (loop (br 0)))', '(func (export "_initialize") (param i32))',
    "(func (param i32 i64 f32 f64) (result f64 i32) (local.get 3) (local.get 0))",
    "(func {deep})", "(func {many})", "(type (func (param i64 i64)))", "(tag)", "(memory 1)",
    '(import "lip" "send" (global i32))', '(import "lip" "nothing" (func))',
    '(export "memory2" (memory 0))', "(func (result funcref) (ref.null func))",
)  # fmt: skip
_BODIES = (
    "", "(loop (br 0))", "unreachable", "{deep}", "{many}",
    "(memory.fill (i32.const 0) (i32.const 7) (i32.const -1))",
    "(memory.fill (i32.const 0) (i32.const 7) (i32.const 65536))",
    "(memory.copy (i32.const 1) (i32.const 0) (i32.const 65535))",
    "(drop (memory.grow (i32.const 65535)))", "(i32.store (i32.const -4) (i32.const 1))",
    "(drop (i32.div_s (i32.const -2147483648) (i32.const -1)))",
    "(drop (i32.trunc_f64_s (f64.const nan)))", "(drop (i64.load (i32.const 65530)))",
    "(return_call 0)", "(drop (i32x4.extract_lane 3 (i32x4.splat (i32.const 9))))",
)  # fmt: skip


# -- Playing ---------------------------------------------------------------------------------------
class Child:
    """The process that takes modules; a new one when one has died."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def take(self, wasm: bytes) -> str:
        """Return what became of a module, in words: "refused", "ran", or what was wrong."""
        process = self._process or self._begin()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(len(wasm).to_bytes(_REPLY, "little") + wasm)
            process.stdin.flush()
            return _read(process.stdout)
        except (OSError, EOFError):
            code = process.wait()
            self._forget(process)
            return f"the process ended with {code}"

    def _begin(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.fuzz.module_child"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe)
        return self._process

    def close(self) -> None:
        process = self._process
        if process is not None:
            self._forget(process)
            process.wait()

    def _forget(self, process: subprocess.Popen[bytes]) -> None:
        """Close both pipes: at the end of its input it ends."""
        self._process = None
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # what it has not read
                pipe.close()


def _read(stream: IO[bytes]) -> str:
    head = stream.read(_REPLY)
    if len(head) < _REPLY:
        raise EOFError
    return stream.read(int.from_bytes(head, "little")).decode()


def wrong(words: str) -> list[str]:
    return [] if words in ("refused", "ran") else [words]


def smaller(case: Case, at: int) -> Case | None:
    """Return the case with some bytes left out; None: no more."""
    less = shortened(case.wasm, at, (4_096, 256, 16, 1))
    return None if less is None else Case(less)
