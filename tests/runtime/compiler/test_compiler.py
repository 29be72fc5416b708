"""Validation and compilation of uploads, in the limited process that does both."""

import asyncio
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
from symphony_kernel.protocol.limits import (
    COMPILE_MEMORY_BYTES_MAX,
    COMPILE_MEMORY_BYTES_MIN,
    PROGRAM_BYTES_MAX,
    PROGRAM_FUNCTIONS_MAX,
)
from symphony_runtime.compiler import compiler
from symphony_runtime.compiler.compiler import (
    USUAL,
    CompileBounds,
    Compiled,
    Compiler,
    CompilerFault,
    CompileTime,
    Manifest,
    ProgramError,
    compile_program,
    limit_of_problem,
)
from symphony_runtime.compiler.module_outline import FUNCTION, read_outline
from symphony_runtime.compiler.validation import check_and_compile, check_shape
from symphony_runtime.config.limits import TenantLimits
from symphony_runtime.engine.settings import ENGINE_SETTINGS, PROPOSALS_OFF, cache_identity
from wasmtime import wat2wasm

MEMORY = '(memory (export "memory") 1)'
START = '(func (export "_start"))'


def wasm(source: str) -> bytes:
    return bytes(wat2wasm(source))


def problems(source: str | bytes) -> list[str]:
    return check_and_compile(wasm(source) if isinstance(source, str) else source).problems


def compiled(source: bytes) -> Compiled:
    return asyncio.run(compile_program(source))


def lives(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_program_becomes_a_manifest_and_an_artefact() -> None:
    source = f"""(module
      (import "lip" "send" (func (param i32 i32) (result i32)))
      (import "wasi_snapshot_preview1" "proc_exit" (func (param i32)))
      (import "env" "abort" (func (param i32 i32 i32 i32)))
      {MEMORY} {START}
      (func (export "lip_main") (result i32) (i32.const 1))
      (func (export "child") (result i32) (i32.const 1))
      (func (export "helper") (param i32) (result i32) (i32.const 1))
      (func (export "wide") (result i64) (i64.const 1))
      (func (export "_initialize"))
      (global (export "g") i32 (i32.const 0)))"""
    result = compiled(wasm(source))
    imports = ("lip.send", "wasi_snapshot_preview1.proc_exit", "env.abort")
    assert result.manifest.imports == imports
    assert result.manifest.entries == ("_start", "lip_main", "child")
    assert set(result.manifest.exports) == {
        "memory", "_start", "lip_main", "child", "helper", "wide", "_initialize", "g",
    }  # fmt: skip
    assert result.artefact
    assert result == compiled(wasm(source))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("(func (drop (struct.new_default $s))) (type $s (struct))", "garbage collection"),
        ("(table 1 externref)", "garbage collection"),
        ("(func (drop (i32.atomic.load (i32.const 0))))", "threads"),
        ("(memory 1 1 shared)", "threads"),
        ("(memory i64 1)", "memory64"),
        ("(memory 1)", "multiple memories"),
        ("(tag $t) (func (throw $t))", "exceptions"),
        ("(func $f (return_call $f))", "tail calls"),
        ("(func (param v128 v128) (result v128) (i8x16.relaxed_swizzle (local.get 0) "
         "(local.get 1)))", "relaxed SIMD"),
        ("(func (result i64 i64) i64.const 1 i64.const 2 i64.mul_wide_s)", "wide arithmetic"),
        ("(memory 1 2 (pagesize 1))", "custom page sizes"),
        ("(type $t (func)) (func (param (ref null $t)) (call_ref $t (local.get 0)))", "typed func"),
    ],
)  # fmt: skip
def test_proposals_that_are_off_are_named(body: str, words: str) -> None:
    memory = "" if "memory" in body and body != "(memory 1)" else MEMORY
    (problem,) = problems(f"(module {memory} {body} {START})")
    assert problem.startswith(f"the module needs {words}"), problem


