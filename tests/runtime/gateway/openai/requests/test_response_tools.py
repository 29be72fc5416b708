"""Tools of responses are told to the model as functions."""

from typing import Any

import pytest
from symphony_runtime.gateway.openai.errors import OpenAIError
from symphony_runtime.gateway.openai.requests.bodies import ResponseBody, read_body
from symphony_runtime.gateway.openai.requests.response_tools import (
    CalledTool,
    called_tools,
    check_kinds,
    custom_arguments,
    custom_input,
    read_tools,
)

RUN = {"type": "function", "name": "run", "parameters": {"type": "object"}, "strict": True}
SHELL = {"type": "custom", "name": "shell", "description": "Run a command"}
BOX = {"type": "namespace", "name": "box", "description": "A box", "tools": [RUN, SHELL]}


def functions(*tools: Any) -> list[dict[str, Any]]:
    check_kinds(list(tools))
    body = read_body(ResponseBody, {"model": "m", "input": "q", "tools": list(tools)})
    return [tool.function.model_dump() for tool in read_tools(body.tools)]


def test_tools_of_a_namespace_have_joined_names_and_keep_the_rest() -> None:
    run, shell = functions(BOX)
    assert (run["name"], run["strict"]) == ("box__run", True)
    assert (shell["name"], shell["description"]) == ("box__shell", "Run a command")
    assert called_tools([BOX, RUN, SHELL]) == {
        "box__run": CalledTool("run", "box", custom=False),
        "box__shell": CalledTool("shell", "box", custom=True),
        "shell": CalledTool("shell", None, custom=True),
    }


def test_grammar_of_a_custom_tool_is_told_and_a_regex_is_its_schema() -> None:
    regex = {"type": "grammar", "syntax": "regex", "definition": "a|b"}
    lark = {"type": "grammar", "syntax": "lark", "definition": 'start: "a"'}
    first, second = functions({**SHELL, "format": regex}, {**SHELL, "name": "x", "format": lark})
    assert first["parameters"]["properties"]["input"]["pattern"] == "^(?:a|b)$"
    assert second["parameters"]["properties"]["input"] == {"type": "string"}
    assert 'lark grammar:\nstart: "a"' in second["description"]


def test_search_is_accepted_and_not_told() -> None:
    assert functions({"type": "web_search", "external_web_access": False}) == []


def test_text_of_a_custom_tool_survives_its_arguments() -> None:
    assert custom_input(custom_arguments('a "b"\n')) == 'a "b"\n'
    for odd in ("", "{", "[]", '{"input": 5}', '"x"'):
        assert custom_input(odd) == odd


@pytest.mark.parametrize("tools", [None, 5, "x", [5], [{"type": "namespace"}], [{}], []])
def test_body_that_was_not_checked_has_no_such_tools(tools: Any) -> None:
    assert called_tools(tools) == {}


@pytest.mark.parametrize(
    ("tools", "words"),
    [
        ([{"type": "code_interpreter"}], "code_interpreter"),
        ([{**BOX, "name": "b" * 62}], "64 characters"),
        ([{**BOX, "tools": [RUN] * 100}] * 2, "at most 128"),
    ],
)
def test_tools_that_cannot_be_told_are_refused(tools: Any, words: str) -> None:
    with pytest.raises(OpenAIError, match=words) as refused:
        functions(*tools)
    assert refused.value.param == "tools"
