"""The guest that plays scripts: a list of calls with their arguments, read from its input.

One module for all scripts, so that a case costs no compiler. A script's input is an *image* of the
guest's first bytes (its length, then paths, options, tokens), and behind it records of one call
each:

    call: u32   slot of the result: u32   8 times (slot: u32, or NONE; addend: i64)

An argument is its addend, plus what the slot holds: so a handle, one off by one, and any number at
all are written alike. Behind the ABI's calls come a few of the guest's own (`OWN`).
"""

import struct
from dataclasses import dataclass, field

from symphony_runtime.abi import Signature, allowed_imports
from wasmtime import wat2wasm

NONE = 0xFFFFFFFF
SLOTS = 64
ARGUMENTS_MAX = 8
PAGES, PAGES_MAX = 4, 6
MEMORY_BYTES = PAGES * 65_536
IMAGE_BYTES = 16 << 10  # of the image, at most, from address 0
SCRATCH = (IMAGE_BYTES, 64 << 10)  # where results may go
EDGE = 3 * 65_536  # behind the script: the page with the memory's end
_SLOTS_AT = 96 << 10
_RECORDS_AT = 128 << 10
PLAYED_MAX = 3_000  # records, repeated ones included
RECORDS_MAX = (EDGE - _RECORDS_AT) // (16 + 12 * ARGUMENTS_MAX) - 1

CALLS: tuple[tuple[str, str], ...] = tuple(allowed_imports())
# store(address, value); spin(turns); grow(pages); trap(); set(value); again(records, times):
# goes back so many records, so many times.
OWN: dict[str, int] = {"store": 2, "spin": 1, "grow": 1, "trap": 0, "set": 1, "again": 2}
NUMBERS: dict[str, int] = {
    **{
        f"{module}.{name}" if module != "lip" else name: i for i, (module, name) in enumerate(CALLS)
    },
    **{name: len(CALLS) + i for i, name in enumerate(OWN)},
}

Argument = tuple[int, int]  # slot or NONE, addend
_HEAD, _ARGUMENT = struct.Struct("<IIII"), struct.Struct("<Iq")


def number(value: int) -> Argument:
    return NONE, value


@dataclass(frozen=True)
class Record:
    """One call of a script; its result goes to `slot`."""

    call: str
    arguments: tuple[Argument, ...] = ()
    slot: int = 0

    def packed(self) -> bytes:
        given = [*self.arguments, *[(NONE, 0)] * (ARGUMENTS_MAX - len(self.arguments))]
        words = b"".join(_ARGUMENT.pack(slot, _wrapped(value)) for slot, value in given)
        return _HEAD.pack(NUMBERS[self.call], self.slot, 0, 0) + words

    def __str__(self) -> str:
        given = ", ".join(
            str(value) if slot == NONE else f"${slot}{value:+d}" if value else f"${slot}"
            for slot, value in self.arguments
        )
        return f"${self.slot} = {self.call}({given})"


@dataclass(frozen=True)
class Script:
    """What one guest does."""

    records: tuple[Record, ...]
    image: bytes = field(default=b"", repr=False)

    def packed(self) -> bytes:
        assert len(self.image) <= IMAGE_BYTES
        assert len(self.records) <= RECORDS_MAX
        size = len(self.image).to_bytes(4, "little")
        return size + self.image + b"".join(r.packed() for r in self.records)


