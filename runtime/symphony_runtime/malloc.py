"""What a role's memory allocator gives back to the system.

glibc raises the size from which an allocation is mapped by itself to the largest that was freed, up
to 32 MiB: after one large message all others lie in the heap, between small objects that stay, and
a heap with holes is not given back. Measured (`benchmarks.readers`): the gateway kept all of
several hundred MiB. Said explicitly, the size stays: what is large goes back when it is freed.
"""

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # of malloc.h
_LARGE_BYTES = 128 << 10  # glibc's own at the start
_ARENAS = 2  # heaps: one for the loop, one for all threads beside it


def give_back_memory() -> None:
    """Let this process give back large blocks when they are freed; nothing but with glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in (
            (_MMAP_THRESHOLD, _LARGE_BYTES),
            (_TRIM_THRESHOLD, _LARGE_BYTES),
            (_ARENA_MAX, _ARENAS),
        ):
            mallopt(option, value)
