"""Time, children and queues.

An attached program is at its user, so that input, messages and a log of its own are Python's.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgpack

from symphony.attached.calls import Ticket
from symphony.attached.run import AttachedRun, current
from symphony.sdk.kv import KvFile, Rights
from symphony.sdk.packing import numbers


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child has ended: its exit code, and all that it sent."""

    code: int
    output: bytes


@dataclass(frozen=True, slots=True)
class Process:
    """A child that was started. It ends with its parent."""

    run: AttachedRun
    pid: int

    def join(self) -> Ticket[Ended]:
        """Wait for its end."""
        return self.run.calls.start("join", {"pid": self.pid}, _ended)


@dataclass(frozen=True, slots=True)
class Grant:
    """A handle of its own for a child, with at most these rights."""

    kv: KvFile
    name: str
    rights: Rights = Rights.ALL


async def spawn(
    program: str,
    *,
    entry: str | None = None,
    input: bytes | str = b"",  # noqa: A002 - the ABI's name
    grants: Sequence[Grant] = (),
) -> Process:
    """Start a program of the tenant as a child, by name or id; it gets files by `grants`."""
    run = current()
    arguments = {
        "program": program,
        "input": input.encode() if isinstance(input, str) else input,
        "grants": [
            {"kv": grant.kv.number, "rights": int(grant.rights), "name": grant.name}
            for grant in grants
        ],
        **({} if entry is None else {"entry": entry}),
    }
    (pid,) = await run.calls.start("spawn", arguments, numbers)
    return Process(run, pid)


def sleep(milliseconds: int) -> Ticket[None]:
    """Be ready after this time by the server's clock; `asyncio.sleep` is this process's."""
    return current().calls.start("sleep", {"ms": milliseconds}, lambda _: None)


def channel_send(name: str, item: bytes) -> Ticket[None]:
    """Put an item into a queue of the tenant.

    EAGAIN: it has been full for five seconds, in which the server makes no other call of this run.
    """
    return current().calls.start("channel_send", {"name": name, "item": item})


def channel_recv(name: str) -> Ticket[bytes]:
    """Wait for the next item of a queue of the tenant."""
    return current().calls.start("channel_recv", {"name": name})


def _ended(packed: bytes) -> Ended:
    said = msgpack.unpackb(packed)
    output = said["output"]
    return Ended(said["code"], output.encode() if isinstance(output, str) else output)