def _wrapped(value: int) -> int:
    """Return the i64 with the same low bits."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def player() -> bytes:
    return bytes(wat2wasm(_wat()))


def _wat() -> str:
    kinds = list(allowed_imports().values())
    imports = [
        f'(import "{module}" "{name}" (func $f{i} {_type(kinds[i])}))'
        for i, (module, name) in enumerate(CALLS)
    ]
    wrappers = [_wrapper(i, kind) for i, kind in enumerate(kinds)]
    names = [f"$w{i}" for i in range(len(kinds))] + [f"$own_{name}" for name in OWN]
    table = f"(table {len(names)} funcref) (elem (i32.const 0) {' '.join(names)})"
    memory = f'(memory (export "memory") {PAGES} {PAGES_MAX})'
    return "\n".join(["(module", *imports, memory, table, *wrappers, _OWN_WAT, _LOOP, ")"])


def _type(kind: Signature) -> str:
    params = f"(param {' '.join(kind.params)})" if kind.params else ""
    return params + (f" (result {kind.results[0]})" if kind.results else "")


def _wrapper(index: int, kind: Signature) -> str:
    arguments = [
        f"(call $a (local.get 0) (i32.const {i}))"
        if param == "i64"
        else f"(i32.wrap_i64 (call $a (local.get 0) (i32.const {i})))"
        for i, param in enumerate(kind.params)
    ]
    call = f"(call $f{index} {' '.join(arguments)})"
    if not kind.results:
        call += " (i64.const 0)"
    elif kind.results == ("i32",):
        call = f"(i64.extend_i32_s {call})"
    return f"(func $w{index} (type $play) {call})"


_OWN_WAT = f"""
(global $pc (mut i32) (i32.const 0))
(global $left (mut i32) (i32.const {PLAYED_MAX}))
(type $play (func (param $pc i32) (result i64)))
(func $slot (param $number i32) (result i32)
  (i32.add (i32.const {_SLOTS_AT})
           (i32.shl (i32.and (local.get $number) (i32.const {SLOTS - 1})) (i32.const 3))))
(func $a (param $pc i32) (param $index i32) (result i64)
  (local $at i32) (local $slot i32) (local $value i64)
  (local.set $at (i32.add (local.get $pc) (i32.mul (local.get $index) (i32.const 12))))
  (local.set $slot (i32.load offset=16 (local.get $at)))
  (local.set $value (i64.load offset=20 (local.get $at)))
  (if (i32.ne (local.get $slot) (i32.const -1))
    (then (local.set $value
      (i64.add (local.get $value) (i64.load (call $slot (local.get $slot)))))))
  (local.get $value))
(func $own_store (type $play)
  (i32.store (i32.and (i32.wrap_i64 (call $a (local.get 0) (i32.const 0))) (i32.const 0xfffc))
             (i32.wrap_i64 (call $a (local.get 0) (i32.const 1))))
  (i64.const 0))
(func $own_spin (type $play) (local $left i64)
  (local.set $left (call $a (local.get 0) (i32.const 0)))
  (loop $on
    (br_if $on (i64.ne (local.tee $left (i64.sub (local.get $left) (i64.const 1))) (i64.const 0))))
  (i64.const 0))
(func $own_grow (type $play)
  (i64.extend_i32_s (memory.grow (i32.wrap_i64 (call $a (local.get 0) (i32.const 0))))))
(func $own_trap (type $play) (unreachable))
(func $own_set (type $play) (call $a (local.get 0) (i32.const 0)))
(func $own_again (type $play) (local $done i64)
  (local.set $done (i64.load (call $slot (i32.load offset=4 (local.get 0)))))
  (local.set $done (i64.add (i64.const 1) (local.get $done)))
  (if (i64.ge_s (local.get $done) (call $a (local.get 0) (i32.const 1)))
    (then (local.set $done (i64.const 0)))
    (else (global.set $pc (i32.sub (global.get $pc) (i32.mul (i32.const 112)
      (i32.add (i32.const 1) (i32.wrap_i64 (call $a (local.get 0) (i32.const 0)))))))))
  (local.get $done))
"""

_INPUT_AT = _RECORDS_AT - IMAGE_BYTES
_LOOP = f"""
(func $play (result i32) (local $end i32) (local $at i32)
  (local.set $end (i32.add (i32.const {_INPUT_AT})
    (call $f{NUMBERS["input_read"]} (i32.const {_INPUT_AT}) (i32.const {EDGE - _INPUT_AT}))))
  (local.set $at (i32.load (i32.const {_INPUT_AT})))
  (memory.copy (i32.const 0) (i32.const {_INPUT_AT + 4}) (local.get $at))
  (global.set $pc (i32.add (local.get $at) (i32.const {_INPUT_AT + 4})))
  (block $over
    (loop $next
      (br_if $over (i32.ge_u (global.get $pc) (local.get $end)))
      (global.set $left (i32.sub (global.get $left) (i32.const 1)))
      (br_if $over (i32.eqz (global.get $left)))
      (local.set $at (global.get $pc))
      (i64.store (call $slot (i32.load offset=4 (local.get $at)))
        (call_indirect (type $play) (local.get $at) (i32.load (local.get $at))))
      (global.set $pc (i32.add (global.get $pc) (i32.const 112)))
      (br $next)))
  (i32.const 0))
(export "lip_main" (func $play))
(export "child" (func $play))
"""
