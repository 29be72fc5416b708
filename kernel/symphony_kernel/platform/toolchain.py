"""The system's C and C++ compilers, for what is compiled once on each machine."""

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Final

_NAMES: Final = {"CC": ("cc", "gcc", "clang"), "CXX": ("c++", "g++", "clang++")}
_LANGUAGES: Final = {"CC": "C", "CXX": "C++"}
_KEPT: Final = 4  # libraries of one kind, with that of today's sources


class NoToolError(Exception):
    """There is no compiler, or none that runs, for the reason in the message."""


class SourceError(Exception):
    """A compiler does not take our sources; the message has its first words about it."""


def find_compiler(variable: str = "CC") -> str:
    """Return the compiler that CC or CXX (`variable`) names, else the first usual one there is.

    Raises:
        NoToolError: there is none.
    """
    wanted = os.environ.get(variable)
    for name in (wanted,) if wanted else _NAMES[variable]:
        found = shutil.which(name)
        if found:
            return found
    language = _LANGUAGES[variable]
    called = f"no {language} compiler is called {wanted}"
    raise NoToolError(called if wanted else f"there is no {language} compiler")


def python_headers() -> list[str]:
    """Return the options by which a compiler finds this Python's headers; NoToolError."""
    paths = sysconfig.get_paths()
    header = Path(paths["include"]) / "Python.h"
    if not header.is_file():
        raise NoToolError(f"Python's headers are not installed: {header} is not there")
    return [f"-I{paths[name]}" for name in ("include", "platinclude")]


def run(*command: str, what: str, seconds_max: float) -> None:
    """Run a compiler on `what`, for so long at most.

    Raises:
        SourceError: it refuses the sources.
        NoToolError: it does not run, or takes too long.
    """
    try:
        subprocess.run(  # noqa: S603 - the compiler that the operator's PATH, CC or CXX names
            command, check=True, capture_output=True, text=True, timeout=seconds_max
        )
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or error.stdout or "no message").strip().splitlines()
        told = next((line for line in lines if "error:" in line), lines[-1])
        raise SourceError(f"{command[0]} failed on {what}: {told}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoToolError(f"{command[0]} cannot compile {what}: {error}") from error


def remove_others(target: Path, pattern: str) -> None:
    """Remove the oldest libraries of a kind beside `target`: each change of a source makes one."""
    for old in sorted(target.parent.glob(pattern), key=_age)[_KEPT:]:
        old.unlink(missing_ok=True)
        old.with_suffix(".sha256").unlink(missing_ok=True)


def _age(path: Path) -> float:
    """Return by what libraries are ordered, newest first; one that has gone was an old one."""
    try:
        return -path.stat().st_mtime
    except FileNotFoundError:  # another process has compiled, too, and removes as well
        return 0.0