@pytest.mark.parametrize(
    "body",
    [
        "(func (result v128) (v128.const i32x4 0 0 0 0))",
        "(func (memory.fill (i32.const 0) (i32.const 0) (i32.const 0)))",
        "(func (result i32) (i32.extend8_s (i32.const 200)))",
        "(func (result i32) (i32.trunc_sat_f32_s (f32.const 1)))",
        "(func (result i32 i32) (i32.const 1) (i32.const 2))",
        "(table 1 funcref) (table 2 funcref) (func (drop (ref.null func)))",
    ],
)
def test_proposals_that_are_on_pass(body: str) -> None:
    assert problems(f"(module {MEMORY} {body} {START})") == []


def test_what_is_no_module_is_refused() -> None:
    assert "not a WebAssembly module" in problems(b"")[0]
    assert "not a WebAssembly module" in problems(b"hello, world")[0]
    assert "component" in problems(wasm("(component)"))[0]
    good = wasm(f"(module {MEMORY} {START})")
    assert "damaged" in problems(good[:-1])[0]
    assert "damaged" in problems(good + b"\x01\xff\xff\xff\xff\xff\xff")[0]
    assert "not valid" in problems(wasm(f"(module {MEMORY} (func (result i32)) {START})"))[0]


def test_every_wrong_import_is_listed() -> None:
    found = problems(f"""(module
      (import "lip" "send" (func (param i32 i32) (result i64)))
      (import "lip" "fly" (func))
      (import "wasi_snapshot_preview1" "path_open" (func))
      (import "env" "table" (table 1 funcref))
      (import "lip" "log" (global i32))
      {MEMORY} {START})""")
    assert found == [
        "import lip.send is (i32, i32) -> (i64); it must be (i32, i32) -> (i32)",
        "import lip.fly is refused: there is no such call",
        "import wasi_snapshot_preview1.path_open is refused: there is no such call",
        "import env.table is refused: there is no such call",
        "import lip.log must be a function, not a global",
    ]


def test_required_exports_are_asked_for() -> None:
    assert len(problems("(module)")) == 2
    assert "memory" in problems(f"(module (memory 1) {START})")[0]
    assert "_start" in problems(f"(module {MEMORY})")[0]
    wrong = problems(f'(module {MEMORY} (func (export "_start") (result i32) (i32.const 0)))')
    assert wrong == ["export _start must be a function () -> ()"]
    wrong = problems(f'(module {MEMORY} {START} (func (export "lip_main")))')
    assert wrong == ["export lip_main must be a function () -> (i32)"]
    assert "limit" in problems(f'(module (memory (export "memory") 1025) {START})')[0]


def test_sizes_are_limited_before_the_compiler_sees_them() -> None:
    header = b"\0asm\x01\0\0\0"
    assert "bytes" in check_shape(header + bytes(PROGRAM_BYTES_MAX))[0]
    with pytest.raises(ProgramError, match="bytes"):
        compiled(header + bytes(PROGRAM_BYTES_MAX))
    count = PROGRAM_FUNCTIONS_MAX + 1
    leb = bytes([count & 0x7F | 0x80, count >> 7 & 0x7F | 0x80, count >> 14])
    section = leb + bytes(count)
    size = len(section)
    size_leb = bytes([size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14])
    many = header + b"\x03" + size_leb + section
    assert read_outline(many).counts[FUNCTION] == count
    assert f"{count} functions" in check_shape(many)[0]


def test_problems_cross_the_process() -> None:
    with pytest.raises(ProgramError) as caught:
        compiled(wasm("(module)"))
    assert len(caught.value.problems) == 2


def test_a_compilation_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "COMPILE_WALL_TIMES_CPU", 0.001)
    with pytest.raises(ProgramError, match="takes more than"):
        compiled(wasm(f"(module {MEMORY} {START})"))


