"""Compiles the kernel's hot modules with mypyc and the system's C compiler."""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from symphony_kernel.compiled.library import (
    GROUP,
    CompiledUnavailable,
    CompileError,
    compiled_modules,
    library_path,
)
from symphony_kernel.platform.build_cache import put
from symphony_kernel.platform.cpu_count import processes_at_once
from symphony_kernel.platform.toolchain import (
    NoToolError,
    SourceError,
    find_compiler,
    python_headers,
    remove_others,
    run,
)

FLAGS = ("-O1", "-fPIC", "-fwrapv", "-DNDEBUG", "-fvisibility=hidden", "-w")
_COMPILE_SECONDS_MAX = 600
_COMPILER_BYTES = 512 << 20  # of memory, for the largest source: gcc 12 took 350 MiB
# Skipped packages have no types or too many, and compiled code is no faster with them. Nothing is
# strict here: a finding would end the build, and `make check` checks the types.
_MYPY = """[mypy]
ignore_missing_imports = true
[mypy-msgpack.*,torch.*,tokenizers.*,llguidance.*,safetensors.*,jinja2.*]
follow_imports = skip
"""


def built_library(say: Callable[[str], None]) -> Path:
    """Return the path of the library of these sources, compiling it when it is not there.

    Raises:
        CompiledUnavailable: mypyc, a compiler or Python's headers are missing, or one fails.
    """
    target, there = library_path()
    if there:
        return target
    try:
        compiler, headers = find_compiler(), python_headers()
    except NoToolError as error:
        raise CompiledUnavailable(str(error)) from error
    say(f"compiling the kernel's modules with mypyc and {compiler} (once, a minute or so)")
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="build-") as scratch:
        sources, included = _translate(Path(scratch))
        say(f"the modules are C after {time.perf_counter() - started:.0f} s")
        places = [*(f"-I{each}" for each in included), *headers]
        put(_compile(compiler, sources, places, Path(scratch)), target)
    remove_others(target, "modules-*.so")
    say(f"compiled the kernel's modules in {time.perf_counter() - started:.0f} s: {target}")
    return target


def _translate(scratch: Path) -> tuple[list[Path], list[str]]:
    """Return the C sources that mypyc makes of the modules, and their include directories."""
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
    except SystemExit as error:  # mypyc has printed the reason
        raise CompileError("mypyc cannot translate the modules") from error
    return [Path(source) for source in library.sources], list(library.include_dirs)


def _compile(compiler: str, sources: list[Path], places: list[str], scratch: Path) -> Path:
    objects = [scratch / f"{number}.o" for number in range(len(sources))]

    def compile_one(source: Path, made: Path) -> None:
        _run(compiler, *FLAGS, *places, "-c", str(source), "-o", str(made))

    # The largest first, so that no processor waits long at the end.
    pairs = sorted(zip(sources, objects, strict=True), key=lambda pair: -pair[0].stat().st_size)
    with ThreadPoolExecutor(processes_at_once(_COMPILER_BYTES)) as pool:
        list(pool.map(compile_one, *zip(*pairs, strict=True)))
    library = scratch / "modules.so"
    _run(compiler, "-shared", *map(str, objects), "-o", str(library))
    _try(library)
    return library


def _try(library: Path) -> None:
    """Import all modules from the library in another process; CompileError if that fails."""
    code = (
        "import sys, importlib; from pathlib import Path\n"
        "from symphony_kernel.compiled import loading\n"
        "loading.use_library(Path(sys.argv[1]))\n"
        "[importlib.import_module(name) for name in loading.compiled_modules()]\n"
    )
    _run(sys.executable, "-c", code, str(library))


def _run(*command: str) -> None:
    try:
        run(*command, what="the modules", seconds_max=_COMPILE_SECONDS_MAX)
    except SourceError as error:
        raise CompileError(str(error)) from error
    except NoToolError as error:
        raise CompiledUnavailable(str(error)) from error
