"""Tools: what the servers that the operator attached can do for a program."""

import builtins
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgpack

from symphony.attached.calls import Ticket
from symphony.attached.run import current


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that the program may call. `schema` is that of its arguments."""

    name: str  # its server's name, a dot, its own
    description: str
    schema: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a tool answered; `ok` is whether it did what it was asked for."""

    ok: bool
    content: str


def call(
    name: str, arguments: Mapping[str, Any], *, timeout_ms: int | None = None
) -> Ticket[Answer]:
    """Call a tool.

    Raises ENOENT: there is no such tool for this program; ETIMEDOUT; EFBIG: its answer is too long.
    """
    request: dict[str, Any] = {"name": name, "arguments": dict(arguments)}
    if timeout_ms is not None:
        request["timeout_ms"] = max(timeout_ms, 1)
    return current().calls.start("tool", {"request": msgpack.packb(request)}, _answer)


async def list() -> "builtins.list[Tool]":  # noqa: A001 - the Rust SDK's name
    """Return the tools that the program may call."""
    return await current().calls.start("tools", {}, _tools)


def _answer(packed: bytes) -> Answer:
    said = msgpack.unpackb(packed)
    return Answer(said["ok"], said["content"])


def _tools(packed: bytes) -> "builtins.list[Tool]":
    return [
        Tool(each["name"], each["description"], each["schema"]) for each in msgpack.unpackb(packed)
    ]
