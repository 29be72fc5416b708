"""Events of a server: server-sent events with a JSON object each, and messages in them."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp

from symphony.client.errors import ConnectionFailed
from symphony.client.retries import Pauses
from symphony.client.transport import Call, Transport, translated
from symphony.client.views import Base64

_LINE_BYTES_MAX = 8 << 20  # an event's data is one line, which may hold an escaped message of 1 MiB


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a run: `message`, `log`, `status` or `usage`; or one of `runs.changes`."""

    id: int
    kind: str
    data: dict[str, Any]

    def message(self) -> bytes:
        """Return the bytes of a `message` event."""
        return message_bytes(self.data["message"])


def message_bytes(message: str | Base64) -> bytes:
    """Return the bytes of a message as JSON has it: a string, or {"base64": ...}."""
    return message.encode() if isinstance(message, str) else base64.b64decode(message["base64"])


async def follow_events(
    transport: Transport,
    path: str,
    after: int = 0,
    *,
    follow: bool = True,
    begun: aiohttp.ClientResponse | None = None,
) -> AsyncIterator[Event]:
    """Yield the events of a path behind an id, over as many connections as it takes.

    `begun` is an answer that has the first ones. A connection that brings an event may be lost as
    often as the client retries.
    """
    pauses = Pauses(transport.retries)
    while True:
        try:
            async for event in _one_connection(transport, path, after, follow, begun):
                after, pauses = event.id, Pauses(transport.retries)
                yield event
        except ConnectionFailed as error:
            pause = pauses.after(error, repeatable=True)
            if pause is None:
                raise
            begun = None
            await asyncio.sleep(pause)
        else:
            return


async def _one_connection(
    transport: Transport,
    path: str,
    after: int,
    follow: bool,
    begun: aiohttp.ClientResponse | None,
) -> AsyncIterator[Event]:
    if begun is not None:
        with translated():
            async for event in read_events(begun):
                yield event
        return
    query, headers = {"follow": str(int(follow))}, {"Last-Event-ID": str(after)}
    call = Call("GET", path, query, headers=headers, repeatable=True)
    async with transport.request(call) as response:
        async for event in read_events(response):
            yield event


async def read_events(response: aiohttp.ClientResponse) -> AsyncIterator[Event]:
    """Yield the events of an answer of type text/event-stream."""
    number, kind, data = 0, "", ""
    async for line in _lines(response):
        name, _, value = line.partition(": ")
        if name == "id":
            number = int(value)
        elif name == "event":
            kind = value
        elif name == "data":
            data = value
        elif not line and data:
            yield Event(number, kind, json.loads(data))
            kind, data = "", ""


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[str]:
    rest = bytearray()
    async for chunk in response.content.iter_any():
        *lines, tail = chunk.split(b"\n")
        for line in lines:
            yield (rest + line).decode()
            rest.clear()
        rest += tail
        if len(rest) > _LINE_BYTES_MAX:
            raise ConnectionFailed("the server sent a line without an end")
