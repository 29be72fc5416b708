"""Tools: what the servers that the operator attached can do for a program."""

import _lip
from asyncio import Ticket

from symphony.packing import Record


class Tool(Record):
    """A tool that the program may call: `name`, `description`, and the `schema` of its arguments."""


class Answer(Record):
    """What a tool answered: `ok`, whether it did what it was asked for, and `content`."""


def call(name, arguments, *, timeout_ms=None):
    """Call a tool; ENOENT, ETIMEDOUT, EFBIG: its answer is too long."""
    request = {"name": name, "arguments": dict(arguments)}
    if timeout_ms is not None:
        request["timeout_ms"] = max(timeout_ms, 1)
    return Ticket("tool", _lip.tool(_lip.pack(request)), _answer)


async def list():
    """Return the tools that the program may call."""
    return [Tool(**each) for each in _lip.unpack(_lip.tools())]


def _answer(packed):
    said = _lip.unpack(packed)
    return Answer(ok=said["ok"], content=said["content"])
