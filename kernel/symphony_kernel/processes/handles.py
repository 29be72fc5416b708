"""Handles: an instance's table of capabilities, each a file with a mask of rights.

The worker chooses the numbers (index in the low 16 bits, generation above), so that a call which
makes a file need not wait for an answer. The kernel checks each of them.
"""

from collections.abc import Iterator
from typing import Final

from mypy_extensions import mypyc_attr

from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import INSTANCE_HANDLES_MAX

READ: Final = 1
APPEND: Final = 2
TRUNCATE: Final = 4
SAVE: Final = 8
GRANT: Final = 16
ALL_RIGHTS: Final = 31

_INDEX_BITS: Final = 16
_INDEX_MASK: Final = (1 << _INDEX_BITS) - 1
_NUMBER_MAX: Final = (1 << 31) - 1

assert INSTANCE_HANDLES_MAX <= _INDEX_MASK + 1


@mypyc_attr(allow_interpreted_subclasses=True)
class Handle:
    """One capability; it never changes."""

    __slots__ = ("file", "number", "rights")

    def __init__(self, number: int, file: KVFile, rights: int) -> None:
        self.number = number
        self.file = file
        self.rights = rights


@mypyc_attr(allow_interpreted_subclasses=True)
class HandleTable:
    """The handles of one instance, at most `INSTANCE_HANDLES_MAX`."""

    __slots__ = ("_handles",)

    def __init__(self) -> None:
        self._handles: dict[int, Handle] = {}  # by index

    def __len__(self) -> int:
        return len(self._handles)

    def __iter__(self) -> Iterator[Handle]:
        return iter(self._handles.values())

    def check_new(self, number: object) -> int:
        """Return `number` if it can be a new handle.

        Raises SyscallError: EBADF: no positive i32, index out of range or in use, or generation 0.
        """
        if (
            type(number) is not int
            or not _INDEX_MASK < number <= _NUMBER_MAX
            or number & _INDEX_MASK >= INSTANCE_HANDLES_MAX
            or number & _INDEX_MASK in self._handles
        ):
            raise SyscallError(Errno.EBADF, "not the number of a new handle")
        return number

    def insert(self, number: int, file: KVFile, rights: int) -> None:
        """Add a handle whose number `check_new` has passed; takes over one reference."""
        assert number & _INDEX_MASK not in self._handles
        self._handles[number & _INDEX_MASK] = Handle(number, file, rights)

    def get(self, number: object, rights: int = 0) -> Handle:
        """Return the handle with this number.

        Raises SyscallError: EBADF when there is none, EACCES when it lacks one of `rights`.
        """
        handle = self._handles.get(number & _INDEX_MASK) if type(number) is int else None
        if handle is None or handle.number != number:
            raise SyscallError(Errno.EBADF)
        if rights & ~handle.rights:
            raise SyscallError(Errno.EACCES)
        return handle

    def remove(self, number: object) -> Handle:
        """Remove and return a handle, with its reference; SyscallError EBADF."""
        handle = self.get(number)
        return self._handles.pop(handle.number & _INDEX_MASK)

    def clear(self) -> list[Handle]:
        handles = list(self._handles.values())
        self._handles.clear()
        return handles
