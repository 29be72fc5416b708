"""Errors in OpenAI's shape: {"error": {message, type, param, code}}."""

from typing import Any

from aiohttp import web

from symphony_runtime.gateway.errors import Handler, Problem, problem_of

_CODES = {401: "invalid_api_key", 404: "not_found", 429: "rate_limit_exceeded"}
_PATHS = {
    "/v1/models", "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/embeddings",
    "/v1/score", "/v1/rerank", "/tokenize", "/detokenize",
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
    if path not in _PATHS and not path.startswith("/v1/models/"):
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


def _type_of(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    return "server_error" if status >= 500 else "invalid_request_error"
