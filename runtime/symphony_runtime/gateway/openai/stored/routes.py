"""The routes of kept responses, as the table of all routes has them."""

from typing import Any

from symphony_kernel.protocol.limits import OPENAI_ITEMS_MAX

from symphony_runtime.gateway.http.route import Answer, Parameter, Route
from symphony_runtime.gateway.openai.stored import handlers

_PATH = "/v1/responses/{response}"
_FLAG: dict[str, Any] = {"type": "string", "enum": ["true", "false"]}
_PAGE = (
    Parameter(
        "limit",
        "how many items a page is to have",
        {
            "type": "integer",
            "minimum": 1,
            "maximum": OPENAI_ITEMS_MAX,
            "default": handlers.ITEMS_DEFAULT,
        },
    ),
    Parameter("order", "the newest first, or the oldest", {"enum": ["desc", "asc"]}),
    Parameter("after", "the `last_id` of the page before"),
)

RESPONSE_ROUTES: tuple[Route, ...] = (
    Route(
        "GET", _PATH, "getResponse", handlers.get_response,
        "A response that is kept, also while it is made",
        {
            200: Answer(
                "the response as it is; or, with `stream`, its events", "OpenAIResponse",
                also={"text/event-stream": "OpenAIChunks"},
            )
        },
        problems=(409,), errors="OpenAIError",
        parameters=(
            Parameter("stream", "send its events, to the last one", _FLAG),
            Parameter(
                "starting_after", "the `sequence_number` of the last event that the client has",
                {"type": "integer", "minimum": 0},
            ),
        ),
    ),
    Route(
        "DELETE", _PATH, "deleteResponse", handlers.delete_response,
        "Delete a response that has ended, with its input and its output",
        {200: Answer("deleted", "OpenAIDeleted")},
        problems=(409,), errors="OpenAIError",
    ),
    Route(
        "POST", _PATH + "/cancel", "cancelResponse", handlers.cancel_response,
        "End a response; an ended one stays as it is",
        {200: Answer("the response", "OpenAIResponse")},
        problems=(409,), errors="OpenAIError",
    ),
    Route(
        "GET", _PATH + "/input_items", "listInputItems", handlers.list_input_items,
        "The items that a response was made from, those of earlier responses included",
        {200: Answer("a page", "OpenAIItems")},
        problems=(409,), errors="OpenAIError",
        parameters=_PAGE,
    ),
)  # fmt: skip
