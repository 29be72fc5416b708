"""Python for Symphony: a client of its HTTP interface, and programs in Python.

What it offers is imported when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from symphony.client.async_client import AsyncClient
    from symphony.client.errors import ClientError, ConnectionFailed, ServerError
    from symphony.client.events import Event, message_bytes
    from symphony.client.sync_client import Client

__all__ = [
    "AsyncClient",
    "Client",
    "ClientError",
    "ConnectionFailed",
    "Event",
    "ServerError",
    "message_bytes",
]
_MODULES = {
    "AsyncClient": "symphony.client.async_client",
    "Client": "symphony.client.sync_client",
    "ClientError": "symphony.client.errors",
    "ConnectionFailed": "symphony.client.errors",
    "Event": "symphony.client.events",
    "ServerError": "symphony.client.errors",
    "message_bytes": "symphony.client.events",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'symphony' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value
