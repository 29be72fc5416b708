"""Errors in Anthropic's shape: {"type": "error", "error": {type, message}, "request_id"}."""

import secrets
from typing import Any, Final

from aiohttp import web

from symphony_runtime.gateway.errors import Handler, Problem, problem_of

VERSION: Final = "anthropic-version"  # the header that Anthropic's clients send
_ID: Final = web.RequestKey("anthropic_request_id", str)
_ROUTES: Final = "/v1/messages"
_MODELS: Final = "/v1/models"
_UNSERVED: Final = {"/v1/messages/batches": "message batches are"}
_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
# Fields of the shipped program's failures, by the names that they have here.
_FIELDS: Final = {"response_format": "output_config.format", "stop": "stop_sequences"}
_TOO_LONG: Final = "prompt is too long"  # clients look for these words, and shorten the dialogue


class AnthropicError(Problem):
    """An answer that is an error."""

    content_type = "application/json"

    def __init__(self, problem: Problem, request_id: str | None = None) -> None:
        words = _words(problem)
        super().__init__(problem.status, problem.kind, words, headers=problem.headers)
        self._request_id = request_id

    def document(self) -> dict[str, Any]:
        error = {"type": _type_of(self.status), "message": self.detail}
        return {"type": "error", "error": error, "request_id": self._request_id}

    @property
    def event(self) -> dict[str, Any]:
        """The fields of an event in a stream, besides its type."""
        return {"error": self.document()["error"]}


def speaks_anthropic(request: web.Request) -> bool:
    """Return whether a request is for a route of Anthropic's, or comes from a client of it."""
    path = request.path
    if path == _ROUTES or path.startswith(f"{_ROUTES}/"):
        return True
    models = path == _MODELS or path.startswith(f"{_MODELS}/")
    missing = isinstance(request.match_info.http_exception, web.HTTPNotFound)
    return VERSION in request.headers and (models or missing)


@web.middleware
async def anthropic_errors_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn every exception of a request in Anthropic's form into an error of its shape."""
    if not speaks_anthropic(request):
        return await handler(request)
    request[_ID] = request_id = f"req_{secrets.token_hex(12)}"
    try:
        if words := _unserved(request.path):
            raise Problem(404, "not-found", f"{words} not served")
        return await handler(request)
    except Exception as error:
        problem = problem_of(request, error)
        if problem is None:
            raise
        raise AnthropicError(problem, request_id) from error


async def add_request_id(request: web.Request, response: web.StreamResponse) -> None:
    """Name the request in its answer's headers, as Anthropic's clients read it."""
    if (request_id := request.get(_ID)) is not None:
        response.headers["request-id"] = request_id


def _unserved(path: str) -> str | None:
    return next((words for route, words in _UNSERVED.items() if path.startswith(route)), None)


def _words(problem: Problem) -> str:
    """Return a problem in words. There is no other place that names the field."""
    words, field = problem.detail, getattr(problem, "param", None)
    if problem.kind == "context_length_exceeded":
        return f"{_TOO_LONG}: {words}"
    if not field or field in words:
        return words
    return f"{_FIELDS.get(field, field)}: {words}"


def _type_of(status: int) -> str:
    return _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
