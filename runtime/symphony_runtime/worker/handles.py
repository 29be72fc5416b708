"""The worker's copy of an instance's KV handles: numbers and rights, never files.

The worker chooses the numbers, so that a call that makes a file need not wait for the kernel. It
answers EBADF and EACCES at once. The kernel has its own table and does not trust this one.
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
    """Rights by number (index | generation << 16); numbers are reused late."""

    __slots__ = ("_free", "_generations", "_open", "generating", "rights")

    def __init__(self, pool: LimitPool) -> None:
        """`pool` bounds the open handles of all instances of the run."""
        self.rights: dict[int, int] = {}
        self._open = LimitLease(pool, self.rights.__len__)
        self.generating: set[int] = set()  # handles whose file a generation uses
        self._generations: list[int] = []  # by index: the last generation
        self._free: deque[int] = deque()  # closed indices, the longest closed first

    def allocate(self, rights: int) -> int:
        """Return a new handle's number. Raise EDQUOT if there are too many."""
        if len(self.rights) >= self._open.granted:
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
        """Return a handle's rights. Raise EBADF if it is not open, EACCES without a right.

        Raise EBUSY if a generation uses its file and the call concerns the file's content.
        """
        rights = self.rights.get(handle)
        if rights is None:
            raise SyscallError(Errno.EBADF)
        if needed & ~rights:
            raise SyscallError(Errno.EACCES)
        if self.generating and handle in self.generating and needed != GRANT:
            raise SyscallError(Errno.EBUSY, "a generation uses this file")
        return rights

    def close(self, handle: int) -> None:
        """Forget a handle. Raise EBADF if it is not open."""
        if self.rights.pop(handle, None) is None:
            raise SyscallError(Errno.EBADF)
        self.generating.discard(handle)
        self._free.append(handle & _INDEX_MASK)

    def release(self) -> None:
        """Return the lease to the pool, at the instance's end."""
        self._open.release()
