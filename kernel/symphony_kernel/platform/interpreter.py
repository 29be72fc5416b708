"""How the process of a kernel is set: its turns on processors, the collector, the lock's turns.

Measurements that have a kernel in their own process set it alike, or they measure another one.
"""

import gc
import sys
from typing import Final

from symphony_kernel.platform.sched_slice import set_slice

# Of a thread's turn where all processors are wanted: a small model's step is no longer, and each of
# its threads that waits for a turn holds up the others.
_SLICE_SECONDS: Final = 0.0002
_SWITCH_SECONDS: Final = (
    0.0005  # the device's thread and the loop's do not wait long for each other
)
_COLLECTOR_THRESHOLDS: Final = (50_000, 20, 50)  # objects, then young and middle collections


def take_short_turns() -> bool:
    """Have short turns, with all threads that begin from now on; before there is any other.

    Returns whether the system has taken it.
    """
    return set_slice(_SLICE_SECONDS)


def settle() -> None:
    """Say that all has been loaded.

    What is there now stays: the collector need not look at it again and again, nor at every batch's
    few thousand short-lived objects.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTOR_THRESHOLDS)
    sys.setswitchinterval(_SWITCH_SECONDS)
