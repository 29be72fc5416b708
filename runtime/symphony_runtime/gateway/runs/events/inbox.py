"""The inbox of a client whose run is not stored."""

import asyncio
from collections import deque

BATCH_BYTES = 16 << 10  # of messages that are given at once


class Inbox:
    """The messages of a run that is not stored, for its one handler. `over`: no more arrive."""

    __slots__ = ("_messages", "_waiter", "over", "waiting")

    def __init__(self) -> None:
        self.over = False
        self.waiting = 0  # bytes of messages
        self._messages: deque[bytes] = deque()
        self._waiter: asyncio.Future[None] | None = None

    @property
    def weight(self) -> int:
        """Bytes that wait, and one for each message: an empty one takes memory, too."""
        return self.waiting + len(self._messages)

    def message(self, data: bytes) -> None:
        self._messages.append(data)
        self.waiting += len(data)
        self._wake()

    def ended(self) -> None:
        self.over = True
        self._wake()

    async def next(self) -> bytes:
        """Return the messages that wait, joined, up to BATCH_BYTES; empty at the end."""
        await self._wait_for_message()
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

    async def next_messages(self) -> list[bytes]:
        """Return whole messages that wait, about BATCH_BYTES of them; none at the end."""
        await self._wait_for_message()
        given, size = list[bytes](), 0
        while self._messages and size < BATCH_BYTES:
            given.append(self._messages.popleft())
            size += len(given[-1])
        self.waiting -= size
        return given

    async def _wait_for_message(self) -> None:
        while not self._messages and not self.over:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
