"""The allocator: glibc keeps freed memory between live blocks until `malloc_trim`."""

import ctypes
import sys


def trim() -> None:
    """Return freed memory to the system, if the allocator is glibc's. Takes milliseconds."""
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if give_back is not None:
        give_back(0)
