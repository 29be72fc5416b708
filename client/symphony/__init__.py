"""Python for Symphony: a client of its HTTP interface, and programs in Python."""

from symphony.client.async_client import AsyncClient
from symphony.client.errors import ClientError, ConnectionFailed, ServerError
from symphony.client.events import Event, message_bytes
from symphony.client.transport import JsonObject

__all__ = [
    "AsyncClient",
    "ClientError",
    "ConnectionFailed",
    "Event",
    "JsonObject",
    "ServerError",
    "message_bytes",
]
