"""Messages of MCP: JSON-RPC, in the versions of the protocol that the package `mcp` knows.

Versions until 2025-11-25 begin with `initialize`; in later ones each request says all about itself.
Either way no request needs an earlier one here.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mcp.shared.inbound import (
    ERROR_CODE_HTTP_STATUS,
    InboundLadderRejection,
    classify_inbound_request,
    find_duplicated_routing_header,
)
from mcp_types import (
    DEFAULT_NEGOTIATED_VERSION,
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    SERVER_INFO_META_KEY,
    Implementation,
    JSONRPCNotification,
    JSONRPCRequest,
    Request,
    RequestId,
    Result,
)
from mcp_types.methods import parse_client_request, serialize_server_result
from mcp_types.version import (
    HANDSHAKE_PROTOCOL_VERSIONS,
    LATEST_HANDSHAKE_VERSION,
    is_version_at_least,
)
from pydantic import BaseModel, ValidationError

from symphony_runtime.gateway.http.context import to_json

VERSION_HEADER = "mcp-protocol-version"
_STRUCTURED_SINCE = "2025-06-18"


class RpcError(Exception):
    """A JSON-RPC error; `status` is its HTTP status."""

    def __init__(
        self, code: int, message: str, *, status: int = 200, data: Any = None, of: Any = None
    ) -> None:
        super().__init__(message)
        self.code, self.message, self.status = code, message, status
        self.data = data
        self.id: RequestId | None = of  # of the request, None if it is not known

    def body(self) -> bytes:
        error = {"code": self.code, "message": self.message}
        if self.data is not None:
            error["data"] = self.data
        # ASCII: it may repeat the request, which may hold lone surrogates.
        return json.dumps({"jsonrpc": "2.0", "id": self.id, "error": error}).encode()


@dataclass(frozen=True, slots=True)
class Incoming:
    """A request. `modern`: of a version without `initialize`."""

    id: RequestId
    method: str
    request: Request[Any, Any]
    version: str
    modern: bool
    params: Mapping[str, Any]
    headers: Mapping[str, str] = field(repr=False)  # by names in lower case

    @property
    def progress_token(self) -> RequestId | None:
        """The token for progress notifications, None: the client wants none."""
        token: RequestId | None = (self.params.get("_meta") or {}).get("progressToken")
        return token

    def answer(
        self, result: Result, server: Implementation, structured: bytes | None = None
    ) -> bytes:
        """Return the response, in the shape of the request's version.

        `structured` is the JSON text of a tool's structured content.
        """
        data = serialize_server_result(self.method, self.version, _dump(result))
        if self.modern:
            data.setdefault("resultType", "complete")
            data["_meta"] = {**(data.get("_meta") or {}), SERVER_INFO_META_KEY: _dump(server)}
        body = to_json(data)
        if structured is not None and is_version_at_least(self.version, _STRUCTURED_SINCE):
            body = body[:-1] + b',"structuredContent":' + structured + b"}"
        return (
            b'{"jsonrpc":"2.0","id":' + json.dumps(self.id).encode() + b',"result":' + body + b"}"
        )


def read_message(body: Any, headers: list[tuple[str, str]]) -> Incoming | JSONRPCNotification:
    """Return the message of a request's body; RpcError."""
    if not isinstance(body, dict) or "method" not in body:
        words = "the body must be one JSON-RPC request or notification"
        raise RpcError(INVALID_REQUEST, words, status=400)
    kind: type[BaseModel] = JSONRPCRequest if "id" in body else JSONRPCNotification
    try:
        message = kind.model_validate(body)
    except ValidationError:
        raise RpcError(INVALID_REQUEST, "not a message of JSON-RPC 2.0", status=400) from None
    if isinstance(message, JSONRPCNotification):
        return message
    assert isinstance(message, JSONRPCRequest)
    named = {name.lower(): value for name, value in headers}
    version = named.get(VERSION_HEADER, DEFAULT_NEGOTIATED_VERSION)
    modern = version not in HANDSHAKE_PROTOCOL_VERSIONS
    try:
        if modern:
            _check_envelope(body, headers, named)
        request = parse_client_request(message.method, version, message.params)
    except RpcError as error:
        error.id = message.id
        raise
    except (KeyError, ValidationError) as error:
        code = METHOD_NOT_FOUND if isinstance(error, KeyError) else INVALID_PARAMS
        raise refusal(code, _words(error), message.id, modern=modern) from None
    params = message.params or {}
    return Incoming(message.id, message.method, request, version, modern, params, named)


def refusal(code: int, words: str, of: RequestId | None, *, modern: bool) -> RpcError:
    status = ERROR_CODE_HTTP_STATUS.get(code, 200) if modern else 200
    return RpcError(code, words, status=status, of=of)


def check_ladder(found: object) -> None:
    """Raise RpcError for a rejection of the package's."""
    if isinstance(found, InboundLadderRejection):
        status = ERROR_CODE_HTTP_STATUS.get(found.code, 400)
        raise RpcError(found.code, found.message, status=status, data=found.data)


def negotiated(version: str) -> str:
    """Return the version that `initialize` answers with."""
    return version if version in HANDSHAKE_PROTOCOL_VERSIONS else LATEST_HANDSHAKE_VERSION


def _check_envelope(
    body: dict[str, Any], headers: list[tuple[str, str]], named: Mapping[str, str]
) -> None:
    if (twice := find_duplicated_routing_header(headers)) is not None:
        raise RpcError(HEADER_MISMATCH, f"{twice} header appears more than once", status=400)
    check_ladder(classify_inbound_request(body, headers=named))


def _words(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return "Method not found"
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"]))[:200]
    return f"Invalid request parameters: {place}: {first['msg']}"[:500]


def _dump(model: BaseModel) -> dict[str, Any]:
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)
