"""Makes glibc's allocator return freed memory to the system.

glibc raises the size from which it maps an allocation separately to the largest freed one, up to
32 MiB. After one large message all others lie in the heap between small objects that stay, and a
heap with holes is not returned. Measured (`benchmarks.readers`): the gateway kept all of several
hundred MiB. Setting the size explicitly fixes it, so large blocks are returned when freed.
"""

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # of malloc.h
_LARGE_BYTES = 128 << 10  # glibc's initial value
# For msgpack: the 256 KiB that it takes by itself would be mapped, and returned, for each message.
PACK_BUFFER_BYTES = 4 << 10
_ARENAS = 2  # heaps: one for the loop, one for all other threads


def give_back_memory() -> None:
    """Return large blocks to the system when they are freed; only with glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in (
            (_MMAP_THRESHOLD, _LARGE_BYTES),
            (_TRIM_THRESHOLD, _LARGE_BYTES),
            (_ARENA_MAX, _ARENAS),
        ):
            mallopt(option, value)
