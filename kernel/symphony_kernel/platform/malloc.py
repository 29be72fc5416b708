"""The allocator: freed memory lies between what lives, and glibc keeps it until it is told."""

import ctypes
import sys


def trim() -> None:
    """Give freed memory back to the system, where the allocator is glibc's. Takes milliseconds."""
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if give_back is not None:
        give_back(0)
