"""Who waits for the outside: the kernel may use such a program's pages for others meanwhile.

A program that waits, and has no call at the kernel, waits for a message, a time, a child, a channel
or a tool. When that takes long the kernel hears of it, and again when the program is about to go
on. One timer looks at all of them, and nobody who waits for a pred pays for any of it.
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
    """Waits that the kernel has not heard of; `tell` puts a call into the turn's frame, which
    `flush` sends.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        tell: Callable[[list[Any]], None],
        flush: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._tell = tell
        self._flush = flush
        self._since: dict[Instance, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, instance: Instance) -> None:
        """An instance with files waits, and not for the kernel."""
        self._since.pop(instance, None)  # in the order in which they began
        self._since[instance] = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(_SECONDS, self._look)

    def stop(self) -> None:
        """Tell of nothing more."""
        self._since.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        now = self._loop.time()
        self._timer = None
        while self._since:
            instance, since = next(iter(self._since.items()))
            left = since + _SECONDS - now
            if left > 0 and instance.waited is not None:
                self._timer = self._loop.call_later(left, self._look)
                break
            del self._since[instance]
            if instance.waited is not None and not instance.pending:
                instance.told_waiting = True
                self._tell([instance.id, _WAITS, 0, 1])
        self._flush()
