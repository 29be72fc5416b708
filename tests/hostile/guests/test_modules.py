"""Modules that lie, are cut off, shadow what the server looks for, or need what is off."""

import pytest
from symphony_kernel.protocol.limits import (
    PROGRAM_ELEMENTS_BYTES_MAX,
    PROGRAM_EXPORTS_MAX,
    PROGRAM_FUNCTIONS_MAX,
    PROGRAM_GLOBALS_MAX,
    PROGRAM_IMPORTS_MAX,
    PROGRAM_NAMES_BYTES_MAX,
    PROGRAM_TYPES_MAX,
)
from symphony_runtime.compiler.validation import check_and_compile, check_shape
from wasmtime import wat2wasm

from tests.support.worker.binary import (
    AT_ZERO,
    EMPTY_BODY,
    FUNCREF,
    HEADER,
    I32,
    MEMORY,
    START,
    VOID,
    Binary,
    leb,
    name,
    problems,
    section,
    vector,
)
from tests.support.worker.guests import DECODE
from tests.support.worker.rig import WorkerRig

PLAIN = Binary().wasm()


def test_plain_module_is_accepted() -> None:
    assert problems(PLAIN) == []


# --- What is off (test_proposals.py has one for each proposal) ------------------------------------
OFF = {
    "i31 references": ("(func (drop (ref.i31 (i32.const 1))))", "garbage collection"),
    "arrays": ("(type $a (array i8)) (func (drop (array.new_default $a (i32.const 1))))", "garb"),
    "recursive types": ("(rec (type $a (struct)) (type (func (param (ref null $a)))))", "garbage"),
    "externref": ("(func (param externref))", "garbage collection"),
    "anyref": ("(func (param anyref))", "garbage collection"),
    "a catching block": ("(func (try_table))", "exceptions"),
    "a tag that is exported": ('(tag (export "t"))', "exceptions"),
    "a table of 64 bits": ("(table i64 1 funcref)", "memory64"),
    "a fence": ("(func (atomic.fence))", "threads"),
    "a wake-up": ("(func (drop (memory.atomic.notify (i32.const 0) (i32.const 0))))", "threads"),
    "a tail call through a table": (
        "(table 1 funcref) (type $t (func)) (func (return_call_indirect (type $t) (i32.const 0)))",
        "tail calls",
    ),
    "a copy between memories": (
        "(memory $m 1) (func (memory.copy $m 0 (i32.const 0) (i32.const 0) (i32.const 0)))",
        "multiple memories",
    ),
}


@pytest.mark.parametrize("what", OFF)
def test_module_with_a_disabled_proposal_is_refused_by_name(what: str) -> None:
    body, proposal = OFF[what]
    found = problems(f"(module {MEMORY} {body} {START})")
    assert len(found) == 1
    assert found[0].startswith("the module needs "), found
    assert proposal in found[0]


# --- What is no module ---------------------------------------------------------------------------
LIARS: dict[str, bytes] = {
    "nothing": b"",
    "half a header": HEADER[:6],
    "a component": b"\0asm\x0d\0\x01\0",
    "an unknown layer": b"\0asm\x01\0\x01\0",
    "a later version": b"\0asm\x02\0\0\0",
    "a section past the end": HEADER + b"\x01\x7f",
    "a size past every file": HEADER + b"\x01\xff\xff\xff\xff\x0f",
    "a size without an end": HEADER + b"\x01\x80\x80\x80\x80\x80\x80\x01",
    "four billion types": HEADER + section(1, b"\xff\xff\xff\xff\x0f"),
    "four billion functions": HEADER + section(3, b"\xff\xff\xff\xff\x0f"),
    "four billion locals": Binary(bodies=[vector([leb(0xFFFFFFFF) + I32]) + b"\x0b"]).wasm(),
    "locals that wrap around": Binary(
        bodies=[vector([leb(0xFFFFFFFF) + I32, leb(2) + I32]) + b"\x0b"]
    ).wasm(),
    "a section twice": PLAIN + section(1, vector([VOID])),
    "a section out of order": HEADER + section(3, vector([b"\0"])) + section(1, vector([VOID])),
    "an unknown section": PLAIN + section(77, b"x"),
    "bodies without functions": Binary(bodies=[EMPTY_BODY, EMPTY_BODY]).wasm(),
    "functions without bodies": Binary(functions=2, bodies=[EMPTY_BODY]).wasm(),
    "a type that is not there": HEADER + section(3, vector([b"\x05"])),
    "an export that is not there": Binary(exports=[name("x") + b"\0" + leb(9)]).wasm(),
    "an export twice": Binary(exports=[name("_start") + b"\0\0"]).wasm(),
    "a name that is no text": Binary(exports=[name(b"\xff\xfe") + b"\0\0"]).wasm(),
    "a name longer than the file": HEADER + section(7, b"\x01" + leb(1 << 30) + b"x"),
    "a body that runs on": Binary(bodies=[b"\0\x01\x01\x01"]).wasm(),
    "a body that has no end": Binary(bodies=[b"\0\x02\x40\x0b"]).wasm(),
    "an unknown instruction": Binary(bodies=[b"\0\xfa\x0b"]).wasm(),
    "a jump to nowhere": Binary(bodies=[b"\0\x0c" + leb(99) + b"\x0b"]).wasm(),
    "a call of no function": Binary(bodies=[b"\0\x10" + leb(1 << 31) + b"\x0b"]).wasm(),
    "a start that is not there": PLAIN[: PLAIN.index(b"\x0a\x04")] + section(8, leb(7)),
    "an exception of old": Binary(bodies=[b"\0\x06\x40\x0b\x0b"]).wasm(),
    "a call without its name's end": Binary(
        imports=[name("lip") + name("send\0") + b"\0\x02"]
    ).wasm(),
    "another module's calls": Binary(imports=[name("LIP") + name("send") + b"\0\x02"]).wasm(),
    "a call that looks the same": Binary(imports=[name("lip") + name("ѕend") + b"\0\x02"]).wasm(),
    "more memory than there is": Binary(pages=1 << 16).wasm(),
    "more memory than can be": Binary(pages=1 << 17).wasm(),
}  # fmt: skip


