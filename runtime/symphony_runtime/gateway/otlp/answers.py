"""What a generating request asked and how its answer ended, as attributes of its run's span.

They are named as OpenTelemetry's conventions for generative AI name them. Texts are left out.
"""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, TypeVar

from aiohttp import web

from symphony_runtime.gateway.otlp.counts import clean

if TYPE_CHECKING:
    from symphony_runtime.gateway.otlp.runs import RunSpans

T = TypeVar("T")
_TEXT_MAX = 128  # characters of a name that a client chooses
_OPERATIONS = {
    "createChatCompletion": "chat", "createCompletion": "text_completion",
    "createResponse": "chat", "createMessage": "chat", "createEmbedding": "embeddings",
}  # fmt: skip
_NUMBERS = {
    "max_tokens": "gen_ai.request.max_tokens",
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "max_output_tokens": "gen_ai.request.max_tokens",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "seed": "gen_ai.request.seed",
    "n": "gen_ai.request.choice.count",
}


def watch_answer(
    request: web.Request,
    spans: "RunSpans",
    body: dict[str, Any],
    batches: AsyncIterator[list[T]],
) -> AsyncIterator[list[T]]:
    """Describe a request in its run's span; return its records, whose end that gets, too."""
    operation = _OPERATIONS.get(request.match_info.route.name or "")
    if operation is None:
        return batches
    spans.describe(operation, clean(str(body.get("model", "")), _TEXT_MAX), asked(body))
    return _watched(spans, batches)


def asked(body: dict[str, Any]) -> dict[str, int | float | bool]:
    """Return the attributes that a body's numbers give."""
    found: dict[str, int | float | bool] = {}
    for name, attribute in _NUMBERS.items():
        value: Any = body.get(name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and abs(value) < 1 << 62:
            found[attribute] = value
    if body.get("stream") is True:
        found["gen_ai.request.stream"] = True
    return found


async def _watched(spans: "RunSpans", batches: AsyncIterator[list[T]]) -> AsyncIterator[list[T]]:
    reasons: dict[int, str] = {}  # by choice
    async for batch in batches:
        for record in batch:
            if (finish := getattr(record, "finish", None)) is not None:
                reasons[record.choice] = finish  # type: ignore[attr-defined]
        if reasons:
            spans.set_finish_reasons([reason for _, reason in sorted(reasons.items())])
        yield batch
