"""Errors in OpenAI's shape: {"error": {message, type, param, code}}."""

import json
import logging
from typing import Any

from aiohttp import web

from symphony_runtime.gateway.errors import (
    Handler,
    Problem,
    broken_body,
    problem_of_http_error,
    problem_of_storage,
)

_log = logging.getLogger(__name__)
_CODES = {401: "invalid_api_key", 404: "not_found", 429: "rate_limit_exceeded"}
_PATHS = {"/v1/models", "/v1/completions", "/v1/chat/completions", "/v1/responses"}
_OVERLOADED = 429


class OpenAIError(Problem):
    """An answer that is an error. `param` names the field of the request that caused it."""

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

    def response(self) -> web.Response:
        return web.Response(
            status=self.status,
            # ASCII: it may repeat the request, which may hold lone surrogates.
            body=json.dumps(self.document()).encode(),
            content_type="application/json",
            headers=self.headers,
        )


def refused(message: str, param: str | None = None, code: str | None = None) -> OpenAIError:
    return OpenAIError(400, message, param=param, code=code)


def openai_error_of(problem: Problem) -> OpenAIError:
    """Return another part's problem in OpenAI's shape."""
    code = _CODES.get(problem.status, problem.kind.replace("-", "_"))
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
    except Problem as problem:
        raise openai_error_of(problem) from problem
    except web.HTTPException as error:
        raise openai_error_of(problem_of_http_error(error)) from error
    except web.RequestPayloadError as error:
        raise openai_error_of(broken_body()) from error
    except ConnectionError:
        raise  # the client has gone
    except Exception as error:
        if (failing := problem_of_storage(error)) is not None:
            _log.warning("%s %s: %s", request.method, request.path, error)
            raise openai_error_of(failing) from error
        _log.exception("%s %s failed", request.method, request.path)
        raise OpenAIError(500, "the server made a mistake; its log says which") from error


def _type_of(status: int) -> str:
    if status == _OVERLOADED:
        return "rate_limit_error"
    return "server_error" if status >= 500 else "invalid_request_error"
