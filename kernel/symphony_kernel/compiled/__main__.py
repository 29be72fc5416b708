"""`python -m symphony_kernel.compiled`: compile the kernel's hot modules.

It exits with 0 and the reason where they cannot be compiled: the kernel then runs interpreted.
`--check` compiles nothing. It prints which modules a server would use, and exits with 1 if they are
interpreted.
"""

import sys

from symphony_kernel.compiled.build import built_library
from symphony_kernel.compiled.library import library_path
from symphony_kernel.platform.build_cache import LibraryUnavailable


def main(check: bool) -> int:
    try:
        if not check:
            _say(f"the kernel's modules are compiled: {built_library(say=_say)}")
            return 0
        path, there = library_path()
    except LibraryUnavailable as error:
        why = " and takes more processor time" if check else ", its modules cannot be compiled"
        _say(f"the kernel runs interpreted{why}: {error}")
        return int(check)
    _say(str(path) if there else "not compiled; run `make compiled`")
    return 0 if there else 1


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
