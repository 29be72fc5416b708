"""The worker's mirror of an instance's KV handles: their numbers and rights, never their files.

The worker chooses the numbers, so that a call which makes a file need not wait for the kernel, and
answers EBADF and EACCES at once. The kernel has its own table and believes none of this.
"""

from collections import deque

from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import INSTANCE_HANDLES_MAX

from symphony_runtime.worker.limit_pool import LimitLease, LimitPool

READ, APPEND, TRUNCATE, SAVE, GRANT = 1, 2, 4, 8, 16
ALL_RIGHTS = 31

_INDEX_BITS = 16
_INDEX_MASK = (1 << _INDEX_BITS) - 1
_GENERATION_MAX = (1 << 15) - 1


class Handles:
    """Number (index | generation << 16) -> rights; a closed number is not issued again for long."""

    __slots__ = ("_free", "_generations", "_open", "generating", "rights")

    def __init__(self, pool: LimitPool) -> None:
        """`pool`: how many all instances of the run may have open."""
        self.rights: dict[int, int] = {}
        self._open = LimitLease(pool, self.rights.__len__)
        self.generating: set[int] = set()  # a generation goes on in these handles' files
        self._generations: list[int] = []  # by index: the generation in use, or last used
        self._free: deque[int] = deque()  # closed indices, the longest closed first

    def __len__(self) -> int:
        return len(self.rights)

    def allocate(self, rights: int) -> int:
        """Return a new handle's number; EDQUOT when there are too many."""
        if len(self.rights) >= self._open.room:
            self._open.extend(len(self.rights) + 1)
        if len(self._generations) < INSTANCE_HANDLES_MAX:
            index = len(self._generations)
            self._generations.append(1)
        else:
            index = self._free.popleft()
            self._generations[index] = self._generations[index] % _GENERATION_MAX + 1
        handle = index | self._generations[index] << _INDEX_BITS
        self.rights[handle] = rights
        return handle

    def require(self, handle: int, needed: int) -> int:
        """Return the handle's rights; EBADF when it is not open, EACCES when it lacks a right.

        EBUSY when a generation goes on in its file and the call is about the file's content.
        """
        rights = self.rights.get(handle)
        if rights is None:
            raise SyscallError(Errno.EBADF)
        if needed & ~rights:
            raise SyscallError(Errno.EACCES)
        if self.generating and handle in self.generating and needed != GRANT:
            raise SyscallError(Errno.EBUSY, "a generation goes on in this file")
        return rights

    def close(self, handle: int) -> None:
        """Forget a handle; EBADF when it is not open."""
        if self.rights.pop(handle, None) is None:
            raise SyscallError(Errno.EBADF)
        self.generating.discard(handle)
        self._free.append(handle & _INDEX_MASK)

    def end(self) -> None:
        """The instance has ended: its handles count no longer."""
        self._open.give_back()
