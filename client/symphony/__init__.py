"""Python for Symphony: a client of its HTTP interface, and programs in Python."""

from symphony.attached import errors, sync
from symphony.attached.errors import CallError, ConnectionLost, RunEnded, SymphonyError
from symphony.attached.run import AttachedRun, attach, current
from symphony.lip import http, model, process, prompt, tool
from symphony.lip.constraint import Constraint
from symphony.lip.kv import Advice, KvFile, Rights, Save
from symphony.lip.packing import Choice, Scored, TokenSet
from symphony.lip.sampling import Sampling
from symphony.lip.session import Reply, Session, Usage
from symphony.programs.program import DeployError, Program, program
from symphony.programs.schema import SignatureError, ValueRefused

__all__ = [
    "Advice",
    "AttachedRun",
    "CallError",
    "Choice",
    "ConnectionLost",
    "Constraint",
    "DeployError",
    "KvFile",
    "Program",
    "Reply",
    "Rights",
    "RunEnded",
    "Sampling",
    "Save",
    "Scored",
    "Session",
    "SignatureError",
    "SymphonyError",
    "TokenSet",
    "Usage",
    "ValueRefused",
    "attach",
    "current",
    "errors",
    "http",
    "model",
    "process",
    "program",
    "prompt",
    "sync",
    "tool",
]
