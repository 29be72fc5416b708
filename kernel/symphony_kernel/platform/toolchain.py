"""The system's C and C++ compilers, and the libraries that they make once per machine."""

import os
import shutil
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from symphony_kernel.platform.build_cache import LibraryUnavailable, put
from symphony_kernel.platform.cpu_count import processes_at_once

_NAMES: Final = {"CC": ("cc", "gcc", "clang"), "CXX": ("c++", "g++", "clang++")}
_LANGUAGES: Final = {"CC": "C", "CXX": "C++"}
_KEPT: Final = 4  # libraries of one kind, including the current one
_COMPILER_BYTES: Final = 512 << 20  # of memory, for the largest source: gcc 12 took 350 MiB


class CompileError(LibraryUnavailable):
    """Our sources cannot be compiled, perhaps on no machine. The message has the first error."""


def find_compiler(variable: str = "CC") -> str:
    """Return the compiler that CC or CXX (`variable`) names, else the first usual one.

    Raises LibraryUnavailable: none is installed.
    """
    wanted = os.environ.get(variable)
    for name in (wanted,) if wanted else _NAMES[variable]:
        found = shutil.which(name)
        if found:
            return found
    language = _LANGUAGES[variable]
    called = f"no {language} compiler is called {wanted}"
    raise LibraryUnavailable(called if wanted else f"there is no {language} compiler")


def python_headers() -> list[str]:
    """Return the compiler's options for this Python's headers; LibraryUnavailable."""
    paths = sysconfig.get_paths()
    header = Path(paths["include"]) / "Python.h"
    if not header.is_file():
        raise LibraryUnavailable(f"Python's headers are not installed: {header} is missing")
    return [f"-I{paths[name]}" for name in ("include", "platinclude")]


def run(*command: str, what: str, seconds_max: float) -> None:
    """Run a compiler. `what` names the sources in errors.

    Raises:
        CompileError: it rejects the sources.
        LibraryUnavailable: it does not run, or takes longer than `seconds_max`.
    """
    try:
        subprocess.run(  # noqa: S603 - the compiler that the operator's PATH, CC or CXX names
            command, check=True, capture_output=True, text=True, timeout=seconds_max
        )
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or error.stdout or "no message").strip().splitlines()
        first = next((line for line in lines if "error:" in line), lines[-1])
        raise CompileError(f"{command[0]} failed on {what}: {first}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LibraryUnavailable(f"{command[0]} cannot compile {what}: {error}") from error


def compile_library(
    compiler: str,
    sources: Sequence[Path],
    scratch: Path,
    *,
    flags: Sequence[str],
    link_flags: Sequence[str] = (),
    what: str,
    seconds_max: float,
) -> Path:
    """Compile sources in `scratch`, several at a time; return the shared library.

    Raises LibraryUnavailable: as in `run`; `seconds_max` is for each source.
    """
    objects = [scratch / f"{number}.o" for number in range(len(sources))]

    def compile_one(source: Path, made: Path) -> None:
        command = compiler, *flags, "-c", str(source), "-o", str(made)
        run(*command, what=what, seconds_max=seconds_max)

    # The largest first, so that no processor waits long at the end.
    pairs = sorted(zip(sources, objects, strict=True), key=lambda pair: -pair[0].stat().st_size)
    with ThreadPoolExecutor(processes_at_once(_COMPILER_BYTES)) as pool:
        list(pool.map(compile_one, *zip(*pairs, strict=True)))
    library = scratch / "library.so"
    link = compiler, "-shared", *link_flags, *map(str, objects), "-o", str(library)
    run(*link, what=what, seconds_max=seconds_max)
    return library


def build(
    target: Path, make: Callable[[Path], Path], say: Callable[[str], None], *, what: str, how: str
) -> Path:
    """Put the library that `make` makes in a scratch directory at `target`; return `target`.

    `say` gets a line at the start and one at the end, with `what` and `how`.
    """
    say(f"compiling {what} with {how}")
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="build-") as scratch:
        put(make(Path(scratch)), target)
    say(f"compiled {what} in {time.perf_counter() - started:.1f} s: {target}")
    return target


def remove_others(target: Path, pattern: str) -> None:
    """Remove the oldest libraries of a kind. Each change of a source makes a new one."""
    for old in sorted(target.parent.glob(pattern), key=_age)[_KEPT:]:
        old.unlink(missing_ok=True)
        old.with_suffix(".sha256").unlink(missing_ok=True)


def _age(path: Path) -> float:
    """Return a sort key, newest first. A missing file counts as old."""
    try:
        return -path.stat().st_mtime
    except FileNotFoundError:  # another process removes old libraries, too
        return 0.0
