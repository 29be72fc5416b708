"""A dialogue in Anthropic's blocks, as the messages of a chat; and its tools.

Texts of one message are joined by line breaks, but the assistant's are one text. A user's results
of tools become messages of the role tool. Messages of the same role in a row become one, and the
system's between others a user's: some chat templates want turns to alternate, with one system turn.
"""

import json
from collections.abc import Iterator
from typing import Any, Final

from symphony_runtime.gateway.anthropic.bodies import Choice, ToolDefinition
from symphony_runtime.gateway.openai.errors import OpenAIError, refused
from symphony_runtime.gateway.openai.requests.messages import check_depth
from symphony_runtime.gateway.openai.requests.tools import (
    Function,
    NamedFunction,
    NamedTool,
    Tool,
    ToolChoice,
    check_tools,
)

_ROLES: Final = ("user", "assistant", "system")
_REMINDER: Final = "<system-reminder>\n{}\n</system-reminder>"
# Claude Code puts such a line, which differs between its sessions, before its instructions.
_BILLING: Final = "x-anthropic-billing-header:"


class _Named(Function):
    """A function with a name as long as Anthropic's may be; it is checked."""

    name: str


# --- Messages ------------------------------------------------------------------------------------
def read_dialogue(system: Any, messages: Any) -> list[dict[str, Any]]:
    """Return a dialogue as the messages of a chat; OpenAIError 400."""
    if not isinstance(messages, list) or not messages:
        raise refused("`messages` must be a list of messages, one at least", "messages")
    told = [] if system is None else _system(system)
    names: dict[str, str] = {}  # of the tools, by the ids of their calls
    for i, message in enumerate(messages):
        for each in _turn(message, f"messages.{i}", names):
            if each["role"] == "system" and told and told[-1]["role"] != "system":
                each |= {"role": "user", "content": _REMINDER.format(each["content"])}
            if told and _continues(told[-1], each):
                _join(told[-1], each)
            else:
                told.append(each)
    return told


def _system(system: Any) -> list[dict[str, Any]]:
    texts = [text for text in _texts(system, "system") if not text.startswith(_BILLING)]
    return [{"role": "system", "content": "\n".join(texts)}] if any(texts) else []


