"""Routes: method and path, who may call, parameters and answers."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from symphony_kernel.protocol.limits import PAGE_ITEMS_DEFAULT, PAGE_ITEMS_MAX

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

    `streamed` names the component of the events that a client may ask for instead. `file`: it may
    be a safetensors file. `text`: another content type that a client may ask for.
    """

    doc: str
    schema: str | None = None
    content: str = "application/json"
    streamed: str | None = None
    file: bool = False
    text: str | None = None


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
    access: Access = Access.TENANT
    errors: str = "Problem"  # schema component of its errors

    @property
    def writes(self) -> bool:
        """Whether it may change something. A read-only key is refused then."""
        return self.method != "GET" or self.name in _TWO_WAYS

    @property
    def frees(self) -> bool:
        """Whether it frees something. No rate limit refuses that."""
        return self.method == "DELETE" or self.name == "cancelRun"


_TWO_WAYS = ("websocket",)  # a GET that then takes messages
LIMIT = Parameter(
    "limit",
    "how many items a page is to have",
    {"type": "integer", "minimum": 1, "maximum": PAGE_ITEMS_MAX, "default": PAGE_ITEMS_DEFAULT},
)
FLAG: Schema = {"type": "string", "enum": ["0", "1", "false", "true"]}
AFTER = Parameter("after", "the `next` of the page before")
