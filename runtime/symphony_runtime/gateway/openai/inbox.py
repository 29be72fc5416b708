"""The client's side of a run that passes: messages that wait to be told."""

import asyncio
from collections import deque

BATCH_BYTES = 16 << 10  # of messages that are told at once


class Inbox:
    """Takes a run's messages; one handler awaits them. `over`: none comes any more."""

    __slots__ = ("_messages", "_waiter", "over", "waiting")

    def __init__(self) -> None:
        self.over = False
        self.waiting = 0  # bytes of messages
        self._messages: deque[bytes] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def message(self, data: bytes) -> None:
        """See `Listener`."""
        self._messages.append(data)
        self.waiting += len(data)
        self._wake()

    def ended(self) -> None:
        """See `Listener`."""
        self.over = True
        self._wake()

    async def next(self) -> bytes:
        """Return what has come, joined, or BATCH_BYTES of it; empty when nothing follows."""
        while not self._messages and not self.over:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        given, size = [], 0
        while self._messages and size < BATCH_BYTES:
            given.append(self._messages.popleft())
            size += len(given[-1])
        if size > BATCH_BYTES:
            last = given.pop()
            kept = len(last) - (size - BATCH_BYTES)
            self._messages.appendleft(last[kept:])
            given.append(last[:kept])
            size = BATCH_BYTES
        self.waiting -= size
        return given[0] if len(given) == 1 else b"".join(given)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
