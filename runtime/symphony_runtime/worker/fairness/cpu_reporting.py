"""Reports of tenants' processor time to the kernel, and the pauses it answers with.

A worker does not see what the kernel, the gateway and other workers spend on a tenant, so the
kernel keeps the account. Instances of a throttled tenant get no turn, but can be ended. A tenant
that is alone in the worker is not reported.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.limits import SPENT_TOLD_SECONDS
from symphony_kernel.protocol.links import Link

from symphony_runtime.worker.fairness.run_queue import RunQueue, TenantShare
from symphony_runtime.worker.run import Run

_ANSWER_SECONDS_MAX = 1.0  # a kernel that restarts may answer nothing


class CpuReporter:
    """Processor time that is not reported yet, and the timers of throttled tenants."""

    def __init__(self, run_queue: RunQueue, *on_resume: Callable[[], None]) -> None:
        """`on_resume` are called when a tenant's pause is over."""
        self._run_queue, self._on_resume = run_queue, on_resume
        self._loop = asyncio.get_running_loop()
        self._spent: list[TenantShare] = []
        self._next = 0.0  # time of the next report
        self._timers: dict[TenantShare, asyncio.TimerHandle] = {}
        self._kernel: Link | None = None

    def add_spent(self, run: Run, spent_ns: int) -> None:
        share = run.share
        if not share.unreported_ns:
            self._spent.append(share)
            share.unreported_ns = 1
        share.unreported_ns += spent_ns
        share.reported_run = run.id

    def take_report(self) -> list[Any] | None:
        """Return a frame with all unreported time, if it is time for one."""
        now = time.monotonic()
        if not self._spent or now < self._next:
            return None
        self._next = now + SPENT_TOLD_SECONDS
        spent, self._spent = self._spent, []
        times = [[share.reported_run, share.unreported_ns // 1000] for share in spent]
        for share in spent:
            share.unreported_ns = 0
        return [m.Spent.KIND, times]

    def send_report(self, kernel: Link | None) -> None:
        """Send a report if it is time; it leaves with the next frame, at no extra write."""
        self._kernel = kernel
        if kernel is not None and (frame := self.take_report()) is not None:
            kernel.send(frame)

    def on_frame(self, frame: list[Any]) -> None:
        """Throttle a tenant, or no longer (0 ms), as the kernel says."""
        message = m.decode(frame)
        assert isinstance(message, m.Pace), message
        share = self._run_queue.throttle(message.tenant)
        if share is None:
            return
        timer = self._timers.pop(share, None)
        if timer is not None:
            timer.cancel()
        if message.ms:
            self._timers[share] = self._loop.call_later(message.ms / 1000, self._ask_kernel, share)
        else:
            self._unthrottle(share)

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _ask_kernel(self, share: TenantShare) -> None:
        """Ask whether to throttle a tenant longer. Until the answer it is throttled."""
        if self._kernel is not None:
            self._kernel.send([m.Spent.KIND, [[share.tenant, 0]]])
        self._timers[share] = self._loop.call_later(_ANSWER_SECONDS_MAX, self._unthrottle, share)

    def _unthrottle(self, share: TenantShare) -> None:
        self._timers.pop(share, None)
        self._run_queue.unthrottle(share)
        for on_resume in self._on_resume:
            on_resume()
