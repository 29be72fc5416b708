"""The items of a response's input, as they are listed and referred to."""

import re
from typing import Any, Final

from symphony_runtime.gateway.openai.errors import refused
from symphony_runtime.gateway.openai.response_output import MESSAGE, PREFIXES

_OWNER: Final = re.compile(r"[a-z]+_([0-9a-f]{24})(?:i\d+|_\d+)?")


def check_items(asked: Any) -> None:
    """Check that a request's input can be listed, also one for a program; OpenAIError 400."""
    if isinstance(asked, str):
        return
    if not isinstance(asked, list):
        words = "`input` must be a string or a list of items, or `store` false"
        raise refused(words, "input")
    for place, item in enumerate(asked):
        named = isinstance(item, dict) and [item.get("id"), item.get("type")]
        if not named or not all(name is None or isinstance(name, str) for name in named):
            words = f"`input[{place}]` must be an object whose `id` and `type` are strings"
            raise refused(words, f"input[{place}]")


def list_input(number: str, asked: Any) -> list[dict[str, Any]]:
    """Return the items of a request's input with ids; `number` is in its response's id."""
    items = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
    return [_listed(item, f"{number}i{index}") for index, item in enumerate(items)]


def owner_of(item_id: str) -> str | None:
    """Return the id of the response whose item has this id, None for an id of the client's own."""
    found = _OWNER.fullmatch(item_id)
    return f"resp_{found[1]}" if found else None


def _listed(item: dict[str, Any], place: str) -> dict[str, Any]:
    kind = item.get("type", MESSAGE)
    made = f"{PREFIXES.get(kind, 'item')}_{place}"
    listed: dict[str, Any] = {**item, "id": item.get("id") or made, "type": kind}
    if kind != "reasoning":
        listed.setdefault("status", "completed")
    if kind == MESSAGE and isinstance(content := item.get("content"), str):
        part: dict[str, Any] = {"type": "input_text", "text": content}
        if item.get("role") == "assistant":
            part = {"type": "output_text", "text": content, "annotations": []}
        listed["content"] = [part]
    return listed
