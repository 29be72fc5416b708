"""Settings of a kernel's process: time slices, garbage collector, GIL switch interval.

Benchmarks with a kernel in their own process use the same settings.
"""

import gc
import sys
from typing import Final

from symphony_kernel.platform.sched_slice import set_slice

# A small model's step is no longer than this, and each of its threads that waits for a processor
# delays the others.
_SLICE_SECONDS: Final = 0.0002
_SWITCH_SECONDS: Final = 0.0005  # of the GIL, between the device's thread and the loop's
_COLLECTOR_THRESHOLDS: Final = (50_000, 20, 50)  # new objects, then collections of generations 0, 1


def take_short_turns() -> bool:
    """Set a short time slice for this thread and all that it starts. Call it before others start.

    Returns whether the system supports it.
    """
    return set_slice(_SLICE_SECONDS)


def settle() -> None:
    """Tune garbage collection and the GIL. Call it when everything is loaded.

    Objects that exist now are never collected. New ones are collected rarely, because each batch
    makes a few thousand short-lived objects.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTOR_THRESHOLDS)
    sys.setswitchinterval(_SWITCH_SECONDS)
