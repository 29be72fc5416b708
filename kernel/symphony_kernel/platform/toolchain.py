"""The system's C and C++ compilers, for libraries that are compiled once per machine."""

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Final

_NAMES: Final = {"CC": ("cc", "gcc", "clang"), "CXX": ("c++", "g++", "clang++")}
_LANGUAGES: Final = {"CC": "C", "CXX": "C++"}
_KEPT: Final = 4  # libraries of one kind, including the current one


class NoToolError(Exception):
    """No compiler is installed, or it does not run. The message says why."""


class SourceError(Exception):
    """The compiler rejected our sources. The message has its first error."""


def find_compiler(variable: str = "CC") -> str:
    """Return the compiler that CC or CXX (`variable`) names, else the first usual one.

    Raises:
        NoToolError: none is installed.
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
    """Return the compiler's options for this Python's headers; NoToolError."""
    paths = sysconfig.get_paths()
    header = Path(paths["include"]) / "Python.h"
    if not header.is_file():
        raise NoToolError(f"Python's headers are not installed: {header} is missing")
    return [f"-I{paths[name]}" for name in ("include", "platinclude")]


def run(*command: str, what: str, seconds_max: float) -> None:
    """Run a compiler. `what` names the sources in errors.

    Raises:
        SourceError: it rejects the sources.
        NoToolError: it does not run, or takes longer than `seconds_max`.
    """
    try:
        subprocess.run(  # noqa: S603 - the compiler that the operator's PATH, CC or CXX names
            command, check=True, capture_output=True, text=True, timeout=seconds_max
        )
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or error.stdout or "no message").strip().splitlines()
        first = next((line for line in lines if "error:" in line), lines[-1])
        raise SourceError(f"{command[0]} failed on {what}: {first}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoToolError(f"{command[0]} cannot compile {what}: {error}") from error


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
