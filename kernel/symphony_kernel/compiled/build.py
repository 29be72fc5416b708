"""Compiles the kernel's hot modules with mypyc and the system's C compiler."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from symphony_kernel.cache import put
from symphony_kernel.compiled.library import (
    GROUP,
    CompiledUnavailable,
    CompileError,
    compiled_modules,
    library_path,
)

FLAGS = ("-O1", "-fPIC", "-fwrapv", "-DNDEBUG", "-fvisibility=hidden", "-w")
_COMPILERS = ("cc", "gcc", "clang")
_COMPILE_SECONDS_MAX = 600
_KEPT = 4  # libraries, with that of today's sources
# What has no types, or too many: nothing that is compiled is faster for knowing them. And nothing
# strict: any finding would end it, and whether the types are right `make check` says.
_MYPY = """[mypy]
ignore_missing_imports = true
[mypy-msgpack.*,torch.*,tokenizers.*,llguidance.*,safetensors.*,jinja2.*]
follow_imports = skip
"""


def built_library(say: Callable[[str], None]) -> Path:
    """Return the path of the library of these sources, compiling it when it is not there.

    Raises:
        CompiledUnavailable: no mypyc, no compiler or no headers of Python, or one of them fails.
    """
    target, there = library_path()
    if there:
        return target
    compiler = _compiler()
    say(f"compiling the kernel's modules with mypyc and {compiler} (once, a minute or so)")
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="build-") as scratch:
        sources, included = _translate(Path(scratch))
        say(f"the modules are C after {time.perf_counter() - started:.0f} s")
        put(_compile(compiler, sources, included, Path(scratch)), target)
    _remove_others(target)
    say(f"compiled the kernel's modules in {time.perf_counter() - started:.0f} s: {target}")
    return target


def _translate(scratch: Path) -> tuple[list[Path], list[str]]:
    """Return the C sources that mypyc makes of the modules, and where what they include lies."""
    try:
        from mypyc.build import mypycify
    except ImportError as error:
        raise CompiledUnavailable(f"mypyc cannot be imported: {error}") from error
    settings = scratch / "mypy.ini"
    settings.write_text(_MYPY)
    options = ["--config-file", str(settings), "--cache-dir", os.devnull]
    files = [str(path) for path in compiled_modules().values()]
    try:
        library, *_ = mypycify(
            [*options, *files], multi_file=True, target_dir=str(scratch / "c"), group_name=GROUP
        )
    except SystemExit as error:  # it says so itself
        raise CompileError("mypyc does not take the modules") from error
    return [Path(source) for source in library.sources], list(library.include_dirs)


def _compile(compiler: str, sources: list[Path], included: list[str], scratch: Path) -> Path:
    python = sysconfig.get_paths()
    places = [f"-I{each}" for each in (*included, python["include"], python["platinclude"])]
    objects = [scratch / f"{number}.o" for number in range(len(sources))]

    def compile_one(source: Path, made: Path) -> None:
        _run(compiler, *FLAGS, *places, "-c", str(source), "-o", str(made))

    # The largest first, so that no processor waits long for the last.
    pairs = sorted(zip(sources, objects, strict=True), key=lambda pair: -pair[0].stat().st_size)
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        list(pool.map(compile_one, *zip(*pairs, strict=True)))
    library = scratch / "modules.so"
    _run(compiler, "-shared", *map(str, objects), "-o", str(library))
    _try(library)
    return library


def _try(library: Path) -> None:
    """Import all modules from the library in a process of its own: what cannot be, is not kept."""
    code = (
        "import sys, importlib; from pathlib import Path\n"
        "from symphony_kernel.compiled import loading\n"
        "loading.use_library(Path(sys.argv[1]))\n"
        "[importlib.import_module(name) for name in loading.compiled_modules()]\n"
    )
    _run(sys.executable, "-c", code, str(library))


def _run(*command: str) -> None:
    try:
        subprocess.run(  # noqa: S603 - the compiler that the operator's PATH or CC names
            command, check=True, capture_output=True, text=True, timeout=_COMPILE_SECONDS_MAX
        )
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or error.stdout or "no message").strip().splitlines()
        told = next((line for line in lines if "error:" in line), lines[-1])
        raise CompileError(f"{command[0]} failed on the modules: {told}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompiledUnavailable(f"{command[0]} cannot compile the modules: {error}") from error


def _compiler() -> str:
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not header.is_file():
        raise CompiledUnavailable(f"Python's headers are not installed: {header} is not there")
    wanted = os.environ.get("CC")
    for name in (wanted,) if wanted else _COMPILERS:
        found = shutil.which(name)
        if found:
            return found
    raise CompiledUnavailable(
        f"no C compiler is called {wanted}" if wanted else "there is no C compiler"
    )


def _remove_others(target: Path) -> None:
    """Remove the oldest libraries: each change of a source leads to another one."""
    there = sorted(target.parent.glob("modules-*.so"), key=_age)
    for old in there[_KEPT:]:
        old.unlink(missing_ok=True)
        old.with_suffix(".sha256").unlink(missing_ok=True)


def _age(path: Path) -> float:
    """Return by what libraries are ordered, newest first; one that has gone was an old one."""
    try:
        return -path.stat().st_mtime
    except FileNotFoundError:  # another process has compiled, too, and removes as well
        return 0.0