def _turn(message: Any, param: str, names: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Yield what a message says, and each result of a tool in it, as messages of a chat."""
    role = message.get("role") if isinstance(message, dict) else None
    if role not in _ROLES:
        raise refused(f"`{param}.role` must be one of {', '.join(_ROLES)}", f"{param}.role")
    content, param = message.get("content"), f"{param}.content"
    if role == "assistant":
        yield _spoken(content, param, names)
    elif role == "system" or isinstance(content, str):
        yield {"role": role, "content": "\n".join(_texts(content, param))}
    else:
        texts: list[str] = []
        for place, block in _blocks(content, param):
            if block["type"] == "text":
                texts.append(_field(block, "text", place))
                continue
            if block["type"] != "tool_result":
                raise _unsupported(block, place)
            if texts:
                yield {"role": "user", "content": "\n".join(texts)}
                texts = []
            yield _result(block, place, names)
        if texts:
            yield {"role": "user", "content": "\n".join(texts)}


def _spoken(content: Any, param: str, names: dict[str, str]) -> dict[str, Any]:
    """Return the assistant's text, reasoning and calls. Redacted reasoning cannot be read."""
    if isinstance(content, str):
        return {"role": "assistant", "content": content}
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for place, block in _blocks(content, param):
        kind = block["type"]
        if kind == "text":
            texts.append(_field(block, "text", place))
        elif kind == "thinking":
            thoughts.append(_field(block, "thinking", place))
        elif kind == "tool_use":
            calls.append(_call(block, place))
        elif kind != "redacted_thinking":
            raise _unsupported(block, place)
    names |= {call["id"]: call["function"]["name"] for call in calls}
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if any(thoughts):
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _call(block: dict[str, Any], param: str) -> dict[str, Any]:
    arguments = block.get("input")
    if not isinstance(arguments, dict):
        raise refused(f"`{param}.input` must be an object", f"{param}.input")
    check_depth(arguments, f"{param}.input")
    called = {"name": _field(block, "name", param), "arguments": arguments}
    return {"id": _field(block, "id", param), "type": "function", "function": called}


def _result(block: dict[str, Any], param: str, names: dict[str, str]) -> dict[str, Any]:
    call = _field(block, "tool_use_id", param)
    if call not in names:
        place = f"{param}.tool_use_id"
        words = f"`{place}` must be the id of an earlier `tool_use`; it is {call[:64]!r}"
        raise refused(words, place)
    content = block.get("content")
    text = "" if content is None else "\n".join(_texts(content, f"{param}.content"))
    if block.get("is_error"):
        text = f"Error: {text}"
    return {"role": "tool", "content": text, "tool_call_id": call, "name": names[call]}


def _continues(before: dict[str, Any], message: dict[str, Any]) -> bool:
    role: str = before["role"]
    return role == message["role"] and role != "tool"


def _join(before: dict[str, Any], message: dict[str, Any]) -> None:
    """Add a message to the one before it, of the same role."""
    before["content"] = "\n".join(filter(None, (before["content"], message["content"])))
    if "reasoning_content" in message:
        thoughts = filter(None, (before.get("reasoning_content"), message["reasoning_content"]))
        before["reasoning_content"] = "\n".join(thoughts)
    if "tool_calls" in message:
        before["tool_calls"] = [*before.get("tool_calls", ()), *message["tool_calls"]]


# --- Blocks --------------------------------------------------------------------------------------
def _texts(content: Any, param: str) -> list[str]:
    """Return the texts of a string, or of a list of text blocks alone."""
    if isinstance(content, str):
        return [content]
    texts = []
    for place, block in _blocks(content, param):
        if block["type"] != "text":
            raise _unsupported(block, place)
        texts.append(_field(block, "text", place))
    return texts


def _blocks(content: Any, param: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the blocks of a content with their places."""
    if not isinstance(content, list):
        raise refused(f"`{param}` must be a string or a list of blocks", param)
    for i, block in enumerate(content):
        if not isinstance(block, dict) or not isinstance(block.get("type"), str):
            raise refused(f"`{param}.{i}` must be an object with a `type`", f"{param}.{i}")
        yield f"{param}.{i}", block


def _field(block: dict[str, Any], name: str, param: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise refused(f"`{param}.{name}` must be a string", f"{param}.{name}")
    return value


def _unsupported(block: dict[str, Any], param: str) -> OpenAIError:
    kind = block["type"][:64]
    return refused(f"`{param}`: blocks of the type {kind!r} are not supported here", param)


# --- Tools ---------------------------------------------------------------------------------------
def read_tools(tools: list[dict[str, Any]]) -> list[Tool]:
    """Return the client's tools as functions; OpenAIError 400: a tool is the server's."""
    return [
        Tool(type="function", function=_function(tool, f"tools.{i}"))
        for i, tool in enumerate(tools)
    ]


def read_choice(choice: Choice | None) -> ToolChoice | None:
    """Return the choice of tools; OpenAIError 400."""
    if choice is None:
        return None
    if (choice.type == "tool") != (choice.name is not None):
        raise refused("`tool_choice.name` is for the type tool, which needs it", "tool_choice")
    if choice.name is not None:
        return NamedTool(type="function", function=NamedFunction(name=choice.name))
    return "required" if choice.type == "any" else "none" if choice.type == "none" else "auto"


def _function(tool: dict[str, Any], param: str) -> Function:
    kind = tool.get("type")
    if isinstance(kind, str) and kind != "custom":
        words = f"`{param}`: tools of the type {kind[:64]!r} are not supported; give its schema"
        raise refused(f"{words} as a tool of the type custom", param)
    given = {name: value for name, value in tool.items() if value is not None}
    checked: ToolDefinition = check_tools(ToolDefinition, given, param)
    description = checked.description
    if checked.input_examples:
        check_depth(checked.input_examples, f"{param}.input_examples")
        lines = [json.dumps(each, ensure_ascii=False) for each in checked.input_examples]
        description = "\n".join([*filter(None, [description]), "Examples of inputs:", *lines])
    return _Named(
        name=checked.name,
        description=description,
        parameters=checked.input_schema,
        strict=checked.strict,
    )
