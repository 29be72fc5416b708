"""`python -m symphony_runtime.engine.hostcalls`: compile what guests' calls cross by.

Ends with 0 also where it cannot be compiled, after saying why: calls cross through ctypes then.
With `--check` nothing is compiled: a line says what a worker would find; 1: ctypes.
"""

import sys

from symphony_runtime.engine.hostcalls.build import built_library
from symphony_runtime.engine.hostcalls.library import HostCallsUnavailable, library_path


def main(check: bool) -> int:
    """Compile what is not compiled yet, or only look."""
    try:
        path, there = library_path() if check else (built_library(), True)
    except HostCallsUnavailable as error:
        _say(f"guests' calls cross through ctypes, which takes the worker longer: {error}")
        return int(check)
    crosses = f"guests' calls cross by {path}"
    _say(crosses if there else "not compiled: `make install` does it")
    return int(not there)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
