"""Tools of `/v1/responses`: functions, namespaces of them and custom tools, all told as functions.

A model calls a function by one name and with one object. A function of a namespace gets the name
`<namespace>__<name>`; a custom tool, whose input is a text, becomes a function with a text `input`.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field
from symphony_kernel.protocol.limits import (
    OPENAI_CUSTOM_TOOL_NAME_CHARACTERS_MAX,
    OPENAI_TOOLS_MAX,
)

from symphony_runtime.gateway.openai.errors import refused
from symphony_runtime.gateway.openai.requests.tools import Function, FunctionName, Tool
from symphony_runtime.validation import StrictModel

_SEARCHES: Final = "web_search", "web_search_preview"


class ResponseFunction(Function):
    """A function; `defer_loading` has no effect: the model sees all tools at once."""

    type: Literal["function"]
    defer_loading: bool | None = None


class CustomFormat(StrictModel):
    """What a custom tool's input looks like."""

    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    definition: str | None = None


class CustomTool(StrictModel):
    """A tool whose input is a text."""

    type: Literal["custom"]
    name: FunctionName
    description: str = ""
    format: CustomFormat | None = None
    defer_loading: bool | None = None


class Namespace(StrictModel):
    """Tools that belong together."""

    type: Literal["namespace"]
    name: FunctionName
    description: str = ""
    tools: Annotated[list[ResponseFunction | CustomTool], Field(max_length=OPENAI_TOOLS_MAX)]


class WebSearch(BaseModel):
    """OpenAI's search, which this server does not have: accepted without effect."""

    model_config = ConfigDict(strict=True, frozen=True)
    type: Literal["web_search", "web_search_preview"]


ResponseTool = ResponseFunction | CustomTool | Namespace | WebSearch
ResponseTools = Annotated[list[ResponseTool], Field(max_length=OPENAI_TOOLS_MAX)]
_KINDS: Final = frozenset({"function", "custom", "namespace", *_SEARCHES})


@dataclass(frozen=True, slots=True)
class CalledTool:
    """What a client calls a tool that the model knows under another name, or as a function."""

    name: str
    namespace: str | None
    custom: bool


def check_kinds(tools: Any) -> None:
    """Refuse tools of kinds that are not served by their kind; OpenAIError 400."""
    for tool in tools if isinstance(tools, list) else ():
        kind = tool.get("type") if isinstance(tool, dict) else None
        if isinstance(kind, str) and kind not in _KINDS:
            raise refused(f"tools of type {kind!r} are not supported", "tools")


def read_tools(tools: Iterable[ResponseTool]) -> list[Tool]:
    """Return the tools as functions under the names that the model calls; OpenAIError 400."""
    functions = [function for tool in tools for function in _functions(tool)]
    if len(functions) > OPENAI_TOOLS_MAX:
        raise refused(f"`tools` has at most {OPENAI_TOOLS_MAX} functions", "tools")
    return [Tool(type="function", function=function) for function in functions]


def _functions(tool: ResponseTool) -> Iterator[Function]:
    if isinstance(tool, Namespace):
        for each in tool.tools:
            name = joined_name(tool.name, each.name)
            if len(name) > OPENAI_CUSTOM_TOOL_NAME_CHARACTERS_MAX:
                most = f"at most {OPENAI_CUSTOM_TOOL_NAME_CHARACTERS_MAX} characters"
                raise refused(f"`{tool.name}` and `{each.name}` have together {most}", "tools")
            yield from _functions(each.model_copy(update={"name": name}))
    elif isinstance(tool, CustomTool):
        yield _custom_function(tool)
    elif isinstance(tool, ResponseFunction):
        yield Function(**tool.model_dump(exclude={"type", "defer_loading"}))


def _custom_function(tool: CustomTool) -> Function:
    given: dict[str, Any] = {"type": "string"}
    words = tool.description
    form = tool.format
    if form is not None and form.type == "grammar" and form.definition is not None:
        words += f"\nThe input follows this {form.syntax or 'lark'} grammar:\n{form.definition}"
        if form.syntax == "regex":
            given["pattern"] = f"^(?:{form.definition})$"
    parameters = {
        "type": "object",
        "properties": {"input": given},
        "required": ["input"],
        "additionalProperties": False,
    }
    return Function(name=tool.name, description=words.strip() or None, parameters=parameters)


def joined_name(namespace: str | None, name: str) -> str:
    """Return the name under which a model knows a function of a namespace."""
    return f"{namespace}__{name}" if namespace else name


def called_tools(tools: Any) -> dict[str, CalledTool]:
    """Return the tools of a body, checked or not, that clients know otherwise than the model."""
    called: dict[str, CalledTool] = {}
    for tool in tools if isinstance(tools, list) else ():
        if not isinstance(tool, dict):
            continue
        kind, name = tool.get("type"), str(tool.get("name"))
        if kind == "custom":
            called[name] = CalledTool(name, None, custom=True)
        elif kind == "namespace":
            inner = tool.get("tools")
            for each in inner if isinstance(inner, list) else ():
                if not isinstance(each, dict):
                    continue
                own = str(each.get("name"))
                custom = each.get("type") == "custom"
                called[joined_name(name, own)] = CalledTool(own, name, custom)
    return called


def custom_input(arguments: str) -> str:
    """Return the text in the arguments of a custom tool's call: all of them if there is none."""
    try:
        given = json.loads(arguments)["input"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return arguments
    return given if isinstance(given, str) else arguments


def custom_arguments(given: Any) -> Any:
    """Return the arguments of a custom tool's call from its text."""
    return json.dumps({"input": given}, ensure_ascii=False) if isinstance(given, str) else given
