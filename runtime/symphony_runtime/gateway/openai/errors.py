"""Errors in OpenAI's shape: {"error": {message, type, param, code}}."""

from typing import Any

from aiohttp import web

from symphony_runtime.gateway.errors import Handler, Problem, problem_of

_SHOWN_MAX = 100  # characters of a path
_CODES = {401: "invalid_api_key", 404: "not_found", 429: "rate_limit_exceeded"}
_PATHS = {
    "/v1/models", "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/embeddings",
    "/v1/score", "/v1/rerank", "/v1/files", "/v1/batches", "/tokenize", "/detokenize",
}  # fmt: skip
_BELOW = (
    "/v1/models/",
    "/v1/responses/",
    "/v1/files/",
    "/v1/batches/",
)  # these routes have OpenAI's errors, too
# The first parts of paths below /v1 that are routes of our own: their errors are problems.
OUR_PARTS = frozenset(
    {
        "adapters",
        "admin",
        "attached",
        "events",
        "history",
        "key",
        "kv",
        "kv-pages",
        "kv-tokens",
        "limits",
        "prefixes",
        "programs",
        "runs",
        "secrets",
    }
)
# OpenAI's routes that are not served.
UNSERVED = {
    "assistants": "assistants are", "audio": "audio is",
    "fine_tuning": "fine-tuning is", "images": "images are",
    "moderations": "moderations are", "realtime": "realtime sessions are",
    "threads": "threads are", "uploads": "uploads are", "vector_stores": "vector stores are",
}  # fmt: skip


class OpenAIError(Problem):
    """An answer that is an error. `param` names the field of the request that caused it."""

    content_type = "application/json"

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(status, code or "", message, headers=headers)
        self.param = param
        self.code = code

    def document(self) -> dict[str, Any]:
        error = {
            "message": self.detail,
            "type": _type_of(self.status),
            "param": self.param,
            "code": self.code,
        }
        return {"error": error}


def refused(message: str, param: str | None = None, code: str | None = None) -> OpenAIError:
    return OpenAIError(400, message, param=param, code=code)


def openai_error_of(problem: Problem) -> OpenAIError:
    """Return another part's problem in OpenAI's shape."""
    code: str | None = _CODES.get(problem.status, problem.kind.replace("-", "_"))
    if problem.kind == "internal":
        code = None
    return OpenAIError(problem.status, problem.detail, code=code, headers=problem.headers)


@web.middleware
async def openai_errors_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn every exception on an OpenAI route into an error of OpenAI's shape."""
    path = request.path
    if path not in _PATHS and not path.startswith(_BELOW):
        if isinstance(request.match_info.http_exception, web.HTTPNotFound):
            _check_route(path)
        return await handler(request)
    try:
        return await handler(request)
    except OpenAIError:
        raise
    except Exception as error:
        problem = problem_of(request, error)
        if problem is None:
            raise
        raise openai_error_of(problem) from error


def _check_route(path: str) -> None:
    """Raise the error for a path without a route, if an OpenAI client may have asked for it."""
    part, shown = path.removeprefix("/v1/").partition("/")[0], path[:_SHOWN_MAX]
    if path.startswith("/v1/v1/"):
        words = "the client's base URL has /v1 twice"
    elif path.startswith("/v1/"):
        if part in OUR_PARTS:
            return
        unserved = UNSERVED.get(part)
        words = f"{unserved} not served" if unserved else f"there is no route {shown}"
    elif f"/v1{path}" in _PATHS or path.strip("/").partition("/")[0] in UNSERVED:
        words = f"there is no such route: it is /v1{shown}, so the base URL has to end with /v1"
    else:
        return
    raise OpenAIError(404, words, code="not_found")


def _type_of(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    return "server_error" if status >= 500 else "invalid_request_error"
