"""Tells the kernel which programs wait long for something else than the kernel.

Such a program waits for a message, a time, a child, a channel or a tool, and has no call at the
kernel. The kernel may use its pages for others meanwhile. It learns when the wait gets long, and
again before the program continues. One timer covers all programs; a wait for a pred costs nothing.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from symphony_kernel.protocol.limits import WAITS_TOLD_MS
from symphony_kernel.protocol.messages import Op

from symphony_runtime.worker.instance import Instance

_WAITS = int(Op.WAITS)
_SECONDS = WAITS_TOLD_MS / 1000


class IdleHint:
    """Waits that the kernel does not know of yet.

    `kernel_call` adds a call to the turn's frame, and `flush` sends the frame.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        kernel_call: Callable[[list[Any]], None],
        flush: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._kernel_call = kernel_call
        self._flush = flush
        self._since: dict[Instance, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, instance: Instance) -> None:
        """Add an instance with files that waits, and not for the kernel."""
        self._since.pop(instance, None)  # keep the order of their starts
        self._since[instance] = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(_SECONDS, self._report_long_waits)

    def stop(self) -> None:
        self._since.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _report_long_waits(self) -> None:
        now = self._loop.time()
        self._timer = None
        while self._since:
            instance, since = next(iter(self._since.items()))
            left = since + _SECONDS - now
            if left > 0 and instance.waited is not None:
                self._timer = self._loop.call_later(left, self._report_long_waits)
                break
            del self._since[instance]
            if instance.waited is not None and not instance.pending:
                instance.idle_reported = True
                self._kernel_call([instance.id, _WAITS, 0, 1])
        self._flush()
