"""Charges a compiler's processor time to its tenant while it runs.

    periodically: read the process's clock -> charge the tenant -> stop the process for a while

The process is stopped while its tenant is throttled, and then continues. It keeps its memory, and
no time limit counts while it is stopped. It also keeps its turn, so it is stopped only while no
compilation waits whose tenant is not throttled. Only Linux can read another process's clock, and
stop exactly that process (pidfd). A stopped process does not notice that its gateway has died, but
the system ends stopped processes in an orphaned process group. So it is stopped only once it has a
group of its own.
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

_LOOK_SECONDS = 0.02  # between two readings of a compiler's clock
_PROCESS_CLOCK = 2  # CPUCLOCK_SCHED, in the low bits of the clock's number


class Account(Protocol):
    """The account of tenants' processor time."""

    def charge(self, tenant: str, seconds: float) -> None:
        """Charge processor seconds of a tenant's compilers."""

    def rest(self, tenant: str) -> float:
        """Return the seconds for which to stop the tenant's compilers, as of now."""


class Pace:
    """Pacing of one compilation. Without an account nothing is charged or stopped."""

    def __init__(
        self,
        account: Account | None = None,
        tenant: str = "",
        *ends: asyncio.Timeout,
        wanted: Callable[[], bool] = lambda: False,
    ) -> None:
        """`ends` are deadlines to extend by pauses; `wanted`: another compilation waits."""
        self._account = account
        self._tenant = tenant
        self._ends = ends
        self._wanted = wanted
        self.paused_seconds = 0.0

    @contextlib.asynccontextmanager
    async def of(self, pid: int, *ends: asyncio.Timeout) -> AsyncIterator[None]:
        """Charge and pace a child for the length of the block."""
        process = _open(pid) if self._account is not None else None
        if self._account is None or process is None:
            yield
            return
        watch = asyncio.create_task(self._watch(self._account, pid, process, (*self._ends, *ends)))
        try:
            yield
        finally:
            watch.cancel()
            await asyncio.wait([watch])
            os.close(process)
            if not watch.cancelled():
                watch.result()

    async def _watch(
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
            rest = min(account.rest(self._tenant), COMPILE_RESTS_SECONDS_MAX - self.paused_seconds)
            if rest > 0.0 and not self._wanted() and _has_own_group(pid):
                await self._stop(process, rest, ends)

    async def _stop(self, process: int, seconds: float, ends: tuple[asyncio.Timeout, ...]) -> None:
        """Stop the child for so long; it may end meanwhile, and the system may refuse."""
        self.paused_seconds += seconds
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
    """Return a pidfd of a child. None: it has ended, or the system has none.

    Then it compiles without charge: that is not the tenant's fault.
    """
    if sys.platform != "linux":
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _processor_seconds(pid: int) -> float | None:
    """Return a child's processor seconds; None if it has ended."""
    try:
        return time.clock_gettime(~pid << 3 | _PROCESS_CLOCK)
    except OSError:
        return None


def _has_own_group(pid: int) -> bool:
    """Return whether a child is in a process group of its own."""
    try:
        return os.getpgid(pid) == pid
    except ProcessLookupError:
        return False
