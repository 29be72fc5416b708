"""Input items of `/v1/responses` as messages of a chat."""

from typing import Any

from symphony_runtime.gateway.openai.errors import refused
from symphony_runtime.gateway.openai.requests.messages import read_messages
from symphony_runtime.gateway.openai.requests.response_tools import custom_arguments, joined_name

_CALLS = "function_call", "custom_tool_call"
_OUTPUTS = "function_call_output", "custom_tool_call_output"


def read_items(value: Any, param: str) -> list[dict[str, Any]]:
    """Return a conversation of messages, calls, their outputs and reasoning; OpenAIError 400."""
    if not isinstance(value, list):
        return read_messages(value, param)
    messages: list[Any] = []
    places: list[int] = []
    for i, item in enumerate(value):
        kind = item.get("type", "message") if isinstance(item, dict) else "message"
        message = item
        if kind in _CALLS:
            function = _function(item, kind)
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
        elif kind in _OUTPUTS:
            call_id = item.get("call_id", "")
            message = {"role": "tool", "tool_call_id": call_id, "content": item.get("output")}
        elif kind == "reasoning":
            message = {"role": "assistant", "content": None, "reasoning_content": _thought(item)}
        elif kind != "message":
            raise refused(f"items of type {kind!r} are not supported", f"{param}[{i}]")
        if messages and _continues(messages[-1], message, kind):
            _join(messages[-1], message)
        else:
            messages.append(dict(message) if isinstance(message, dict) else message)
            places.append(i)
    return read_messages(messages, param, places)


def _function(item: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return what an item calls, as the model knows it."""
    name, namespace = item.get("name"), item.get("namespace")
    if isinstance(name, str) and isinstance(namespace, str):
        name = joined_name(namespace, name)
    custom = kind == "custom_tool_call"
    arguments = custom_arguments(item.get("input")) if custom else item.get("arguments")
    return {"name": name, "arguments": arguments}


def _thought(item: dict[str, Any]) -> str:
    """Return the text of an item of reasoning, "" if it has none that can be read."""
    parts = item.get("content") or item.get("summary") or []
    parts = parts if isinstance(parts, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return "".join(text for text in texts if isinstance(text, str))


def _continues(before: Any, message: Any, kind: str) -> bool:
    """Return whether an item belongs to the assistant's message before it."""
    if not isinstance(before, dict) or not isinstance(message, dict):
        return False
    if before.get("role") != "assistant" or message.get("role") != "assistant":
        return False
    # Reasoning begins a message; text follows reasoning alone, calls follow anything.
    opened = before.get("content") is None and not before.get("tool_calls")
    return kind in _CALLS or (kind == "message" and opened)


def _join(before: dict[str, Any], message: dict[str, Any]) -> None:
    if message.get("tool_calls"):
        before["tool_calls"] = [*(before.get("tool_calls") or []), *message["tool_calls"]]
    else:
        before["content"] = message.get("content")
