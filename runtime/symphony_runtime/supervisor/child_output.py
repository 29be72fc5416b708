"""What a role says to the supervisor: lines, and events among them, of which none is believed.

A worker that a program has taken over writes what it likes. No line ends the supervisor, or becomes
more than the role's own state.
"""

import json
from asyncio import StreamReader
from collections.abc import AsyncIterator
from typing import Any

from symphony_kernel.platform.log_format import printable

_WHAT_MAX = 200  # characters
_REFUSAL_MAX = 1000  # characters


async def lines(stream: StreamReader) -> AsyncIterator[bytes]:
    """Yield the lines of a stream, and of one that is longer than its buffer what is left of it."""
    while True:
        try:
            line = await stream.readline()
        except ValueError:  # longer than the buffer, which has forgotten that part
            continue
        if not line:
            return
        yield line


def event_of(line: bytes) -> dict[str, Any] | None:
    """Return the event that a line tells, or None if it is something else."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None


def progress_of(event: dict[str, Any]) -> dict[str, Any]:
    """Return how far a role says it is: `what`, a short text, and `share`, from 0 to 1."""
    share = event.get("share")
    if not isinstance(share, (int, float)) or not 0 <= share <= 1:
        share = 0.0
    return {"what": str(event.get("what"))[:_WHAT_MAX], "share": share}


def refusal_of(event: dict[str, Any]) -> str:
    """Return in one line why a role cannot start as it is configured."""
    return printable(str(event.get("words")))[:_REFUSAL_MAX]


def retired_of(event: dict[str, Any]) -> tuple[str, int]:
    """Return which start of which role is to end; of nonsense one that there never was."""
    start = event.get("start")
    return str(event.get("role")), start if isinstance(start, int) else 0
