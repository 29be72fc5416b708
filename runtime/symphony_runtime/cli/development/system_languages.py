"""Building C and Zig projects: one call of a compiler, with the headers beside the SDKs.

A C project has a `main.c`, a Zig project a `main.zig`. Both define `lip_main`.
"""

import os
import shutil
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from symphony_runtime.cli.projects import (
    ProjectError,
    RunCompiler,
    compile_with,
    install_module,
    sdk_folder,
)

Say = Callable[[str], object]
_STACK_BYTES = 1 << 16
_C_OPTIONS = (
    "--target=wasm32", "-std=c11", "-Wall", "-Wextra", "-mbulk-memory", "-nostdlib",
    "-Wl,--no-entry", "-Wl,--stack-first", f"-Wl,-z,stack-size={_STACK_BYTES}",
)  # fmt: skip
_ZIG_OPTIONS = ("-target", "wasm32-freestanding", "-fno-entry", "-rdynamic",
                "--stack", str(_STACK_BYTES), "-mcpu=mvp+bulk_memory")  # fmt: skip
_NO_CLANG = "clang with WebAssembly's linker was not found: apt-get install clang lld"
_NO_ZIG = "Zig was not found: pip install ziglang"


def build_c(directory: Path, say: Say, *, quick: bool, run: RunCompiler) -> Path:
    """Compile all *.c of a folder; as `projects.build`."""
    clang = os.environ.get("CLANG") or shutil.which("clang")
    if not clang or not shutil.which("wasm-ld"):
        raise ProjectError(_NO_CLANG)
    # Not bare: clang reads options from a file whose name begins with @.
    sources = sorted(f"./{path.name}" for path in directory.glob("*.c"))
    # The names of functions stay: a trap's reason has them.
    options = [*_C_OPTIONS, "-O1" if quick else "-Oz", "-Wl,--strip-debug"]
    command = [clang, *options, "-I", str(sdk_folder("c")), *sources]
    return _build([*command, "-o"], clang, directory, say, run)


def build_zig(directory: Path, say: Say, *, quick: bool, run: RunCompiler) -> Path:
    """Compile `main.zig`, which imports the system calls as `lip`; as `projects.build`."""
    zig = zig_command()
    if zig is None:
        raise ProjectError(_NO_ZIG)
    mode = "Debug" if quick else "ReleaseSmall"
    command = [*zig, "build-exe", *_ZIG_OPTIONS, "-O", mode, "--dep", "lip", "-Mroot=main.zig",
               f"-Mlip={sdk_folder('zig') / 'lip.zig'}"]  # fmt: skip
    return _build([*command, "-femit-bin="], "zig", directory, say, run)


def zig_command() -> list[str] | None:
    """Return what runs Zig: the one on PATH, else the package `ziglang`; None without either."""
    if (found := shutil.which("zig")) is not None:
        return [found]
    return [sys.executable, "-m", "ziglang"] if find_spec("ziglang") is not None else None


def _build(command: list[str], compiler: str, directory: Path, say: Say, run: RunCompiler) -> Path:
    """Run a compiler whose last option takes its output."""
    name = directory.name
    say(f"building {name} with {compiler}")
    made = directory / "build" / f".{name}.{os.getpid()}.wasm"
    made.parent.mkdir(exist_ok=True)
    last = [f"{command[-1]}{made}"] if command[-1].endswith("=") else [command[-1], str(made)]
    try:
        compile_with(run, [*command[:-1], *last], directory, dict(os.environ), compiler)
        return install_module(made.read_bytes(), directory, name)
    finally:
        made.unlink(missing_ok=True)
