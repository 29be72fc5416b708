"""Programs for Symphony: the calls of a program, by the names of the Rust SDK and of the client."""

from symphony import constraint, errors, http, kv, model, process, prompt, session, tool
from symphony.constraint import Constraint
from symphony.errors import *
from symphony.kv import Advice, KvFile, Rights, Save
from symphony.packing import Choice, Scored, TokenSet
from symphony.process import Grant, Process, channel_recv, channel_send, log, recv, send, spawn
from symphony.sampling import Sampling
from symphony.session import Reply, Session, Usage
from symphony.stream import Finish

_program = None


def program(function=None, **_):
    """Make a function the program: it gets the input's values by name, its result is sent."""
    global _program
    if function is None:
        return program
    if _program is not None:
        raise RuntimeError("a source has one program: two functions have @symphony.program")
    _program = function
    return function