@pytest.mark.parametrize(
    ("code", "err", "kind", "words"),
    [
        (-24, b"", ProgramError, "processor time"),
        (-6, b"memory allocation of 123 bytes failed", ProgramError, "memory"),
        (1, b"MemoryError", ProgramError, "memory"),
        (1, b"Traceback: something else", CompilerFault, "something else"),
        (0, b"", CompilerFault, "ended with 0"),
    ],
)
def test_how_a_child_ended_is_put_into_words(
    code: int, err: bytes, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        compiler._result(code, b"", err)


def test_a_tenant_may_have_bounds_of_its_own() -> None:
    limits = {
        "program_functions": 7, "compile_cpu_ms": 4_001, "compile_memory_bytes": 1 << 30,
        "compile_burst_ms": 1_500,
    }  # fmt: skip
    bounds = CompileBounds.of(limits)
    assert bounds == CompileBounds(7, 5, 1 << 30, 1.5)
    assert (bounds.wall_seconds, USUAL.wall_seconds) == (10, 60)
    assert TenantLimits().of_compiler().keys() == limits.keys()
    assert CompileBounds.of(TenantLimits().of_compiler()) == USUAL


@pytest.mark.parametrize(
    ("bounds", "words", "limit"),
    [
        (CompileBounds(cpu_seconds=0), "takes more than 0 s", "compile_cpu_ms"),
        (CompileBounds(functions=0), "functions; the limit is 0", "program_functions"),
    ],
    ids=["time", "functions"],
)
def test_a_program_that_takes_more_than_its_bounds_is_told_by_which(
    bounds: CompileBounds, words: str, limit: str
) -> None:
    with pytest.raises(ProgramError, match=words) as caught:
        asyncio.run(compile_program(wasm(f"(module {MEMORY} {START})"), bounds))
    assert [*map(limit_of_problem, caught.value.problems)] == [limit]


def test_the_least_memory_that_may_be_set_compiles_a_small_program() -> None:
    bounds = CompileBounds(memory_bytes=COMPILE_MEMORY_BYTES_MIN)
    asyncio.run(compile_program(wasm(f"(module {MEMORY} {START})"), bounds))
    with pytest.raises(ProgramError, match="more than 512 MiB of memory") as caught:
        compiler._result(1, b"", b"MemoryError", bounds)
    assert limit_of_problem(caught.value.problems[0]) == "compile_memory_bytes"


def test_the_child_is_limited() -> None:
    """The limits hold in a process of their own: this one needs its memory."""
    program = (
        "import os, resource; from symphony_runtime.compiler.compiler import limit_process;"
        "limit_process();"
        "print([resource.getrlimit(k) for k in (resource.RLIMIT_AS, resource.RLIMIT_CORE,"
        "resource.RLIMIT_FSIZE)]);\n"
        "try:\n bytearray(3 << 30)\nexcept MemoryError: print('refused')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    limits, refused = done.stdout.splitlines()
    assert limits == str([(COMPILE_MEMORY_BYTES_MAX,) * 2, (0, 0), (0, 0)])
    assert refused == "refused"
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 0


def test_a_compiler_is_made_nice_before_it_has_anything_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And in its gateway's session: where sessions share the processors, niceness counts there."""
    script = tmp_path / "compiler"
    words = "f'{os.getpriority(os.PRIO_PROCESS, 0)} {os.getsid(0) == os.getsid(os.getppid())}'"
    script.write_text(
        f"#!{sys.executable}\nimport os, sys\nsys.stdin.buffer.read()\nsys.exit({words})\n"
    )
    script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(script))
    niceness = min(os.getpriority(os.PRIO_PROCESS, 0) + 10, 19)
    with pytest.raises(CompilerFault, match=f"ended with 1: {niceness} True"):
        compiled(wasm(f"(module {MEMORY} {START})"))


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere its limits end it")
def test_the_child_ends_with_its_parent() -> None:
    child = (
        "import ctypes, os, sys, time;"
        "from symphony_runtime.compiler.compiler import end_with_parent;"
        "end_with_parent(ctypes.CDLL(None), os.getppid()); print(os.getpid(), flush=True);"
        "time.sleep(600)"
    )
    parent = (
        "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', sys.argv[1]],"
        "stdout=subprocess.PIPE, start_new_session=True); print(int(child.stdout.readline()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", parent, child],
        stdout=subprocess.PIPE, text=True, check=True, timeout=60,
    )  # fmt: skip
    deadline = time.monotonic() + 20
    while lives(int(done.stdout)):
        assert time.monotonic() < deadline, "it has outlived its parent"
        time.sleep(0.01)


async def test_compilations_take_turns() -> None:
    made = Compiler(at_once=1)
    source = wasm(f"(module {MEMORY} {START})")
    both = await asyncio.gather(made.compile(source), made.compile(source))
    assert both[0] == both[1]


