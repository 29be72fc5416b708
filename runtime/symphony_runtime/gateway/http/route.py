"""Routes: method and path, who may call, parameters and answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from symphony_kernel.protocol.limits import (
    IDEMPOTENCY_KEY_BYTES_MAX,
    PAGE_ITEMS_DEFAULT,
    PAGE_ITEMS_MAX,
)

from symphony_runtime.gateway.errors import Handler

Schema = dict[str, Any]


class Access(Enum):
    """Which keys a route takes."""

    OPEN = "open"
    TENANT = "tenant"
    ADMIN = "admin"
    ANY = "any"  # a tenant's key or an operator's


@dataclass(frozen=True, slots=True)
class Parameter:
    """A query parameter or a header."""

    name: str
    doc: str
    schema: Schema = field(default_factory=lambda: {"type": "string"})
    place: str = "query"


@dataclass(frozen=True, slots=True)
class Answer:
    """A successful answer; `schema` names a component, None for no body.

    `also`: other content types that a client may ask for, with their components; None for a text.
    """

    doc: str
    schema: str | None = None
    content: str = "application/json"
    also: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path."""

    method: str
    path: str
    name: str  # operationId
    handler: Handler
    doc: str
    answers: dict[int, Answer]
    problems: tuple[int, ...] = ()  # besides those of every route
    parameters: tuple[Parameter, ...] = ()
    body: tuple[str, str] | None = None  # content type and schema component
    other_bodies: tuple[tuple[str, str], ...] = ()  # that it takes, too
    access: Access = Access.TENANT
    errors: str = "Problem"  # schema component of its errors

    @property
    def writes(self) -> bool:
        """Whether it may change something."""
        return self.method != "GET" or self.name in _TWO_WAYS

    @property
    def refuses_readers(self) -> bool:
        """Whether a read-only key is refused; if not, the handler refuses what writes."""
        return self.writes and self.name not in _READS_TOO

    @property
    def frees(self) -> bool:
        """Whether it frees something. No rate limit refuses that."""
        return self.method == "DELETE" or self.name in _FREE


_FREE = ("cancelRun", "cancelResponse", "cancelBatch")
_READS_TOO = ("mcp",)  # a POST also to list tools
_TWO_WAYS = ("websocket", "attach")  # a GET that then takes messages
LIMIT = Parameter(
    "limit",
    "how many items a page is to have",
    {"type": "integer", "minimum": 1, "maximum": PAGE_ITEMS_MAX, "default": PAGE_ITEMS_DEFAULT},
)
FLAG: Schema = {"type": "string", "enum": ["0", "1", "false", "true"]}
AFTER = Parameter("after", "the `next` of the page before")
ONCE = Parameter(
    "Idempotency-Key",
    "a text that the client chooses: a repeated request gets the first one's answer, for a day",
    {"type": "string", "minLength": 1, "maxLength": IDEMPOTENCY_KEY_BYTES_MAX},
    "header",
)
