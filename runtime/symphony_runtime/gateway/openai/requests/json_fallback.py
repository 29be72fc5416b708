"""Tools for a model whose chat template has none: in words, in the system's turn.

The definitions, and how to call them, are told in the first message. Calls that were made become
the JSON that the model wrote, and their results what the user says.
"""

import json
from collections.abc import Sequence
from typing import Any, Final

_INTRODUCTION: Final = """\
You can call functions. Each line defines one in JSON, with the JSON schema of its arguments:
{definitions}
To call functions, answer with nothing but one JSON object a line for each call:
{{"name": "<name>", "arguments": {{<arguments>}}}}
Their results come in the next message. To answer the user, write text instead."""


def tell_tools(
    messages: Sequence[dict[str, Any]], definitions: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return a conversation of texts alone, which begins with the definitions."""
    told = [_as_text(message) for message in messages]
    if not definitions:
        return _joined(told)
    lines = "\n".join(json.dumps(each["function"], ensure_ascii=False) for each in definitions)
    words = _INTRODUCTION.format(definitions=lines)
    if told[0]["role"] in ("system", "developer"):
        told[0] = {**told[0], "content": f"{told[0]['content']}\n\n{words}".lstrip()}
    else:
        told.insert(0, {"role": "system", "content": words})
    return _joined(told)


def _as_text(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] == "tool":
        of = f" of {message['name']}" if "name" in message else ""
        return {"role": "user", "content": f"Result{of}: {message['content']}", "result": True}
    if "tool_calls" not in message:
        return message
    calls = [
        json.dumps(
            {"name": call["function"]["name"], "arguments": call["function"]["arguments"]},
            ensure_ascii=False,
        )
        for call in message["tool_calls"]
    ]
    lines = [line for line in (message["content"], *calls) if line]
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": "\n".join(lines)}


def _joined(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with results in a row as one: some templates want turns to alternate."""
    joined: list[dict[str, Any]] = []
    before = False
    for message in messages:
        result = message.pop("result", False)
        if result and before:
            joined[-1]["content"] += "\n" + message["content"]
        else:
            joined.append(message)
        before = result
    return joined
