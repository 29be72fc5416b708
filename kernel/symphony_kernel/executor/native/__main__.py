"""Compile the native kernels before their first use.

`python -m symphony_kernel.executor.native` exits with 0 also where they cannot be compiled, after
saying why: the executor then runs on torch. With `--check` nothing is compiled: one line says what
a server would find, and the exit code is 1 if torch would compute.
"""

import sys

from symphony_kernel.executor.native.build import NativeUnavailable, built_library, library_path


def main(check: bool) -> int:
    if check:
        return _check()
    try:
        path = built_library(say=_say)
    except NativeUnavailable as error:
        _say(f"no native kernels, torch will compute: {error}")
    else:
        _say(f"native kernels are ready: {path}")
    return 0


def _check() -> int:
    try:
        path, there = library_path()
    except NativeUnavailable as error:
        _say(f"{error}; torch computes, several times slower")
        return 1
    _say(f"{path}" if there else "not compiled yet: the first start of a server does it")
    return 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