def test_an_artefact_is_for_one_engine() -> None:
    name = cache_identity()
    assert name.startswith("wasmtime-50.0.1-")
    assert name == cache_identity()
    assert not any(ENGINE_SETTINGS[proposal] for proposal in PROPOSALS_OFF)
    assert ENGINE_SETTINGS["epoch_interruption"] is True


# -- Who has compiled for long ---------------------------------------------------------------------
def test_a_tenant_has_had_its_seconds_until_some_have_come_back() -> None:
    clock = [100.0]
    times = CompileTime(lambda: clock[0])
    times.took("a", 1.5)
    assert not times.spent("a")
    times.took("a", 9.0)
    assert times.spent("a")
    assert not times.spent("b")
    clock[0] += 169.0
    assert times.spent("a")
    clock[0] += 2.0
    assert not times.spent("a")
    clock[0] += 40.0
    times.took("b", 0.1)
    assert len(times) == 1, "who has all of it is forgotten"


def test_a_tenant_has_as_many_seconds_as_its_limit_says() -> None:
    clock = [0.0]
    times = CompileTime(lambda: clock[0])
    times.took("a", 9.0, burst=20.0)
    assert not times.spent("a")
    times.took("a", 1.0, burst=2.0)  # it has been given less meanwhile, and has had that
    assert not times.spent("a")
    times.took("a", 1.0, burst=2.0)
    assert times.spent("a")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it is nice, as all of them are")
def test_past_its_seconds_it_compiles_while_nobody_else_wants_a_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside others only; and neither their turns nor their processors are taken."""
    script = tmp_path / "compiler"
    script.write_text(
        f"#!{sys.executable}\nimport os, sys\nsys.stdin.buffer.read()\n"
        "sys.exit(f'policy {os.sched_getscheduler(0)}')\n"
    )
    script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(script))
    times, others = CompileTime(lambda: 0.0), {"b"}
    made = Compiler(times=times, others_running=lambda tenant: bool(others - {tenant}))
    usual = os.sched_getscheduler(0)

    def policy(tenant: str) -> int:
        with pytest.raises(CompilerFault) as caught:
            asyncio.run(made.compile(wasm(f"(module {MEMORY} {START})"), tenant=tenant))
        return int(str(caught.value).rsplit(maxsplit=1)[-1])

    assert policy("a") == usual
    times.took("a", 60.0)
    assert policy("a") == os.SCHED_IDLE
    assert policy("b") == usual
    others.clear()
    assert policy("a") == usual


async def test_who_has_had_its_seconds_takes_nobodys_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting, go_on = asyncio.Event(), asyncio.Event()

    async def compile_(
        _wasm: bytes, *_: object, patient: bool = False, **_given: object
    ) -> Compiled:
        if patient:
            waiting.set()
            await go_on.wait()
        return Compiled(Manifest((), (), ()), b"patient" if patient else b"usual")

    monkeypatch.setattr(compiler, "compile_program", compile_)
    times = CompileTime(lambda: 0.0)
    times.took("a", 60.0)
    made = Compiler(at_once=1, times=times, others_running=lambda _tenant: True)
    slow = asyncio.create_task(made.compile(b"", tenant="a"))
    await waiting.wait()
    async with asyncio.timeout(20):
        assert (await made.compile(b"", tenant="b")).artefact == b"usual"
    go_on.set()
    assert (await slow).artefact == b"patient"


async def test_nobody_waits_for_ever_for_an_idle_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does who waits behind such a one."""
    ended: list[str] = []

    async def compile_(
        _wasm: bytes, *_: object, patient: bool = False, **_given: object
    ) -> Compiled:
        if patient:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("patient")
        return Compiled(Manifest((), (), ()), b"usual")

    monkeypatch.setattr(compiler, "compile_program", compile_)
    monkeypatch.setattr(compiler, "COMPILE_PATIENCE_SECONDS_MAX", 0.05)
    times = CompileTime(lambda: 0.0)
    times.took("a", 60.0)
    made = Compiler(at_once=1, times=times, others_running=lambda _tenant: True)
    async with asyncio.timeout(20):
        both = await asyncio.gather(*(made.compile(b"", tenant="a") for _ in range(2)))
    assert [each.artefact for each in both] == [b"usual", b"usual"]
    assert ended, "it has been ended"
