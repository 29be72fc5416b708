"""Messages of a conversation, checked, as a chat template gets them."""

import json
from collections.abc import Sequence
from typing import Any, Final

from symphony_kernel.protocol.limits import CHAT_DEPTH_MAX

from symphony_runtime.bounded_json import nests_deeper
from symphony_runtime.gateway.openai.errors import refused
from symphony_runtime.texts.chat_escaping import ROLES

_IMAGES: Final = ("image_url", "input_image", "image")  # types of parts
_DEPTH_MAX: Final = CHAT_DEPTH_MAX - 8  # within a message, a list and the like
_REFUSED: Final = ("function_call", "audio", "refusal")


def read_messages(
    value: Any, param: str, places: Sequence[int] | None = None
) -> list[dict[str, Any]]:
    """Return a conversation for the chat template; OpenAIError 400.

    `places` are the indices that a refusal names.
    """
    if not isinstance(value, list) or not value:
        raise refused(f"`{param}` must be a list of messages, one at least", param)
    names: dict[str, str] = {}  # of the functions, by the ids of their calls
    numbered = zip(places or range(len(value)), value, strict=True)
    return [_message(item, f"{param}[{i}]", names) for i, item in numbered]


def _message(value: Any, param: str, names: dict[str, str]) -> dict[str, Any]:
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        raise refused(f"`{param}` must be an object with a `role`", param)
    role = value["role"]
    if role not in ROLES:
        raise refused(f"`role` must be one of {', '.join(sorted(ROLES))}", f"{param}.role")
    for key in _REFUSED:
        if value.get(key):
            raise refused(f"`{key}` is not supported", f"{param}.{key}")
    message: dict[str, Any] = {"role": role, "content": _content(value.get("content"), param)}
    if isinstance(value.get("name"), str):
        message["name"] = value["name"]
    if role == "tool":
        message |= _answered(value, param, names)
    elif value.get("tool_call_id"):
        raise refused("only a message of the role tool has a `tool_call_id`", f"{param}.role")
    if role == "assistant":
        message |= _spoken(value, param, names)
    elif value.get("tool_calls"):
        raise refused("only a message of the role assistant has `tool_calls`", f"{param}.role")
    return message


def _answered(value: dict[str, Any], param: str, names: dict[str, str]) -> dict[str, Any]:
    """Return the call that a tool's message answers."""
    call = value.get("tool_call_id")
    if call is None:
        return {}
    if not isinstance(call, str) or call not in names:
        words = f"`{param}.tool_call_id` must be the id of an earlier call in `tool_calls`"
        raise refused(words, f"{param}.tool_call_id")
    return {"tool_call_id": call, "name": names[call]}


def _spoken(value: dict[str, Any], param: str, names: dict[str, str]) -> dict[str, Any]:
    """Return an assistant's reasoning and calls."""
    message: dict[str, Any] = {}
    reasoning = value.get("reasoning_content", value.get("reasoning"))
    if reasoning is not None:
        if not isinstance(reasoning, str):
            raise refused("`reasoning_content` must be a string", f"{param}.reasoning_content")
        message["reasoning_content"] = reasoning
    calls = value.get("tool_calls")
    if not calls:
        return message
    if not isinstance(calls, list):
        raise refused("`tool_calls` must be a list", f"{param}.tool_calls")
    made = [_call(call, f"{param}.tool_calls[{i}]") for i, call in enumerate(calls)]
    names |= {call["id"]: call["function"]["name"] for call in made}
    return {**message, "tool_calls": made}


def _call(value: Any, param: str) -> dict[str, Any]:
    function = value.get("function") if isinstance(value, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise refused(f"`{param}` must be an object with a `function` that has a `name`", param)
    if not isinstance(value.get("id"), str):
        raise refused(f"`{param}.id` must be a string", f"{param}.id")
    if value.get("type", "function") != "function":
        raise refused(f"`{param}.type` must be function", f"{param}.type")
    arguments = read_arguments(function.get("arguments"), f"{param}.function.arguments")
    called = {"name": function["name"], "arguments": arguments}
    return {"id": value["id"], "type": "function", "function": called}


def read_arguments(value: Any, param: str) -> dict[str, Any]:
    """Return a call's arguments from their JSON text; OpenAIError 400."""
    try:
        arguments = json.loads(value) if value else {}
    except (TypeError, ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise refused(f"`{param}` must be the text of a JSON object", param)
    check_depth(arguments, param)
    return arguments


def check_depth(value: Any, param: str) -> None:
    """Check how deep a value nests, which a chat template may write; OpenAIError 400."""
    if nests_deeper(value, _DEPTH_MAX):
        raise refused(f"`{param}` may nest at most {_DEPTH_MAX} deep", param)


def _content(value: Any, param: str) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    parts: list[Any] = value if isinstance(value, list) else [None]
    texts = [part["text"] for part in parts if isinstance(part, dict) and _is_text(part)]
    if len(texts) != len(parts):
        raise refused(_other_parts(parts), f"{param}.content")
    return "".join(texts)


def _other_parts(parts: list[Any]) -> str:
    """Return why parts of a message, of which one is no text, are refused."""
    words = "content must be a string or a list of text parts"
    images = any(isinstance(part, dict) and part.get("type") in _IMAGES for part in parts)
    return f"images are not supported: {words}" if images else words


def _is_text(part: dict[str, Any]) -> bool:
    kinds = ("text", "input_text", "output_text")
    return part.get("type") in kinds and isinstance(part.get("text"), str)
