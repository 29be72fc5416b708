"""Tools of a request: their definitions, the choice among them, and what holds the model to it."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import Field
from symphony_kernel.protocol.limits import CONSTRAINT_BYTES_MAX, OPENAI_TOOLS_MAX

from symphony_runtime.gateway.openai.errors import refused
from symphony_runtime.gateway.openai.formats import AnswerFormat
from symphony_runtime.gateway.openai.requests.messages import check_depth
from symphony_runtime.validation import FieldError, StrictModel, check_model

_LARK: Final = 2
# Between the tokens of a call's JSON: as families' templates write it, and nothing without end.
_SPACING: Final = {
    "x-guidance": {
        "whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ",
    }
}  # fmt: skip
_ANY: Final[dict[str, Any]] = {"type": "object"}
FunctionName = Annotated[str, Field(pattern="^[a-zA-Z0-9_-]{1,64}$")]


class Function(StrictModel):
    """A function that a model may call; `parameters` is the JSON schema of its arguments."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(StrictModel):
    """A tool of a request."""

    type: Literal["function"]
    function: Function


class NamedFunction(StrictModel):
    """The name of a tool that has to be called."""

    name: str


class NamedTool(StrictModel):
    """The choice of one tool."""

    type: Literal["function"]
    function: NamedFunction


class NamedResponseTool(StrictModel):
    """The choice of one tool on `/v1/responses`."""

    type: Literal["function", "custom"]
    name: str


ResponseToolChoice = Literal["none", "auto", "required"] | NamedResponseTool
Tools = Annotated[list[Tool], Field(max_length=OPENAI_TOOLS_MAX)]
ToolChoice = Literal["none", "auto", "required"] | NamedTool


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of a request that may be called. `forced`: one of them has to be."""

    tools: tuple[Function, ...] = ()
    definitions: tuple[dict[str, Any], ...] = ()  # as the chat template gets them
    forced: bool = False
    single: bool = False

    @property
    def held(self) -> bool:
        """Whether calls have to follow their schemas."""
        return self.forced or any(tool.strict for tool in self.tools)


def read_tool_use(
    tools: Sequence[Tool], choice: ToolChoice | NamedResponseTool | None, *, parallel: bool
) -> ToolUse:
    """Return the tools that an answer may call; OpenAIError 400."""
    functions = [tool.function for tool in tools]
    names = [function.name for function in functions]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise refused(f"`tools` has two functions with the name {twice[0]!r}", "tools")
    for function in functions:
        check_depth(function.parameters, "tools")
    if not functions:
        if choice in (None, "none", "auto"):
            return ToolUse()
        raise refused("`tool_choice` needs `tools`", "tool_choice")
    definitions = tuple(map(_definition, functions))
    if choice == "none":
        return ToolUse()
    if isinstance(choice, NamedTool | NamedResponseTool):
        name = choice.function.name if isinstance(choice, NamedTool) else choice.name
        if name not in names:
            words = f"`tool_choice` names {name!r}, which is not in `tools`"
            raise refused(words, "tool_choice")
        chosen = functions[names.index(name)]
        return ToolUse((chosen,), definitions, forced=True, single=True)
    return ToolUse(tuple(functions), definitions, choice == "required", not parallel)


def check_tools(model: type[StrictModel], value: Any, param: str) -> Any:
    """Return a value as a model of this module; OpenAIError 400 with its path."""
    try:
        return check_model(model, value, null=False)
    except FieldError as error:
        raise refused(f"`{param}`: {error}", param) from error


def hold_calls(use: ToolUse, form: AnswerFormat, job: dict[str, Any], answer: str | None) -> None:
    """Put the constraint of the calls into a job; `answer` is a JSON schema of other answers.

    Raises OpenAIError: 400, the schemas are too long.
    """
    rules = _call_rules(use, form)
    begin = form.literal(form.tools.begin)
    calls = _calls(use, form, begin)
    if use.forced:
        start = calls
    elif answer is not None:
        start = f"{calls} | answer"
        rules.append(f"answer: %json {json.dumps(_SPACING | json.loads(answer))}")
    elif form.tools.bare:
        start = f"{calls} | TEXT"
        rules.append(r"TEXT: /([^{ \n\r\t](.|\n)*)?/")
    elif begin.startswith("<["):  # a token, which no text has
        start = f"TEXT | TEXT {calls}"
        rules.append(r"TEXT: /(.|\n)*/")
    else:
        start = f"TEXT | {_calls(use, form, 'trigger')}"
        rules.append(rf"trigger[lazy]: /(.|\n)*/ {begin}")
        rules.append(rf"TEXT: /(.|\n)*/ & ~/(.|\n)*{re.escape(form.tools.begin)}(.|\n)*/")
    grammar = "\n".join([f"start: {start}", *rules]).encode("utf-8", "surrogatepass")
    if len(grammar) > CONSTRAINT_BYTES_MAX:
        raise refused(f"the schemas of `tools` have at most {CONSTRAINT_BYTES_MAX} bytes", "tools")
    job["constraint"] = [_LARK, grammar, "tools"]
    job["schemas"] = [
        [f"tools: {tool.name}", json.dumps(tool.parameters).encode("utf-8", "surrogatepass")]
        for tool in use.tools
        if tool.parameters and _is_held(use, tool)
    ]


def _calls(use: ToolUse, form: AnswerFormat, begin: str) -> str:
    """Return the part of a grammar's rule for one or more calls; `begin` opens the first."""
    tools, one = form.tools, "(" + "|".join(f"call_{i}" for i in range(len(use.tools))) + ")"
    marked = bool(tools.end or tools.args)
    again = f"{form.literal(tools.begin)} {one}" if marked else one
    if tools.between:
        again = f"{json.dumps(tools.between)} {again}"
    repeats = (tools.between or tools.args) and not use.single
    more = f" ({again})*" if repeats else ""
    if tools.listed:
        return f'{begin} " "? "[" {one}{more} "]"'
    return f"{begin} {one}{more}" if marked else f"{one}{more}"


def _call_rules(use: ToolUse, form: AnswerFormat) -> list[str]:
    """Return the rules of each tool's call, without what opens it, and of its arguments."""
    tools, rules = form.tools, []
    for number, tool in enumerate(use.tools):
        schema = tool.parameters if tool.parameters and _is_held(use, tool) else _ANY
        head = f'{tools.opened}{{"name": {json.dumps(tool.name)}, "{tools.arguments}": '
        call = f"{json.dumps(head)} args_{number} {json.dumps('}' + tools.closed)}"
        if tools.args:
            call = f"{json.dumps(tool.name)} {form.literal(tools.args)} args_{number}"
        if tools.end:
            call += f" {form.literal(tools.end)}"
        rules += [f"call_{number}: {call}", f"args_{number}: %json {json.dumps(_SPACING | schema)}"]
    return rules


def _is_held(use: ToolUse, tool: Function) -> bool:
    return use.forced or bool(tool.strict)


def _definition(function: Function) -> dict[str, Any]:
    described = {"name": function.name}
    if function.description is not None:
        described["description"] = function.description
    shown: dict[str, Any] = {**described, "parameters": function.parameters or _EMPTY}
    return {"type": "function", "function": shown}


_EMPTY: Final[dict[str, Any]] = {"type": "object", "properties": {}}
