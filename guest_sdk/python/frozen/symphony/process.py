"""The program itself: its input, its user, time, children and queues."""

import _lip
import json
from asyncio import Done, Ticket

from symphony.errors import EPIPE
from symphony.kv import Rights
from symphony.packing import Record

PARENT = 0  # the pid of the parent
DEBUG, INFO, WARNING, ERROR = 0, 1, 2, 3


def input():
    """Return the run's input, as bytes."""
    return _lip.input_read()


def input_text():
    """Return the run's input as text."""
    return _lip.input_read().decode()


def input_json():
    """Return the run's input, which was JSON."""
    return json.loads(_lip.input_read())


def send(message):
    """Send one message to the user of the run: text, bytes, or a value, which becomes JSON."""
    if not isinstance(message, (str, bytes, bytearray)):
        message = json.dumps(message)
    return Done(_lip.send(message))


def recv():
    """Await the next message from the user, as bytes; EPIPE when the user has closed."""
    return Ticket("recv", _lip.recv())


async def recv_open():
    """Return the next message from the user, None when the user has closed."""
    try:
        return await recv()
    except EPIPE:
        return None


def log(line, level=INFO):
    """Keep a line with the run, as `print` does. A log that is full drops it."""
    _lip.log(level, line if isinstance(line, str) else str(line))


def exit(code=0):
    """End the program with this exit code."""
    _lip.exit(code)


def clock_ms():
    """Return the milliseconds since the program started."""
    return _lip.clock_ms()


def unix_ms():
    """Return the milliseconds since 1970."""
    return _lip.unix_ms()


def random(count):
    """Return so many random bytes."""
    return _lip.random(count)


class Ended(Record):
    """How a child has ended: its exit code, and all that it sent."""


class Process:
    """A child that was started. It ends with its parent."""

    def __init__(self, pid):
        self.pid = pid

    def join(self):
        """Wait for its end."""
        return Ticket("join", _lip.join(self.pid), _ended)


class Grant:
    """A handle of its own for a child, with at most these rights."""

    def __init__(self, kv, name, rights=Rights.ALL):
        self.kv, self.name, self.rights = kv, name, rights


async def spawn(program=None, *, entry=None, input=b"", grants=()):
    """Start a program of the tenant as a child, by name or id, or this one; it gets `grants`."""
    request = {
        "input": input.encode() if isinstance(input, str) else input,
        "grants": [
            {"handle": grant.kv.number, "rights": grant.rights, "name": grant.name}
            for grant in grants
        ],
    }
    if program is not None:
        request["program"] = program
    if entry is not None:
        request["entry"] = entry
    packed = await Ticket("spawn", _lip.spawn(_lip.pack(request)))
    return Process(int.from_bytes(packed, "little"))


def sleep(milliseconds):
    """Be ready after this time."""
    return Ticket("sleep", _lip.sleep(milliseconds), lambda _: None)


def channel_send(name, item):
    """Put an item into a queue of the tenant; EAGAIN: it stayed full."""
    return Done(_lip.channel_send(name, item))


def channel_recv(name):
    """Wait for the next item of a queue of the tenant, as bytes."""
    return Ticket("channel_recv", _lip.channel_recv(name))


def _ended(packed):
    said = _lip.unpack(packed)
    output = said["output"]
    return Ended(code=said["code"], output=output.encode() if isinstance(output, str) else output)
