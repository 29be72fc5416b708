"""A server that ends with the command that has started it: `python -m ...served PARENT OPTIONS`."""

import ctypes
import os
import signal
import sys

from symphony_runtime.cli.main import main

_PR_SET_PDEATHSIG = 1  # of Linux: this process gets a signal when its parent ends


def serve_with_parent(parent: int, options: list[str]) -> int:
    """Serve until told to end, or until the parent ends, even by SIGKILL."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    return 0 if os.getppid() != parent else main(["serve", *options])


if __name__ == "__main__":
    sys.exit(serve_with_parent(int(sys.argv[1]), sys.argv[2:]))
