"""Answers that are not read: what waits is bounded, charged to a tenant, and cut off.

    of one connection   WRITE_BYTES_HIGH wait in this process before its handler waits, and about
                        UNSENT_BYTES_MAX in the system
    without progress    for `seconds` while bytes wait: the connection is cut
    of one tenant       above TENANT_UNREAD_BYTES_MAX connections are cut, the longest stuck first

Connections are checked periodically, so a write costs nothing. Bytes that the client's system has
taken count as read.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from aiohttp import web
from symphony_kernel.protocol.limits import (
    SLOW_READER_SECONDS,
    TENANT_UNREAD_BYTES_MAX,
    UNSENT_BYTES_MAX,
    WRITE_BYTES_HIGH,
)

from symphony_runtime.gateway.admission.rate_limit import ASKING

_CHECK_SECONDS = 0.5
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER of 0 s: the connection is reset


@dataclass(slots=True)
class _Writing:
    """A connection's answers. `since`: the time from which no waiting byte was taken."""

    transport: asyncio.Transport
    request: web.BaseRequest
    requests: int = 0  # live
    frames: int = 0  # bytes of a WebSocket's frames
    held: Callable[[], int] = lambda: 0  # bytes that wait outside the transport
    since: float | None = None
    taken: tuple[int, int] = (0, 0)  # the request, and the bytes taken of its answer

    @property
    def tenant(self) -> str:
        """The tenant; "" before its key is known, and for operators."""
        tenant: str = self.request.get(ASKING) or ""
        return tenant


WRITING = web.RequestKey("writing", _Writing)


def bound_buffers(transport: asyncio.Transport) -> None:
    """Bound what a connection buffers of unread bytes."""
    transport.set_write_buffer_limits(high=WRITE_BYTES_HIGH)
    connection = transport.get_extra_info("socket")
    if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
        # Not SO_SNDBUF: bytes on their way to a distant client need more than this.
        option = socket.TCP_NOTSENT_LOWAT
        connection.setsockopt(socket.IPPROTO_TCP, option, UNSENT_BYTES_MAX)


class SlowReaders:
    """Watches the bytes that wait for clients, until `stop`."""

    def __init__(
        self, seconds: float = SLOW_READER_SECONDS, bytes_max: int = TENANT_UNREAD_BYTES_MAX
    ) -> None:
        self.cut = 0  # connections, since the start
        self.unread = 0  # bytes of all, at the last check
        self._seconds = seconds
        self._bytes_max = bytes_max
        self._writing: dict[asyncio.Transport, _Writing] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._check_seconds = min(_CHECK_SECONDS, seconds / 4 or _CHECK_SECONDS)

    @contextlib.contextmanager
    def watching(self, request: web.BaseRequest) -> Iterator[None]:
        """Watch a connection while a request is answered, and until its answer is sent."""
        transport = request.transport
        if transport is None:  # the client has gone
            yield
            return
        writing = self._writing.get(transport)
        if writing is None:
            writing = self._writing[transport] = _Writing(transport, request)
        writing.request = request
        writing.frames, writing.held = 0, _nothing
        writing.requests += 1
        request[WRITING] = writing
        if self._timer is None:
            self._schedule_check()
        try:
            yield
        finally:
            writing.requests -= 1
            writing.held = _nothing
            del request[WRITING]  # a reference cycle with the request

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule_check(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._check_seconds, self._check)

    def _check(self) -> None:
        now = asyncio.get_running_loop().time()
        waiting: dict[str, list[tuple[_Writing, int]]] = {}
        for transport, writing in list(self._writing.items()):
            size = transport.get_write_buffer_size()
            if not size:
                writing.since = None
                if not writing.requests:
                    del self._writing[transport]
                    continue
            elif self._is_stuck(writing, size, now):
                self._cut(writing)
                continue
            size += writing.held()
            if size:
                waiting.setdefault(writing.tenant, []).append((writing, size))
        self.unread = sum(self._bound(writings, now) for writings in waiting.values())
        self._timer = None
        if self._writing:
            self._schedule_check()

    def _is_stuck(self, writing: _Writing, size: int, now: float) -> bool:
        """Note what was taken; return whether nothing was, for too long."""
        written = writing.request.writer.output_size + writing.frames
        request, taken = id(writing.request), written - size
        if writing.since is None or request != writing.taken[0] or taken > writing.taken[1]:
            writing.since, writing.taken = now, (request, taken)
        return now - writing.since > self._seconds

    def _bound(self, writings: list[tuple[_Writing, int]], now: float) -> int:
        """Cut a tenant's connections while too many bytes wait; return how many are left."""
        total = sum(size for _, size in writings)
        if total > self._bytes_max:
            writings.sort(key=lambda each: (each[0].since or now, -each[1]))
            for writing, size in writings:
                if total <= self._bytes_max:
                    break
                self._cut(writing)
                total -= size
        return total

    def _cut(self, writing: _Writing) -> None:
        self.cut += 1
        transport = writing.transport
        del self._writing[transport]
        connection = transport.get_extra_info("socket")
        if connection is not None:  # else the system holds unsent bytes for minutes
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        transport.abort()


def _nothing() -> int:
    return 0
