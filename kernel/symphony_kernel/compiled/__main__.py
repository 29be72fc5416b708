"""`python -m symphony_kernel.compiled`: compile the kernel's hot modules.

Ends with 0 also where they cannot be compiled, after saying why: the kernel then runs as it is
written. With `--check` nothing is compiled: a line says what a server would find; 1: interpreted.
"""

import sys

from symphony_kernel.compiled.build import built_library
from symphony_kernel.compiled.library import CompiledUnavailable, library_path


def main(check: bool) -> int:
    """Compile what is not compiled yet, or only look."""
    if check:
        return _check()
    try:
        path = built_library(say=_say)
    except CompiledUnavailable as error:
        _say(f"the kernel's modules are not compiled, it runs as it is written: {error}")
    else:
        _say(f"the kernel's modules are compiled: {path}")
    return 0


def _check() -> int:
    try:
        path, there = library_path()
    except CompiledUnavailable as error:
        _say(f"{error}; the kernel runs as it is written, and takes more of a processor")
        return 1
    _say(str(path) if there else "not compiled: `make compiled` does it")
    return 0 if there else 1


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
