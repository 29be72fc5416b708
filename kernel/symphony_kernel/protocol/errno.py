"""Errnos of the LIP ABI, and the exception that carries them.

A program's mistake is a `SyscallError` and becomes a negative result. A bug of ours is an assertion
or a `KernelBug`. It never becomes an errno, so that it cannot hide.
"""

from enum import IntEnum


class Errno(IntEnum):
    """The numbers that a program sees, negated, as a call's result."""

    ENOENT = 2
    EIO = 5
    EBADF = 9
    EAGAIN = 11
    ENOMEM = 12
    EACCES = 13
    EFAULT = 14
    EBUSY = 16
    EEXIST = 17
    EINVAL = 22
    EFBIG = 27
    ENOSPC = 28
    EPIPE = 32
    ENAMETOOLONG = 36
    ENOSYS = 38
    ETIMEDOUT = 110
    EDQUOT = 122
    ECANCELED = 125


class SyscallError(Exception):
    """A call failed because of the program. `detail` reaches it as `last_error`."""

    def __init__(self, errno: Errno, detail: str = "") -> None:
        super().__init__(f"{errno.name}: {detail}" if detail else errno.name)
        self.errno = errno
        self.detail = detail


class LimitError(SyscallError):
    """A call would exceed a limit. `limit` is its name in `limit_table`."""

    def __init__(self, errno: Errno, limit: str, detail: str) -> None:
        super().__init__(errno, detail)
        self.limit = limit


class KernelBug(Exception):  # noqa: N818 - the name says whose fault it is
    """An invariant of the kernel does not hold."""
