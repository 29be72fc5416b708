"""Compile the native kernels before their first use.

`python -m symphony_kernel.executor.native` exits with 0 also where they cannot be compiled, after
saying why: the executor then runs on torch. With `--check` nothing is compiled: one line says what
a server would find, and the exit code is 1 if torch would compute.
"""

import sys

from symphony_kernel.executor.native.build import built_library, library_path
from symphony_kernel.platform.build_cache import LibraryUnavailable


def main(check: bool) -> int:
    try:
        if not check:
            _say(f"native kernels are ready: {built_library(say=_say)}")
            return 0
        path, there = library_path()
    except LibraryUnavailable as error:
        slower = f"{error}; torch computes, several times slower"
        _say(slower if check else f"no native kernels, torch will compute: {error}")
        return int(check)
    _say(str(path) if there else "not compiled yet: the first start of a server does it")
    return 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
