"""What a compiler's process takes of processors, while it runs: its tenant is charged for it.

    every moment: what its clock says -> the tenant's account -> the process is stopped for a while

It is stopped where its tenant has had its share of the processors beside others, and goes on as it
was: what it holds of memory it keeps, and no limit of time counts while it rests. It holds a turn,
too, so it rests only while nobody waits for one who would not rest as well. Only Linux lets another
process's clock be read, and one be stopped that is surely the right one. A process that is stopped
does not hear that its gateway has died; but the system ends what is stopped in a group of its own
then. So it is stopped only once it is in one.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from symphony_kernel.protocol.limits import COMPILE_RESTS_SECONDS_MAX

_LOOK_SECONDS = 0.02  # from one look at a compiler to the next
_PROCESS_CLOCK = 2  # CPUCLOCK_SCHED, in the clock's number behind the process's


class Account(Protocol):
    """Who keeps what tenants take of processors."""

    def charge(self, tenant: str, seconds: float) -> None:
        """A tenant's compilers have taken so long."""

    def rest(self, tenant: str) -> float:
        """Return the seconds for which they are to rest, as of now."""


class Pace:
    """One compilation's. Without an account nothing is charged, and nothing rests."""

    def __init__(
        self,
        account: Account | None = None,
        tenant: str = "",
        *ends: asyncio.Timeout,
        wanted: Callable[[], bool] = lambda: False,
    ) -> None:
        """`ends` are deadlines that move while it rests; `wanted`: others wait for its turn."""
        self._account = account
        self._tenant = tenant
        self._ends = ends
        self._wanted = wanted
        self.rested = 0.0  # seconds

    @contextlib.asynccontextmanager
    async def of(self, pid: int, *ends: asyncio.Timeout) -> AsyncIterator[None]:
        """Look at a child for the length of the block, which ends when the child has."""
        process = _open(pid) if self._account is not None else None
        if self._account is None or process is None:
            yield
            return
        look = asyncio.create_task(self._look(self._account, pid, process, (*self._ends, *ends)))
        try:
            yield
        finally:
            look.cancel()
            await asyncio.wait([look])
            os.close(process)
            if not look.cancelled():
                look.result()

    async def _look(
        self, account: Account, pid: int, process: int, ends: tuple[asyncio.Timeout, ...]
    ) -> None:
        charged = 0.0
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            had = _processor_seconds(pid)
            if had is None:
                return
            account.charge(self._tenant, max(had - charged, 0.0))
            charged = had
            rest = min(account.rest(self._tenant), COMPILE_RESTS_SECONDS_MAX - self.rested)
            if rest > 0.0 and not self._wanted() and _is_apart(pid):
                await self._stop(process, rest, ends)

    async def _stop(self, process: int, seconds: float, ends: tuple[asyncio.Timeout, ...]) -> None:
        """Stop it for so long; it may end meanwhile, by another's hand; the system may refuse."""
        self.rested += seconds
        for end in ends:
            when = end.when()
            if when is not None and not end.expired():
                end.reschedule(when + seconds)
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(process, signal.SIGSTOP)
            try:
                await asyncio.sleep(seconds)
            finally:
                signal.pidfd_send_signal(process, signal.SIGCONT)


def _open(pid: int) -> int | None:
    """Return a file that stands for a child; None: it has ended, or the system gives no such.

    Nothing is charged then, and it compiles: what there is no file for is no tenant's fault.
    """
    if sys.platform != "linux":
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _processor_seconds(pid: int) -> float | None:
    """Return what a child has had of processors; None: it has ended and is known no more."""
    try:
        return time.clock_gettime(~pid << 3 | _PROCESS_CLOCK)
    except OSError:
        return None


def _is_apart(pid: int) -> bool:
    """Whether a child is in a process group of its own."""
    try:
        return os.getpgid(pid) == pid
    except ProcessLookupError:
        return False
