"""Make docs/reference/anthropic-fields.md from what a server does with each field.

    symphony serve                                  # with the tiny model
    python -m tools.anthropic_fields_page --key KEY > docs/reference/anthropic-fields.md

The fields are those of the types of the `anthropic` package, its beta's included, then those that
only this server has. tools/openai_fields_page.py says how they are tried.
"""

import sys
from importlib.metadata import version
from typing import Any

from anthropic.types import message_count_tokens_params as counts
from anthropic.types import message_create_params as messages
from anthropic.types.beta import message_create_params as beta
from symphony_runtime.gateway.anthropic import bodies

from tools.openai_fields_page import Ask, Probe, Route, fields_table, main

_HEAD = """# Fields of Anthropic's routes

What the server does with each field of a request. `python -m tools.anthropic_fields_page` made
this page by asking a server with the tiny model; a test in the suite makes it again. The first
fields are those of the types of the `anthropic` package, version {version}, its beta's included.
*Only here* are fields that those types do not have. [openai-fields.md](openai-fields.md) says what
the words mean.

`thinking` and the `effort` in `output_config` have an effect with a model whose chat template has
reasoning, or the variable `reasoning_effort`. The tiny model has neither. `cache_control` is
without effect in every block, too: prefixes are found again without it. A field that stands in no
table is refused by name.
"""
_TOOL = {"name": "f", "input_schema": {"type": "object"}}
_SEARCH = {"type": "web_search_20250305", "name": "web_search"}
_FORMAT = {"type": "json_schema", "schema": {"type": "object"}}
# Long enough to differ from the likeliest answer: there is no seed.
_LONG = {"max_tokens": 100}
_DRAWN = {"temperature": 1, **_LONG}


def _values(*values: Any) -> list[Probe]:
    return [Probe(value) for value in values]


_PROMPT: dict[str, list[Probe]] = {
    "cache_control": _values({"type": "ephemeral"}),
    "context_management": _values({"edits": []}, {"edits": [{"type": "clear_tool_uses_20250919"}]}),
    "diagnostics": _values({"previous_message_id": "msg_1"}),
    "inference_geo": _values("us"),
    "mcp_servers": _values([], [{"type": "url", "url": "https://example.com", "name": "m"}]),
    "metadata": _values({"user_id": "u"}),
    "output_config": _values({"effort": "low"}, {"format": _FORMAT}),
    "output_format": _values(_FORMAT),
    "service_tier": _values("auto"),
    "speed": _values("standard", "fast"),
    "system": _values("Code"),
    "thinking": _values(
        {"type": "disabled"},
        {"type": "adaptive"},
        {"type": "enabled", "budget_tokens": 1_024},
        {"type": "between_tools"},
    ),
    "tool_choice": [
        Probe({"type": kind}, {"tools": [_TOOL], "max_tokens": 24})
        for kind in ("auto", "any", "none")
    ],
    "tools": _values([], [_TOOL], [_SEARCH]),
    "user_profile_id": _values("u"),
    "workspace_id": _values("w"),
    "betas": _values(["effort-2025-11-24"]),
}
_MESSAGES: dict[str, list[Probe]] = {
    **_PROMPT,
    "stop_sequences": _values([" "]),
    "stream": _values(True),
    "temperature": [Probe(1, _LONG)],
    "top_k": [Probe(1, _DRAWN)],
    "top_p": [Probe(0.0, _DRAWN)],
}
_USUAL = {"model": "tiny", "messages": [{"role": "user", "content": "read a file"}]}
ROUTES = (
    Route(
        "/v1/messages",
        (
            messages.MessageCreateParamsBase,
            messages.MessageCreateParamsStreaming,
            beta.MessageCreateParamsBase,
        ),
        bodies.MessagesBody,
        {**_USUAL, "max_tokens": 8, "temperature": 0},
        _MESSAGES,
    ),
    Route(
        "/v1/messages/count_tokens",
        (counts.MessageCountTokensParams,),
        bodies.PromptBody,
        _USUAL,
        _PROMPT,
    ),
)


async def fields_page(ask: Ask) -> str:
    """Return the page."""
    tables = [await fields_table(ask, route) for route in ROUTES]
    return "".join([_HEAD.format(version=version("anthropic")), *tables])


if __name__ == "__main__":
    sys.exit(main(fields_page, __doc__))
