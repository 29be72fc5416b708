"""Results of runs, as JSON in pieces.

A run may send megabytes, each byte may take six in JSON, and a result has all of them twice. So a
result is read and encoded while it is sent, some of its events at a time (`events`).
"""

import base64
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from symphony_runtime.gateway.http.context import to_json
from symphony_runtime.gateway.runs.events.reader import Cursor, Event, read_all
from symphony_runtime.gateway.runs.record import encode_message

PIECE_BYTES = 16 << 10  # of JSON, about: one part of the events may be larger


async def result_pieces(
    view: dict[str, Any], events: Callable[[], Cursor]
) -> AsyncGenerator[bytes, None]:
    """Yield the JSON of a run's view with its `output` and its `messages`, in order.

    It equals `to_json({**view, "output": ..., "messages": [...]})`. Messages that are not UTF-8 are
    base64, and are left out of the output.
    """
    gathered, size = [to_json(view)[:-1], b',"output":"'], 0
    async with aclosing(_parts(events)) as parts:
        async for part in parts:
            gathered.append(part)
            size += len(part)
            if size >= PIECE_BYTES:
                yield b"".join(gathered)
                gathered, size = [], 0
    yield b"".join(gathered)


async def _parts(events: Callable[[], Cursor]) -> AsyncGenerator[bytes, None]:
    async with aclosing(read_all(events())) as read:
        async for event in read:
            if event.kind == "message" and event.is_text:
                yield escaped(event)
    yield b'","messages":['
    comma = b""
    async with aclosing(read_all(events())) as read:
        async for event in read:
            if event.kind == "message":
                yield comma + message_json(event)
                comma = b"," if event.ends else b""
    yield b"]}"


def message_json(event: Event) -> bytes:
    """Return a message as JSON; the joined parts of one are the whole message."""
    if event.begins and event.ends:
        return to_json(encode_message(event.data))
    if event.is_text:
        opening, closing, body = b'"', b'"', escaped(event)
    else:
        opening, closing, body = b'{"base64":"', b'"}', base64.b64encode(event.data)
    return (opening if event.begins else b"") + body + (closing if event.ends else b"")


def escaped(event: Event) -> bytes:
    """Return text as the inside of a JSON string."""
    return to_json(event.data.decode())[1:-1]
