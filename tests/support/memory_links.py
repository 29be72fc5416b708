"""Links within one process: frames are encoded, so that receivers see real ones."""

import asyncio
from typing import Any

from symphony_kernel.kernel import Kernel
from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.links import Frame, Link, OnClosed, OnFrame, decode, encode


class MemoryLink:
    """One end of an in-process link. Frames are encoded, so that tests see real ones."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._peer: MemoryLink | None = None
        self._queue: list[bytes] = []
        self.body: bytes | memoryview = b""  # of the frame that is being delivered
        self._on_frame: OnFrame | None = None
        self._on_closed: OnClosed | None = None
        self._planned = False
        self._closed = False

    @property
    def backlog(self) -> int:
        return sum(map(len, self._peer._queue)) if self._peer else 0

    @property
    def closed(self) -> bool:
        return self._closed

    def send(self, frame: Frame, now: bool = False) -> None:
        self.send_encoded(encode(frame), now)

    def send_encoded(self, body: bytes, now: bool = False) -> None:
        if self._closed or self._peer is None or self._peer._closed:
            return
        self._peer._queue.append(body)
        self._peer._plan()

    def flush(self) -> None:
        """Do nothing: frames are in the peer's queue already."""

    def receive(self, on_frame: OnFrame, on_closed: OnClosed) -> None:
        self._on_frame, self._on_closed = on_frame, on_closed
        self._plan()

    def close(self) -> None:
        """End both ends, the peer's after it has received all queued frames."""
        if self._closed:
            return
        self._closed = True
        peer, self._peer = self._peer, None
        if peer is not None and not peer._closed:
            peer._loop.call_soon(peer._end)
        if self._on_closed is not None:
            self._loop.call_soon(self._on_closed)

    def abort(self) -> None:
        """End both ends. Queued frames are lost."""
        if self._peer is not None:
            self._peer._queue.clear()
        self.close()

    def _plan(self) -> None:
        if not self._planned and self._on_frame is not None:
            self._planned = True
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._planned = False
        frames, self._queue = self._queue, []
        for body in frames:
            if self._on_frame is not None and not self._closed:
                self.body = body
                self._on_frame(decode(body))

    def _end(self) -> None:
        if not self._closed:
            self._deliver()
            self._closed = True
            self._peer = None
            if self._on_closed is not None:
                self._on_closed()


def memory_pair() -> tuple[MemoryLink, MemoryLink]:
    """Return the two ends of an in-process link."""
    left, right = MemoryLink(), MemoryLink()
    left._peer, right._peer = right, left
    return left, right


def attach_peer(kernel: Kernel, name: str, link: Link) -> None:
    """Serve "gateway" or a worker without authentication; a first `Hello` proves nothing here."""
    port = kernel.welcome_peer(name, link)
    first = True

    def on_frame(frame: list[Any]) -> None:
        nonlocal first
        if not (first and frame[0] == m.Hello.KIND):
            port.on_frame(frame)
        first = False

    link.receive(on_frame, port.on_closed)
