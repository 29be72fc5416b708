"""Compiles the kernel's hot modules with mypyc and the system's C compiler."""

import contextlib
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from symphony_kernel.compiled.library import GROUP, SOURCES, compiled_modules, library_path
from symphony_kernel.platform import toolchain
from symphony_kernel.platform.build_cache import LibraryUnavailable

FLAGS = ("-O1", "-fPIC", "-fwrapv", "-DNDEBUG", "-fvisibility=hidden", "-w")
_WHAT = "the kernel's modules"
_COMPILE_SECONDS_MAX = 600
# Skipped packages have no types or too many, and compiled code is no faster with them. Nothing is
# strict here: a finding would end the build, and `make check` checks the types.
_MYPY = """[mypy]
ignore_missing_imports = true
[mypy-msgpack.*,torch.*,tokenizers.*,llguidance.*,safetensors.*,jinja2.*]
follow_imports = skip
"""


def built_library(say: Callable[[str], None]) -> Path:
    """Return the path of the library of these sources, compiling it when it is not there.

    Raises LibraryUnavailable: mypyc, a compiler or Python's headers are missing, or one fails.
    """
    target, there = library_path()
    if there:
        return target
    compiler, headers = toolchain.find_compiler(), toolchain.python_headers()
    how = f"mypyc and {compiler} (once, a minute or so)"
    toolchain.build(target, partial(_make, compiler, headers), say, what=_WHAT, how=how)
    toolchain.remove_others(target, "modules-*.so")
    return target


def _make(compiler: str, headers: list[str], scratch: Path) -> Path:
    sources, included = _translate(scratch)
    return _compile(compiler, sources, [*(f"-I{each}" for each in included), *headers], scratch)


def _translate(scratch: Path) -> tuple[list[Path], list[str]]:
    """Return the C sources that mypyc makes of the modules, and their include directories."""
    try:
        from mypyc.build import mypycify
    except ImportError as error:
        raise LibraryUnavailable(f"mypyc cannot be imported: {error}") from error
    settings = scratch / "mypy.ini"
    settings.write_text(_MYPY)
    options = ["--config-file", str(settings), "--cache-dir", os.devnull]
    # The library contains the names as given, for tracebacks: it is the same wherever they lie.
    root = SOURCES.parent
    files = [str(path.relative_to(root)) for path in compiled_modules().values()]
    try:
        with contextlib.chdir(root):
            library, *_ = mypycify(
                [*options, *files], multi_file=True, target_dir=str(scratch / "c"), group_name=GROUP
            )
    except SystemExit as error:  # mypyc has printed the reason
        raise toolchain.CompileError("mypyc cannot translate the modules") from error
    return [Path(source) for source in library.sources], list(library.include_dirs)


def _compile(compiler: str, sources: list[Path], places: list[str], scratch: Path) -> Path:
    library = toolchain.compile_library(
        compiler, sources, scratch,
        flags=(*FLAGS, *places), what=_WHAT, seconds_max=_COMPILE_SECONDS_MAX,
    )  # fmt: skip
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
    toolchain.run(
        sys.executable, "-c", code, str(library), what=_WHAT, seconds_max=_COMPILE_SECONDS_MAX
    )
