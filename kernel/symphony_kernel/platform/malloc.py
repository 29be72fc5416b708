"""The allocator: returns freed memory to the system.

glibc keeps freed memory between live blocks until `malloc_trim`. After a peak that is most of it:
hundreds of MiB of a gateway or a worker (`benchmarks.readers`). Each role trims its heap regularly.
"""

import ctypes
import sys
import threading
import time
from typing import Final

TRIM_SECONDS: Final = 20.0


def trim() -> None:
    """Return freed memory to the system, if the allocator is glibc's. Takes milliseconds."""
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if give_back is not None:
        give_back(0)


def trim_regularly(seconds: float = TRIM_SECONDS) -> None:
    """Trim from now on, in a thread of its own, which releases the GIL meanwhile."""

    def run() -> None:
        while True:
            time.sleep(seconds)
            trim()

    threading.Thread(target=run, name="trim", daemon=True).start()
