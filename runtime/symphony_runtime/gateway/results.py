"""Large results of runs, as JSON in pieces.

A run may send megabytes, each byte may be six in JSON, and all of them are told twice: a result
that is encoded at once stops every other request for as long, in a thread as well, and is copied
where all of them wait. So it is encoded while it is sent, a piece at a time, and of each tenant one
in a pass of the event loop.
"""

import asyncio
import base64
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

from symphony_runtime.gateway.http import to_json
from symphony_runtime.gateway.turns import TenantTurns

SMALL_BYTES = 32 << 10  # of messages: encoded at once
MESSAGE_COST_BYTES = 64  # what one costs besides its bytes
PIECE_BYTES = 16 << 10  # of a message, before it is JSON
PIECE_PARTS = 256  # at most, where messages are short
_BASE64_BYTES = PIECE_BYTES // 3 * 3  # base64 of less would be padded within


def result_pieces(view: dict[str, Any], messages: list[bytes]) -> Iterator[bytes]:
    """Yield the JSON of a run's view with its `output` and its `messages`, in order.

    It is what `to_json(record.result(messages))` is; messages that are no UTF-8 are base64.
    """
    return _gathered(_parts(view, messages))


async def in_turns(
    pieces: Iterator[bytes], turns: TenantTurns, tenant: str
) -> AsyncIterator[bytes]:
    """Yield pieces as they are made: one of a tenant's at a time, and others' work between two."""
    while True:
        async with turns.of(tenant):
            piece = next(pieces, None)
            await asyncio.sleep(0)
        if piece is None:
            return
        yield piece


def _parts(view: dict[str, Any], messages: list[bytes]) -> Iterator[bytes]:
    yield to_json(view)[:-1] + b',"output":"'
    for message in messages:
        yield b""  # none is passed over for nothing: pieces count them
        text = _text(message)
        if text is not None:
            yield from _escaped(text)
    yield b'","messages":['
    for number, message in enumerate(messages):
        text = _text(message)
        opening, closing = (b'"', b'"') if text is not None else (b'{"base64":"', b'"}')
        yield b"," + opening if number else opening
        yield from _escaped(text) if text is not None else _base64(message)
        yield closing
    yield b"]}"


def _text(message: bytes) -> str | None:
    try:
        return message.decode()
    except UnicodeDecodeError:
        return None


def _escaped(text: str) -> Iterator[bytes]:
    """Yield the inside of a JSON string."""
    for at in range(0, len(text), PIECE_BYTES):
        yield to_json(text[at : at + PIECE_BYTES])[1:-1]


def _base64(data: bytes) -> Iterator[bytes]:
    for at in range(0, len(data), _BASE64_BYTES):
        yield base64.b64encode(data[at : at + _BASE64_BYTES])


def _gathered(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield parts joined: not too many, and not too much."""
    gathered: list[bytes] = []
    size = 0
    for part in parts:
        gathered.append(part)
        size += len(part)
        if size >= PIECE_BYTES or len(gathered) >= PIECE_PARTS:
            yield b"".join(gathered)
            gathered, size = [], 0
    yield b"".join(gathered)
