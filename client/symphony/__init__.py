"""Python for Symphony: a client of its HTTP interface, and programs in Python.

A name is imported when it is first used, so that a command which needs few of them starts sooner.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from symphony.attached import errors, sync
    from symphony.attached.errors import (
        AttachError,
        CallError,
        ConnectionLost,
        RunEnded,
        SymphonyError,
    )
    from symphony.attached.run import AttachedRun, attach, current
    from symphony.client.async_client import AsyncClient
    from symphony.client.errors import ClientError, ConnectionFailed, ServerError
    from symphony.client.events import Event, message_bytes
    from symphony.client.sync_client import Client
    from symphony.programs.program import DeployError, Program, program
    from symphony.programs.schema import SignatureError, ValueRefused
    from symphony.sdk import http, model, process, prompt, tool
    from symphony.sdk.constraint import Constraint
    from symphony.sdk.kv import Advice, KvFile, Rights, Save
    from symphony.sdk.packing import Choice, Scored, TokenSet
    from symphony.sdk.process import Grant, Process
    from symphony.sdk.sampling import Sampling
    from symphony.sdk.session import Reply, Session, Usage
    from symphony.sdk.stream import Finish

__all__ = [
    "Advice",
    "AsyncClient",
    "AttachError",
    "AttachedRun",
    "CallError",
    "Choice",
    "Client",
    "ClientError",
    "ConnectionFailed",
    "ConnectionLost",
    "Constraint",
    "DeployError",
    "Event",
    "Finish",
    "Grant",
    "KvFile",
    "Process",
    "Program",
    "Reply",
    "Rights",
    "RunEnded",
    "Sampling",
    "Save",
    "Scored",
    "ServerError",
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
    "message_bytes",
    "model",
    "process",
    "program",
    "prompt",
    "sync",
    "tool",
]

# Where the names are; a name that is a module's own is the module.
_HOMES = {
    "symphony.attached": ("errors", "sync"),
    "symphony.attached.errors": (
        "AttachError", "CallError", "ConnectionLost", "RunEnded", "SymphonyError",
    ),
    "symphony.attached.run": ("AttachedRun", "attach", "current"),
    "symphony.client.async_client": ("AsyncClient",),
    "symphony.client.errors": ("ClientError", "ConnectionFailed", "ServerError"),
    "symphony.client.events": ("Event", "message_bytes"),
    "symphony.client.sync_client": ("Client",),
    "symphony.programs.program": ("DeployError", "Program", "program"),
    "symphony.programs.schema": ("SignatureError", "ValueRefused"),
    "symphony.sdk": ("http", "model", "process", "prompt", "tool"),
    "symphony.sdk.constraint": ("Constraint",),
    "symphony.sdk.kv": ("Advice", "KvFile", "Rights", "Save"),
    "symphony.sdk.packing": ("Choice", "Scored", "TokenSet"),
    "symphony.sdk.process": ("Grant", "Process"),
    "symphony.sdk.sampling": ("Sampling",),
    "symphony.sdk.session": ("Reply", "Session", "Usage"),
    "symphony.sdk.stream": ("Finish",),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_PACKAGES = ("symphony.attached", "symphony.sdk")  # whose names are modules


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'symphony' has no attribute {name!r}")
    if home in _PACKAGES:
        return import_module(f"{home}.{name}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return __all__
