"""Messages of a run in both directions, over a WebSocket."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import aiohttp

from symphony.client.errors import ClientError, ConnectionFailed
from symphony.client.events import message_bytes
from symphony.client.retries import Pauses
from symphony.client.transport import Transport


class AsyncWebSocket:
    """A run's messages, and messages to it: what `client.runs.connect` yields.

    The connection is made with the first use. If it is lost `receive` makes another and continues
    behind the last message that came. A message that was sent when it was lost may or may not have
    come: it is not sent again.
    """

    def __init__(self, transport: Transport, path: str, after: int) -> None:
        self._transport = transport
        self._path = path
        self._stack = AsyncExitStack()
        self._open: aiohttp.ClientWebSocketResponse | None = None
        self._opening = asyncio.Lock()
        self._closed = False
        self.last_id = after
        """The id of the last event that came: where another connection continues."""
        self.status: str | None = None
        """How the run has ended, once `receive` has returned None."""

    async def send(self, message: str | bytes) -> None:
        """Send a message. ConnectionFailed: the connection is lost, or the run has ended."""
        socket = await self._connected()
        try:
            if isinstance(message, str):
                await socket.send_str(message)
            else:
                await socket.send_bytes(message)
        except (aiohttp.ClientError, OSError) as error:
            raise ConnectionFailed(f"the message was not sent: {error}") from error

    async def receive(self) -> bytes | None:
        """Return the next message, None when the run has ended."""
        pauses = Pauses(self._transport.retries)
        while self.status is None:
            try:
                message = await self._next()
            except ConnectionFailed as error:
                await self._drop()
                pause = pauses.after(error, repeatable=True)
                if pause is None:
                    raise
                await asyncio.sleep(pause)
            else:
                if message is not None:
                    return message
        return None

    async def messages(self) -> AsyncIterator[bytes]:
        """Yield messages until the run has ended."""
        while (message := await self.receive()) is not None:
            yield message

    async def close(self) -> None:
        """Close the connection. The run continues."""
        self._closed = True
        await self._drop()

    async def _next(self) -> bytes | None:
        """Return the message of the next frame, None if it has none."""
        socket = await self._connected()
        frame = await socket.receive()
        if frame.type is aiohttp.WSMsgType.TEXT:
            event = json.loads(frame.data)
            self.last_id = event["id"]
            return message_bytes(event["data"]["message"]) if event["event"] == "message" else None
        if frame.type is aiohttp.WSMsgType.CLOSE and frame.data == aiohttp.WSCloseCode.OK:
            self.status = str(frame.extra)
            return None
        if socket.close_code == aiohttp.WSCloseCode.MESSAGE_TOO_BIG:
            raise ClientError("the server closed the connection: a message is too large")
        raise ConnectionFailed("the connection was lost")

    async def _connected(self) -> aiohttp.ClientWebSocketResponse:
        async with self._opening:
            if self._closed:
                raise ClientError("this connection is closed")
            if self._open is None:
                query = {"events": "1", "after": str(self.last_id)}
                opening = self._transport.websocket(self._path, query)
                self._open = await self._stack.enter_async_context(opening)
            return self._open

    async def _drop(self) -> None:
        self._open = None
        await self._stack.aclose()
