"""What tenants' turns cost, as the kernel is told, and the pauses that it answers with.

One worker sees neither what the kernel and the gateway have done for a tenant nor what other
workers have: the kernel keeps the account. A tenant that has had its share rests: its instances get
no turn, whatever comes for them; they are ended all the same. One that is alone is not told of.
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

_ANSWER_SECONDS = 0.01  # the kernel's, beside a step


class CpuReporter:
    """The costs that are not told yet, and the tenants that rest."""

    def __init__(self, run_queue: RunQueue, *go_on: Callable[[], None]) -> None:
        """`go_on`: called when a tenant's pause is over."""
        self._run_queue, self._go_on = run_queue, go_on
        self._loop = asyncio.get_running_loop()
        self._spent: list[TenantShare] = []
        self._next = 0.0  # when they are told
        self._timers: dict[TenantShare, asyncio.TimerHandle] = {}
        self._kernel: Link | None = None

    def note(self, run: Run, spent_ns: int) -> None:
        """A run has had so much of a processor."""
        share = run.share
        if not share.cost_ns:
            self._spent.append(share)
            share.cost_ns = 1
        share.cost_ns += spent_ns
        share.speaker = run.id

    def told(self) -> list[Any] | None:
        """Return the frame that tells of what was noted, if it is time for one."""
        now = time.monotonic()
        if not self._spent or now < self._next:
            return None
        self._next = now + SPENT_TOLD_SECONDS
        spent, self._spent = self._spent, []
        times = [[share.speaker, share.cost_ns // 1000] for share in spent]
        for share in spent:
            share.cost_ns = 0
        return [m.Spent.KIND, times]

    def tell(self, kernel: Link | None) -> None:
        """Tell a kernel, if it is time; what leaves with the next frame costs no write."""
        self._kernel = kernel
        if kernel is not None and (frame := self.told()) is not None:
            kernel.send(frame)

    def hear(self, frame: list[Any]) -> None:
        """Take what the kernel says: that a tenant is to rest for a while."""
        message = m.decode(frame)
        assert isinstance(message, m.Pace), message
        share = self._run_queue.rest(message.tenant)
        if share is not None:
            timer = self._timers.pop(share, None)
            if timer is not None:
                timer.cancel()
            self._timers[share] = self._loop.call_later(message.ms / 1000, self._ask, share)

    def close(self) -> None:
        """Wake nobody any more."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _ask(self, share: TenantShare) -> None:
        """Ask whether a tenant is to rest on; no answer: it is not."""
        if self._kernel is not None:
            self._kernel.send([m.Spent.KIND, [[share.speaker, 0]]])
        self._timers[share] = self._loop.call_later(_ANSWER_SECONDS, self._wake, share)

    def _wake(self, share: TenantShare) -> None:
        del self._timers[share]
        self._run_queue.wake(share)
        for go_on in self._go_on:
            go_on()