@pytest.mark.parametrize("what", LIARS)
def test_invalid_module_is_refused_with_a_reason(what: str) -> None:
    found = problems(LIARS[what])
    assert found
    assert all(0 < len(problem) <= 1000 and problem.isprintable() for problem in found), found


def test_module_cut_off_anywhere_is_refused() -> None:
    whole = bytes(wat2wasm(DECODE))
    assert problems(whole) == []
    good = [n for n in range(len(whole)) if not problems(whole[:n])]
    assert [whole[n] for n in good] == [0]  # where only its names are missing


# --- Export shadowing ----------------------------------------------------------------------------
EXPORTED = '(export "memory" (memory 0))'
SHADOWS = {
    "a function called memory": f'(memory 1) (func (export "memory")) {START}',
    "a global called memory": f'(memory 1) (global (export "memory") i32 (i32.const 0)) {START}',
    "a table called memory": f'(memory 1) (table (export "memory") 1 funcref) {START}',
    "another module's memory": f'(import "env" "memory" (memory 1)) {EXPORTED} {START}',
    "memory of the server": f'(import "lip" "send" (memory 1)) {EXPORTED} {START}',
    "no memory": START,
    "an entry that takes": f'{MEMORY} (func (export "_start") (param i32))',
    "an entry that gives": f'{MEMORY} (func (export "_start") (result i32) (i32.const 0))',
    "a main that gives too much": (
        f'{MEMORY} (func (export "lip_main") (result i32 i32) (i32.const 0) (i32.const 0))'
    ),
    "a main that gives something else": (
        f'{MEMORY} (func (export "lip_main") (result i64) (i64.const 0))'
    ),
    "a main that is a number": f'{MEMORY} (global (export "lip_main") i32 (i32.const 0))',
    "a main that is a table": f'{MEMORY} (table (export "lip_main") 1 funcref)',
    "a main that is a call with arguments": (
        f'(import "lip" "exit" (func $e (param i32))) {MEMORY} (export "lip_main" (func $e))'
    ),
    "a set-up that gives": (
        f'{MEMORY} (func (export "_initialize") (result i32) (i32.const 0)) {START}'
    ),
    "a set-up that is a call": (
        f'(import "lip" "recv" (func $r (result i32))) (export "_initialize" (func $r))'
        f" {MEMORY} {START}"
    ),
}


@pytest.mark.parametrize("what", SHADOWS)
def test_module_with_a_wrong_export_is_refused(what: str) -> None:
    found = problems(f"(module {SHADOWS[what]})")
    assert any(word in problem for problem in found for word in ("export", "import")), found


@pytest.mark.parametrize("call", ["recv", "kv_create"])
async def test_module_whose_entry_is_an_import_makes_that_call_only(
    rig: WorkerRig, call: str
) -> None:
    """The host is called without a guest and must not look for a guest's stack or memory."""
    source = (
        f'(module (import "lip" "{call}" (func $c (result i32))) {MEMORY}'
        f' (export "lip_main" (func $c)) (export "child" (func $c)))'
    )
    for entry in ("lip_main", "child"):
        ended = await rig.run(source, entry=entry)
        assert (ended.status, ended.exit_code > 0) == ("exited", True)


