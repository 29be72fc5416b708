"""`python -m symphony_kernel.executor.native`: compile the native kernels ahead of their first use.

Ends with 0 also where they cannot be compiled, after saying why: the executor then runs on torch.
"""

import sys

from symphony_kernel.executor.native.build import NativeUnavailable, built_library


def main() -> int:
    """Compile what is not compiled yet."""
    try:
        path = built_library(say=_say)
    except NativeUnavailable as error:
        _say(f"no native kernels, torch will compute: {error}")
    else:
        _say(f"native kernels are ready: {path}")
    return 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
