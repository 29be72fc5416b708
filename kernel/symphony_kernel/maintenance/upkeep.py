"""What a kernel does for itself: it opens the tiers below the device, looks for stalls, and audits
when it is idle.

An audit compares all counts with what is there (`check_integrity`). It takes time that grows with
the files and pages there are, so it runs only while nothing waits and nothing computes, takes at
most a hundredth of the time, and none at all once it would hold up who comes next for too long.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from symphony_kernel.executor.base import Executor
from symphony_kernel.kvfs.filesystem import KVFS
from symphony_kernel.kvfs.tiers.config import TierConfig, measure_moves, open_disk
from symphony_kernel.maintenance.watchdog import Watchdog

_log = logging.getLogger(__name__)
_TIME_SHARE_MAX = 0.01
_BUSY_SECONDS = 0.05  # until another look, when it was time and the kernel was busy


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """How often the kernel audits itself, and how long one may take; 0 seconds: never."""

    seconds: float = 0.0  # from one to the next, at least
    ms_max: float = 20.0  # what has taken longer is not done again


@dataclass(slots=True)
class AuditStatistics:
    """What audits have come to."""

    audits: int = 0
    audit_ms: float = 0.0
    audits_skipped: int = 0  # once they took too long


class Maintenance:
    """Of one kernel. `idle` says whether nothing waits or computes; `failed` hears of faults."""

    def __init__(
        self,
        kvfs: KVFS,
        executor: Executor,
        places: TierConfig,
        audit: AuditOptions,
        idle: Callable[[], bool],
        check: Callable[[], object],
        failed: Callable[[BaseException], None],
        watchdog: Watchdog,
    ) -> None:
        if places.host_slots:
            executor.open_host(places.host_slots)
        self._kvfs, self._executor, self._places = kvfs, executor, places
        self._audit = audit
        self._idle, self._check, self._failed = idle, check, failed
        self._last_ms = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._watchdog = watchdog
        self.statistics = AuditStatistics()

    async def open(self) -> None:
        """Open the disk tier, learn what moves cost here, and audit from now on."""
        try:
            open_disk(self._kvfs.tiers, self._executor, self._places)
        except OSError as error:
            _log.error("there is no disk tier: %s", error)
        if self._places.host_slots:
            await measure_moves(self._kvfs.tiers, self._executor)
        if self._audit.seconds:
            self._look_in(self._audit.seconds)
        self._watchdog.begin()

    @property
    def stalls_found(self) -> int:
        """Faults of the schedulers' since the start."""
        return self._watchdog.found

    def close(self) -> None:
        """End the audits, and the disk tier when it has done what it began."""
        if self._timer is not None:
            self._timer.cancel()
        self._watchdog.end()
        self._kvfs.tiers.spill_tier.close()

    def _look_in(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        if not self._idle():
            self._look_in(_BUSY_SECONDS)
            return
        counts = self.statistics
        if self._last_ms > self._audit.ms_max:
            counts.audits_skipped += 1
            self._last_ms *= 1 - 1 / 16  # there may be less to look at by and by
        else:
            began = time.perf_counter()
            try:
                self._check()
            except Exception as error:  # ours
                self._failed(error)
                return
            self._last_ms = 1000 * (time.perf_counter() - began)
            counts.audits += 1
            counts.audit_ms += self._last_ms
        self._look_in(max(self._audit.seconds, self._last_ms / 1000 / _TIME_SHARE_MAX))
