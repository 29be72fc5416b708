"""Validation and compilation of uploads, in the limited process that does both."""

import asyncio
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from symphony_kernel.protocol.limits import (
    COMPILE_MEMORY_BYTES_MAX,
    COMPILE_MEMORY_BYTES_MIN,
    PROGRAM_BYTES_MAX,
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
from symphony_runtime.compiler.validation import check_shape
from symphony_runtime.config.limits import TenantLimits
from symphony_runtime.engine.settings import ENGINE_SETTINGS, PROPOSALS_OFF, cache_identity

from tests.e2e.programs import wasm
from tests.support.requirements import requires
from tests.support.server.server import still_alive
from tests.support.worker.binary import MEMORY, START, problems


def compiled(source: bytes) -> Compiled:
    return asyncio.run(compile_program(source))


def test_compiled_program_has_a_manifest_and_an_artefact() -> None:
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


def test_bytes_that_are_no_module_are_refused_with_the_reason() -> None:
    assert "not a WebAssembly module" in problems(b"")[0]
    assert "not a WebAssembly module" in problems(b"hello, world")[0]
    assert "component" in problems(wasm("(component)"))[0]
    good = wasm(f"(module {MEMORY} {START})")
    assert "damaged" in problems(good[:-1])[0]
    assert "damaged" in problems(good + b"\x01\xff\xff\xff\xff\xff\xff")[0]
    assert "not valid" in problems(wasm(f"(module {MEMORY} (func (result i32)) {START})"))[0]


def test_module_with_wrong_imports_has_all_of_them_listed() -> None:
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


def test_module_without_the_required_exports_is_refused() -> None:
    assert len(problems("(module)")) == 2
    assert "memory" in problems(f"(module (memory 1) {START})")[0]
    assert "_start" in problems(f"(module {MEMORY})")[0]
    wrong = problems(f'(module {MEMORY} (func (export "_start") (result i32) (i32.const 0)))')
    assert wrong == ["export _start must be a function () -> ()"]
    wrong = problems(f'(module {MEMORY} {START} (func (export "lip_main")))')
    assert wrong == ["export lip_main must be a function () -> (i32)"]
    assert "limit" in problems(f'(module (memory (export "memory") 1025) {START})')[0]


def test_module_that_is_too_large_is_refused_before_it_is_compiled() -> None:
    header = b"\0asm\x01\0\0\0"
    assert "bytes" in check_shape(header + bytes(PROGRAM_BYTES_MAX))[0]
    with pytest.raises(ProgramError, match="bytes"):
        compiled(header + bytes(PROGRAM_BYTES_MAX))


def test_compiler_returns_all_problems_from_its_process() -> None:
    with pytest.raises(ProgramError) as caught:
        compiled(wasm("(module)"))
    assert len(caught.value.problems) == 2


def test_compilation_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_compiler_process_that_ends_badly_has_its_reason_in_words(
    code: int, err: bytes, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        compiler._result(code, b"", err)


def test_compile_bounds_come_from_the_tenants_limits() -> None:
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
def test_program_past_a_compile_bound_is_refused_with_the_limits_name(
    bounds: CompileBounds, words: str, limit: str
) -> None:
    with pytest.raises(ProgramError, match=words) as caught:
        asyncio.run(compile_program(wasm(f"(module {MEMORY} {START})"), bounds))
    assert [*map(limit_of_problem, caught.value.problems)] == [limit]


def test_compiler_with_the_least_memory_compiles_a_small_program() -> None:
    bounds = CompileBounds(memory_bytes=COMPILE_MEMORY_BYTES_MIN)
    asyncio.run(compile_program(wasm(f"(module {MEMORY} {START})"), bounds))
    with pytest.raises(ProgramError, match="more than 512 MiB of memory") as caught:
        compiler._result(1, b"", b"MemoryError", bounds)
    assert limit_of_problem(caught.value.problems[0]) == "compile_memory_bytes"


def test_compiler_process_is_limited_in_memory_and_files() -> None:
    """The limits hold in a process of their own: this one needs its memory."""
    program = (
        "import os, resource; from symphony_runtime.compiler.child import limit_process;"
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


def exit_with(words: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a script stand for the compiler: it reads its input and exits with these words."""
    script = folder / "compiler"
    script.write_text(
        f"#!{sys.executable}\nimport os, sys\nsys.stdin.buffer.read()\nsys.exit({words})\n"
    )
    script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(script))


def test_compiler_process_has_low_priority_from_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays in its gateway's session: where sessions share processors, niceness counts there."""
    words = "f'{os.getpriority(os.PRIO_PROCESS, 0)} {os.getsid(0) == os.getsid(os.getppid())}'"
    exit_with(words, tmp_path, monkeypatch)
    niceness = min(os.getpriority(os.PRIO_PROCESS, 0) + 10, 19)
    with pytest.raises(CompilerFault, match=f"ended with 1: {niceness} True"):
        compiled(wasm(f"(module {MEMORY} {START})"))


@requires("linux", sys.platform == "linux", "elsewhere its limits end it")
def test_compiler_process_ends_with_its_parent() -> None:
    child = (
        "import ctypes, os, sys, time;"
        "from symphony_runtime.compiler.child import end_with_parent;"
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
    assert not still_alive([int(done.stdout)]), "it has outlived its parent"


async def test_compilations_take_turns_and_agree() -> None:
    made = Compiler(at_once=1)
    source = wasm(f"(module {MEMORY} {START})")
    both = await asyncio.gather(made.compile(source), made.compile(source))
    assert both[0] == both[1]


def test_artefact_identity_names_the_engine_and_its_settings() -> None:
    name = cache_identity()
    assert name.startswith("wasmtime-50.0.1-")
    assert name == cache_identity()
    assert not any(ENGINE_SETTINGS[proposal] for proposal in PROPOSALS_OFF)
    assert ENGINE_SETTINGS["epoch_interruption"] is True


# -- Tenants that have compiled for long -----------------------------------------------------------
def test_compile_time_that_was_used_up_comes_back_with_time() -> None:
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
    assert len(times) == 1, "a tenant that has all of its time is forgotten"


def test_compile_time_is_as_long_as_the_tenants_limit() -> None:
    clock = [0.0]
    times = CompileTime(lambda: clock[0])
    times.took("a", 9.0, burst=20.0)
    assert not times.spent("a")
    times.took("a", 1.0, burst=2.0)  # it has been given less meanwhile, and has had that
    assert not times.spent("a")
    times.took("a", 1.0, burst=2.0)
    assert times.spent("a")


@requires("linux", sys.platform == "linux", "elsewhere it is nice, as all of them are")
def test_compilation_past_its_time_runs_only_on_an_idle_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only while other tenants run; it takes neither their turns nor their processors."""
    exit_with("f'policy {os.sched_getscheduler(0)}'", tmp_path, monkeypatch)
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


class Patience:
    """Stands for compilations; those past their time wait until `go_on`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waiting, self.go_on = asyncio.Event(), asyncio.Event()
        self.ended = False
        monkeypatch.setattr(compiler, "compile_program", self._compile)
        times = CompileTime(lambda: 0.0)
        times.took("a", 60.0)
        self.compiler = Compiler(at_once=1, times=times, others_running=lambda _tenant: True)

    async def _compile(
        self, _wasm: bytes, *_: object, patient: bool = False, **_given: object
    ) -> Compiled:
        if patient:
            self.waiting.set()
            try:
                await self.go_on.wait()
            finally:
                self.ended = True
        return Compiled(Manifest((), (), ()), b"patient" if patient else b"usual")


async def test_compilation_past_its_time_takes_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    patience = Patience(monkeypatch)
    slow = asyncio.create_task(patience.compiler.compile(b"", tenant="a"))
    await patience.waiting.wait()
    async with asyncio.timeout(20):
        assert (await patience.compiler.compile(b"", tenant="b")).artefact == b"usual"
    patience.go_on.set()
    assert (await slow).artefact == b"patient"


async def test_compilation_past_its_time_is_not_starved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is one that waits behind it."""
    monkeypatch.setattr(compiler, "COMPILE_PATIENCE_SECONDS_MAX", 0.05)
    patience = Patience(monkeypatch)
    async with asyncio.timeout(20):
        both = await asyncio.gather(*(patience.compiler.compile(b"", tenant="a") for _ in range(2)))
    assert [each.artefact for each in both] == [b"usual", b"usual"]
    assert patience.ended
