"""Maintenance: opens the tiers below the device, starts the watchdog, and audits while idle.

An audit (`check_integrity`) compares all counters with the objects that they count. Its time grows
with the number of files and pages. So it runs only while no request waits and no step computes, and
takes at most a hundredth of the time. It is skipped if the last one took too long.
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
_BUSY_SECONDS = 0.05  # until the next attempt, when the kernel was busy


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """How often the kernel audits itself, and how long an audit may take."""

    seconds: float = 0.0  # from one audit to the next, at least; 0: no audits
    ms_max: float = 20.0  # after a longer audit, the next ones are skipped


@dataclass(slots=True)
class AuditStatistics:
    """Counters of audits. Their names reach the metrics."""

    audits: int = 0
    audit_ms: float = 0.0
    audits_skipped: int = 0  # because the last one took too long


class Maintenance:
    """One kernel's maintenance. It calls `failed` when an audit finds an error."""

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
        self.watchdog = watchdog
        self.statistics = AuditStatistics()

    async def open(self) -> None:
        """Open the disk tier, measure transfers, and start audits and watchdog."""
        try:
            open_disk(self._kvfs.tiers, self._executor, self._places)
        except OSError as error:
            _log.error("the disk tier cannot be opened, the kernel runs without it: %s", error)
        if self._places.host_slots:
            await measure_moves(self._kvfs.tiers, self._executor)
        if self._audit.seconds:
            self._schedule(self._audit.seconds)
        self.watchdog.start()

    def close(self) -> None:
        """Stop audits and watchdog. The disk tier closes when its operations have ended."""
        if self._timer is not None:
            self._timer.cancel()
        self.watchdog.stop()
        self._kvfs.tiers.spill_tier.close()

    def _schedule(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._audit_if_idle)

    def _audit_if_idle(self) -> None:
        if not self._idle():
            self._schedule(_BUSY_SECONDS)
            return
        counts = self.statistics
        if self._last_ms > self._audit.ms_max:
            counts.audits_skipped += 1
            self._last_ms *= 1 - 1 / 16  # in time there may be fewer files and pages
        else:
            began = time.perf_counter()
            try:
                self._check()
            except Exception as error:  # the kernel's fault
                self._failed(error)
                return
            self._last_ms = 1000 * (time.perf_counter() - began)
            counts.audits += 1
            counts.audit_ms += self._last_ms
        self._schedule(max(self._audit.seconds, self._last_ms / 1000 / _TIME_SHARE_MAX))