def test_module_entry_names_with_control_characters_are_kept() -> None:
    odd = ["", "\x1b[2J", "a\0b", "\u202egnp.exe", "x" * 1000, "../_start", "lip_main "]
    made = check_and_compile(Binary(exports=[name(each) + b"\0\0" for each in odd]).wasm())
    assert made.problems == []
    assert set(odd) < set(made.exports)
    assert made.entries == ["_start"]  # the others give nothing


# --- Too much of something -----------------------------------------------------------------------
GLOBAL = I32 + b"\x01" + AT_ZERO
SEND = name("lip") + name("send") + b"\0\x02"
MANY = {
    "types": Binary(types=[VOID] * (PROGRAM_TYPES_MAX + 1)),
    "imports": Binary(imports=[SEND] * (PROGRAM_IMPORTS_MAX + 1)),
    "globals": Binary(globals=[GLOBAL] * (PROGRAM_GLOBALS_MAX + 1)),
    "exports": Binary(exports=[name(f"e{n}") + b"\0\0" for n in range(PROGRAM_EXPORTS_MAX)]),
    "functions": Binary(functions=PROGRAM_FUNCTIONS_MAX + 1),
    "bytes of names": Binary(exports=[name("x" * PROGRAM_NAMES_BYTES_MAX) + b"\0\0"]),
    "bytes of elements": Binary(
        tables=[FUNCREF + b"\0\x01"],
        elements=[b"\x05" + FUNCREF + vector([b"\xd2\0\x0b"] * (PROGRAM_ELEMENTS_BYTES_MAX // 3))],
    ),
}


@pytest.mark.parametrize("what", MANY)
def test_module_past_a_limit_is_refused_before_compilation(what: str) -> None:
    """Each of these took an instance megabytes, or a worker seconds in which others waited."""
    (problem,) = check_shape(MANY[what].wasm())
    assert "the limit is" in problem


def test_module_at_a_limit_is_accepted() -> None:
    most = Binary(
        types=[VOID] * PROGRAM_TYPES_MAX,
        globals=[GLOBAL] * PROGRAM_GLOBALS_MAX,
        exports=[name(f"e{n}") + b"\0\0" for n in range(PROGRAM_EXPORTS_MAX - 2)],
    )
    assert problems(most.wasm()) == []


BLOCKS = 1000
JUMPS = b"\x41\0\x0e" + leb(65_000) + b"".join(leb(n % BLOCKS) for n in range(65_001))
BOMBS = {
    "twenty thousand levels of conditions": Binary(
        bodies=[b"\0" + b"\x41\0\x04\x40" * 20_000 + b"\x0b" * 20_001]
    ),
    "loops in loops": Binary(bodies=[b"\0" + b"\x03\x40" * 5_000 + b"\x0b" * 5_001]),
    "jumps to everywhere": Binary(
        functions=20, bodies=[b"\0" + b"\x02\x40" * BLOCKS + JUMPS + b"\x0b" * (BLOCKS + 1)] * 20
    ),
    "a sum of a hundred thousand": Binary(
        bodies=[b"\0" + b"\x41\x01" * 100_000 + b"\x6a" * 99_999 + b"\x1a\x0b"]
    ),
    "fifty thousand locals each": Binary(
        functions=100, bodies=[vector([leb(49_999) + I32]) + b"\x0b"] * 100
    ),
    "twenty thousand functions": Binary(functions=20_000),
    "a segment as large as a program may be": Binary(
        pages=250, data=[b"\0" + AT_ZERO + name(b"x" * (15 << 20))]
    ),
    "a hundred thousand segments": Binary(data=[b"\0" + AT_ZERO + name("x")] * 99_999),
    "tables filled over and over": Binary(
        tables=[FUNCREF + b"\0" + leb(65_536)],
        elements=[b"\0" + AT_ZERO + vector([b"\0"] * 60_000)] * 8,
    ),
}


@pytest.mark.parametrize("what", BOMBS)
async def test_module_that_is_hard_to_compile_runs(rig: WorkerRig, what: str) -> None:
    ended = await rig.run(BOMBS[what].wasm())
    assert (ended.status, ended.reason) == ("exited", "")
    assert (await rig.run(DECODE, bytes([2]))).status == "exited"


async def test_module_with_a_segment_outside_memory_traps(rig: WorkerRig) -> None:
    for offset in (b"\x41" + b"\xff\xff\xff\xff\x07" + b"\x0b", b"\x41\x7f\x0b"):
        ended = await rig.run(Binary(data=[b"\0" + offset + name("xy")]).wasm())
        assert (ended.status, "out-of-bounds" in ended.reason) == ("trapped", True)
