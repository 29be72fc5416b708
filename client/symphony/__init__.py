"""Python for Symphony: a client of its HTTP interface, and programs in Python."""

from symphony.attached import errors, sync
from symphony.attached.errors import (
    AttachError,
    CallError,
    ConnectionLost,
    RunEnded,
    SymphonyError,
)
from symphony.attached.run import AttachedRun, attach, current
from symphony.programs.program import DeployError, Program, program
from symphony.programs.schema import SignatureError, ValueRefused
from symphony.sdk import http, model, process, prompt, tool
from symphony.sdk.constraint import Constraint
from symphony.sdk.kv import Advice, KvFile, Rights, Save
from symphony.sdk.packing import Choice, Scored, TokenSet
from symphony.sdk.sampling import Sampling
from symphony.sdk.session import Reply, Session, Usage

__all__ = [
    "Advice",
    "AttachError",
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
