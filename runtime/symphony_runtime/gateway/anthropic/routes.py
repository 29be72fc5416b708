"""Anthropic's routes, and those of models, which answer in the form of their client."""

from symphony_runtime.gateway.anthropic import handlers
from symphony_runtime.gateway.anthropic.errors import VERSION
from symphony_runtime.gateway.http.route import ONCE, Answer, Parameter, Route

_EVENTS = {"text/event-stream": "AnthropicEvents"}
_VERSION = Parameter(VERSION, "answer as Anthropic's API does", place="header")

ANTHROPIC_ROUTES: tuple[Route, ...] = (
    Route(
        "POST", "/v1/messages", "createMessage", handlers.create_message,
        "Anthropic's messages, by the server's own program or the one that `model` names",
        {200: Answer("the message; or, with `stream`, its events", "AnthropicMessage",
                     also=_EVENTS)},
        problems=(404, 409, 410, 422), parameters=(ONCE,),
        body=("application/json", "AnthropicMessagesRequest"), errors="AnthropicError",
    ),
    Route(
        "POST", "/v1/messages/count_tokens", "countMessageTokens", handlers.count_tokens,
        "The tokens of the prompt that a request to /v1/messages makes",
        {200: Answer("their number", "AnthropicTokenCount")},
        problems=(404, 409), body=("application/json", "AnthropicCountRequest"),
        errors="AnthropicError",
    ),
    Route(
        "GET", "/v1/models", "listModels", handlers.list_models,
        "The model, then the tenant's named programs: each may be a request's `model`",
        {200: Answer("all of them", "AnyModelList")}, parameters=(_VERSION,), errors="AnyError",
    ),
    Route(
        "GET", "/v1/models/{model}", "getModel", handlers.get_model, "One of them",
        {200: Answer("it is there", "AnyModel")}, parameters=(_VERSION,), errors="AnyError",
    ),
)  # fmt: skip
