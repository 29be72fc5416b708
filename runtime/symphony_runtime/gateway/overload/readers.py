"""Answers that nobody takes: a client that does not read holds a connection, and its run's output.

What has been written to a connection and has not left it yet has `grace_seconds` and the time that
its bytes take at the least rate; then the connection is cut. It is looked at once in a while, of
all connections that a request has come on and that have something to send: nothing is done for
each write. What the client's system has taken counts as read: some megabytes of a small stream.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from symphony_runtime.gateway.overload.bodies import SlowBounds, SlowFigures

_LOOK_SECONDS = 1.0


@dataclass(slots=True)
class _Writing:
    """A connection's answers: `requests` under way; since when bytes wait, and most of them."""

    requests: int = 0
    since: float | None = None
    most: int = 0
    before: int = 0  # bytes that waited at the look before


class Readers:
    """Watches what is written to clients; `stop` it."""

    def __init__(self, bounds: SlowBounds, figures: SlowFigures) -> None:
        self._bounds = bounds
        self._figures = figures
        self._writing: dict[asyncio.Transport, _Writing] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._look_seconds = min(_LOOK_SECONDS, bounds.grace_seconds / 2 or _LOOK_SECONDS)

    @contextlib.contextmanager
    def watching(self, transport: asyncio.Transport | None) -> Iterator[None]:
        """Watch a connection while a request is answered, and until the answer has left."""
        if transport is None:  # the client has gone
            yield
            return
        writing = self._writing.get(transport)
        if writing is None:
            writing = self._writing[transport] = _Writing()
        writing.requests += 1
        if self._timer is None:
            self._plan()
        try:
            yield
        finally:
            writing.requests -= 1

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _plan(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._look_seconds, self._look)

    def _look(self) -> None:
        now = asyncio.get_running_loop().time()
        for transport, writing in list(self._writing.items()):
            size = transport.get_write_buffer_size()
            if not size:
                writing.since = None
                if not writing.requests:
                    del self._writing[transport]
            elif self._is_slow(writing, size, now):
                self._figures.readers += 1
                del self._writing[transport]
                transport.abort()
        self._timer = None
        if self._writing:
            self._plan()

    def _is_slow(self, writing: _Writing, size: int, now: float) -> bool:
        """Note how many bytes wait; return whether they wait too long."""
        # More than at the look before: something was written since, which a full buffer refuses.
        # So it had left room meanwhile, and all but its last part had been taken.
        if writing.since is None or size > writing.before:
            writing.since, writing.most = now, size
        writing.before = size
        return now - writing.since > self._bounds.seconds(writing.most)
