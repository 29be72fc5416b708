"""Python for Symphony: a client of its HTTP interface, and programs in Python."""

from symphony.attached.errors import CallError, ConnectionLost, RunEnded, SymphonyError
from symphony.attached.run import AttachedRun, attach, current
from symphony.lip import http, model, process, prompt, tool
from symphony.lip.constraint import Constraint
from symphony.lip.kv import Advice, KvFile, Rights, Save
from symphony.lip.packing import Choice, Scored, TokenSet
from symphony.lip.sampling import Sampling
from symphony.lip.session import Reply, Session, Usage

__all__ = [
    "Advice",
    "AttachedRun",
    "CallError",
    "Choice",
    "ConnectionLost",
    "Constraint",
    "KvFile",
    "Reply",
    "Rights",
    "RunEnded",
    "Sampling",
    "Save",
    "Scored",
    "Session",
    "SymphonyError",
    "TokenSet",
    "Usage",
    "attach",
    "current",
    "http",
    "model",
    "process",
    "prompt",
    "tool",
]
