"""`python -m symphony_kernel.compiled`: compile the kernel's hot modules.

It exits with 0 and the reason where they cannot be compiled: the kernel then runs interpreted.
`--check` compiles nothing. It prints which modules a server would use, and exits with 1 if they are
interpreted.
"""

import sys

from symphony_kernel.compiled.build import built_library
from symphony_kernel.compiled.library import CompiledUnavailable, library_path


def main(check: bool) -> int:
    if check:
        return _check()
    try:
        path = built_library(say=_say)
    except CompiledUnavailable as error:
        _say(f"the kernel runs interpreted, its modules cannot be compiled: {error}")
    else:
        _say(f"the kernel's modules are compiled: {path}")
    return 0


def _check() -> int:
    try:
        path, there = library_path()
    except CompiledUnavailable as error:
        _say(f"the kernel runs interpreted and takes more processor time: {error}")
        return 1
    _say(str(path) if there else "not compiled; run `make compiled`")
    return 0 if there else 1


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
