"""The client's side of a run that passes: messages that wait to be told."""

import asyncio


class Inbox:
    """Takes a run's messages; one handler awaits them. `over`: none comes any more."""

    __slots__ = ("_messages", "_waiter", "over")

    def __init__(self) -> None:
        self.over = False
        self._messages: list[bytes] = []
        self._waiter: asyncio.Future[None] | None = None

    def message(self, data: bytes) -> None:
        """See `Listener`."""
        self._messages.append(data)
        self._wake()

    def ended(self) -> None:
        """See `Listener`."""
        self.over = True
        self._wake()

    async def next(self) -> bytes:
        """Return what has come, joined; empty when nothing follows."""
        while not self._messages and not self.over:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        messages, self._messages = self._messages, []
        return messages[0] if len(messages) == 1 else b"".join(messages)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
