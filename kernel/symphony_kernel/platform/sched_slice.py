"""How long a thread's turns on a processor are: short ones come sooner.

Where more threads want processors than there are, one that wakes waits for those that have their
turn, which take milliseconds each; a step of a small model takes less, and its threads wait for
each other. Linux (since 6.12) lets a thread say how long its turns are to be. It gets no more of a
processor for it, but with short ones its turn comes sooner, before the rest of a longer one. That
needs no privilege; elsewhere, and in older systems, nothing changes.
"""

import ctypes
import platform
import sys
from collections.abc import Callable
from typing import Any, Final

_NUMBERS: Final = {"x86_64": (314, 315), "aarch64": (274, 275)}  # sched_setattr, sched_getattr
_SHARED: Final = (0, 3)  # SCHED_OTHER and SCHED_BATCH: what others have is no matter of turns
_RESET_ON_FORK: Final = 1

Syscall = Callable[..., int]


class Attributes(ctypes.Structure):
    """The system's `sched_attr`, as it was at first. `runtime`: of a turn, in nanoseconds."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime", ctypes.c_uint64),
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    )


def set_slice(seconds: float, thread: int = 0, syscall: Syscall | None = None) -> bool:
    """Let a thread (0: this one), and those that it starts from now on, have turns so long.

    0.0: as long as the system's usual ones. Returns whether the system has taken it; one that knows
    of no such lengths (before 6.12) takes any, says that none has one, and goes on as it was.
    """
    numbers = _NUMBERS.get(platform.machine())
    if sys.platform != "linux" or numbers is None:
        return False
    call: Any = syscall or ctypes.CDLL(None, use_errno=True).syscall
    attributes = _attributes(call, numbers[1], thread)
    if attributes is None or attributes.policy not in _SHARED:
        return False
    knows = attributes.runtime > 0
    attributes.size = ctypes.sizeof(attributes)
    attributes.flags &= _RESET_ON_FORK
    attributes.runtime = int(seconds * 1e9)
    attributes.deadline = attributes.period = 0
    return bool(call(numbers[0], thread, ctypes.byref(attributes), 0) == 0) and knows


def slice_seconds(thread: int = 0) -> float | None:
    """Return how long a thread's turns are to be; None: the system does not say."""
    numbers = _NUMBERS.get(platform.machine())
    if sys.platform != "linux" or numbers is None:
        return None
    call: Any = ctypes.CDLL(None, use_errno=True).syscall
    attributes = _attributes(call, numbers[1], thread)
    return None if attributes is None or not attributes.runtime else attributes.runtime / 1e9


def _attributes(call: Syscall, number: int, thread: int) -> Attributes | None:
    found = Attributes()
    failed = call(number, thread, ctypes.byref(found), ctypes.sizeof(found), 0)
    return None if failed else found
