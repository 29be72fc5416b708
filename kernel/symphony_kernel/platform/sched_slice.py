"""The time slice of a thread in Linux's scheduler.

With more runnable threads than processors, a thread that wakes waits for others' slices of some
milliseconds. A step of a small model takes less, and its threads wait for each other. Since 6.12
Linux lets a thread choose its slice. With a short one it gets no more processor time, but it runs
sooner, in the middle of a longer slice. This needs no privilege. Other systems ignore it.
"""

import ctypes
import platform
import sys
from collections.abc import Callable
from typing import Any, Final

_NUMBERS: Final = {"x86_64": (314, 315), "aarch64": (274, 275)}  # sched_setattr, sched_getattr
_SHARED: Final = (0, 3)  # SCHED_OTHER and SCHED_BATCH: other policies have no slice
_RESET_ON_FORK: Final = 1

Syscall = Callable[..., int]


class Attributes(ctypes.Structure):
    """The first version of `struct sched_attr`. `runtime`: the slice in nanoseconds."""

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
    """Set the slice of a thread (0: this one) and of threads that it starts. 0.0: the default.

    Returns whether the system uses it. Linux before 6.12 accepts the call, ignores the slice and
    reports none.
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
    """Return the slice of a thread (0: this one); None: the system does not report it."""
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
