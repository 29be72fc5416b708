"""Bodies of requests, as models: runs, tenants and keys. Their schemas are the document's, too.

Each `parse_` function returns what a body asks for, and raises Problem 400 where it is wrong.
"""

import json
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field, WithJsonSchema, create_model
from symphony_kernel.protocol.limit_table import RUN_LIMITS
from symphony_kernel.protocol.limits import (
    NAME_BYTES_MAX,
    RUN_INPUT_BYTES_MAX,
    RUN_PRIORITY_MAX,
    TENANT_WEIGHT_MAX,
    TENANT_WEIGHT_MIN,
)

from symphony_runtime.config.limits import LimitRefusedError, TenantLimits
from symphony_runtime.gateway.errors import bad_request, too_large
from symphony_runtime.gateway.runs.record import LIMITS_MAX, PRIORITY_DEFAULT, RunRequest
from symphony_runtime.gateway.tenancy.authentication import Role
from symphony_runtime.gateway.tenancy.keys import ROLES
from symphony_runtime.gateway.tenancy.tenants import ID, QUOTAS, Change
from symphony_runtime.validation import FieldError, StrictModel, check_model

Body = TypeVar("Body", bound=BaseModel)
# A tenant's maximum is in `GET /v1/limits`. These are the most that any server allows.
LIMIT_PROPERTIES = {
    limit.name: {"type": "integer", "minimum": limit.least, "maximum": limit.ceiling}
    for limit in RUN_LIMITS
}
_LIMITS = {"type": "object", "properties": LIMIT_PROPERTIES, "additionalProperties": False}
_USUAL = TenantLimits()
# Of fields whose problems have a kind of their own.
_KINDS = {"priority": "bad-limit", "limits": "bad-limit", "quotas": "bad-quota", "role": "bad-role"}


class RunBody(StrictModel):
    """A run to start."""

    input: Any = Field("", description="a string's UTF-8 bytes, or else the JSON text")
    entry: Annotated[str, Field(max_length=NAME_BYTES_MAX)] | None = Field(
        None, description="the export to run"
    )
    limits: Annotated[dict[str, Any], WithJsonSchema(_LIMITS)] | None = None
    model: Annotated[str, Field(min_length=1, max_length=NAME_BYTES_MAX)] | None = Field(
        None, description="the model that the run is of; default: the server's first"
    )
    priority: int = Field(PRIORITY_DEFAULT, ge=0, le=RUN_PRIORITY_MAX)
    stream: bool = False
    trace: bool = False


_Quotas: Any = create_model(
    "Quotas",
    __base__=StrictModel,
    **{
        name: (Annotated[int, Field(ge=low, le=high)] | None, None)
        for name, (low, high) in QUOTAS.items()
    },  # type: ignore[call-overload]
)


class TenantChange(StrictModel):
    """A change of a tenant; null takes a weight or a quota back."""

    suspended: bool | None = None
    weight: Annotated[float, Field(ge=TENANT_WEIGHT_MIN, lt=TENANT_WEIGHT_MAX)] | None = None
    quotas: _Quotas = Field(default_factory=_Quotas)

    def change(self) -> Change:
        quotas = self.quotas.model_dump(exclude_unset=True)
        return Change(self.suspended, "weight" in self.model_fields_set, self.weight, quotas)


class TenantBody(TenantChange):
    """A new tenant."""

    id: str = Field(json_schema_extra={"pattern": f"^{ID.pattern}$"})


class KeyBody(StrictModel):
    """A new key. Which roles there are depends on its owner."""

    role: Literal["admin", "tenant", "read-only"] = Field(
        "tenant", description="an operator's key is admin by default"
    )
    name: str = Field("", max_length=NAME_BYTES_MAX)
    # Some JSON parsers have no larger integers.
    expires_ms: Annotated[int, Field(ge=0, le=(1 << 53) - 1)] | None = None


def parse_body(model: type[Body], body: Any) -> Body:
    try:
        return check_model(model, body)
    except FieldError as error:
        name = (error.field or "".join(error.unknown[:1])).partition(".")[0]
        fields: dict[str, Any] = {"field": error.field} if error.field else {}
        if error.unknown:
            fields["unknown"] = list(error.unknown)
        bounds = error.schema.get("anyOf", [error.schema])[0]
        fields |= {key: bounds[key] for key in ("minimum", "maximum") if key in bounds}
        raise bad_request(_KINDS.get(name, "bad-request"), str(error), **fields) from None


def parse_run(body: Any, limits: TenantLimits = _USUAL) -> RunRequest:
    """Return a body's run; `limits` are its tenant's. Problem 400; 413: the input."""
    wanted = parse_body(RunBody, body)
    return RunRequest(
        input=_input(wanted.input),
        entry=wanted.entry,
        limits=_limits(wanted.limits or {}, limits),
        priority=wanted.priority,
        stream=wanted.stream,
        trace=wanted.trace,
        model=wanted.model or "",
    )


def _input(value: Any) -> bytes:
    try:
        # 1e999 is JSON, but infinite once it was read: there is no JSON for that.
        text = value if isinstance(value, str) else json.dumps(
            value, ensure_ascii=False, allow_nan=False
        )  # fmt: skip
        data = text.encode()
    except (ValueError, RecursionError):  # UnicodeEncodeError is a ValueError
        detail = "`input` holds a lone surrogate or too large a number, or is nested too deeply"
        raise bad_request("bad-request", detail) from None
    if len(data) > RUN_INPUT_BYTES_MAX:
        raise too_large("an input", RUN_INPUT_BYTES_MAX)
    return data


def _limits(wanted: dict[str, Any], limits: TenantLimits) -> dict[str, int]:
    if unknown := sorted(wanted.keys() - LIMITS_MAX.keys()):
        detail = f"unknown limits: {', '.join(unknown)}; a run has {', '.join(LIMITS_MAX)}"
        raise bad_request("bad-limit", detail, unknown=unknown)
    try:
        return limits.choose(wanted)
    except LimitRefusedError as error:
        field = f"limits.{error.name}"
        raise bad_request(
            "bad-limit", str(error), field=field, minimum=error.least, maximum=error.most
        ) from None


def parse_key(body: Any, *, operators: bool, now_ms: int) -> tuple[Role, str, int | None]:
    """Return role, name and end of a key that a body asks for."""
    roles = ROLES[operators]
    wanted = parse_body(KeyBody, {"role": roles[0], **body} if isinstance(body, dict) else body)
    role = Role(wanted.role)
    if role not in roles:
        known = " or ".join(f'"{known.value}"' for known in roles)
        whose = "an operator's key (/v1/admin/keys)" if operators else "a tenant's key"
        raise bad_request("bad-role", f'the role of {whose} is {known}, not "{role.value}"')
    if not wanted.name.isprintable() or len(wanted.name.encode()) > NAME_BYTES_MAX:
        detail = f"`name` must be printable, with at most {NAME_BYTES_MAX} bytes of UTF-8"
        raise bad_request("bad-request", detail)
    if wanted.expires_ms is not None and wanted.expires_ms <= now_ms:
        detail = f"`expires_ms` must be later than now, {now_ms}; it is {wanted.expires_ms}"
        raise bad_request("bad-request", detail)
    return role, wanted.name, wanted.expires_ms
