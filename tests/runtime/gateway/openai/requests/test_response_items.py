"""Input items of a response become messages of a chat."""

from typing import Any

import pytest
from symphony_runtime.gateway.openai.errors import OpenAIError
from symphony_runtime.gateway.openai.requests.response_items import read_items

USER = {"role": "user", "content": "q"}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [],
           "content": [{"type": "reasoning_text", "text": "hm"}]}  # fmt: skip
SAID = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]}
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
OTHER = {**CALL, "call_id": "c2", "name": "g"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "18"}


def test_reasoning_text_and_calls_in_a_row_are_one_message() -> None:
    _, message, result = read_items([USER, THOUGHT, SAID, CALL, OTHER, OUTPUT], "input")
    assert (message["reasoning_content"], message["content"]) == ("hm", "a")
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["f", "g"]
    assert result == {"role": "tool", "content": "18", "tool_call_id": "c1", "name": "f"}


def test_messages_of_the_assistant_in_a_row_stay_apart() -> None:
    read = read_items([USER, SAID, SAID, CALL, OUTPUT, SAID], "input")
    assert [message["role"] for message in read] == [
        "user", "assistant", "assistant", "tool", "assistant",
    ]  # fmt: skip
    assert "tool_calls" not in read[1]


def test_calls_of_custom_tools_and_namespaces_are_calls_of_functions() -> None:
    custom = {"type": "custom_tool_call", "call_id": "c1", "name": "shell", "input": "ls é"}
    spaced = {**OTHER, "namespace": "box"}
    output = {"type": "custom_tool_call_output", "call_id": "c1",
              "output": [{"type": "input_text", "text": "a"}]}  # fmt: skip
    _, message, result = read_items([USER, custom, spaced, output], "input")
    called = [call["function"] for call in message["tool_calls"]]
    assert called == [
        {"name": "shell", "arguments": {"input": "ls é"}}, {"name": "box__g", "arguments": {}},
    ]  # fmt: skip
    assert (result["name"], result["content"]) == ("shell", "a")


def test_items_of_the_request_are_left_alone() -> None:
    said = {"role": "assistant", "content": None}
    read_items([USER, said, CALL], "input")
    assert said == {"role": "assistant", "content": None}


@pytest.mark.parametrize(
    ("items", "param"),
    [
        ([USER, CALL, OTHER, {**OUTPUT, "call_id": "c9"}], "input[3].tool_call_id"),
        ([USER, {"type": "image_generation_call"}], "input[1]"),
        (
            [USER, {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": 5}],
            "input[1].tool_calls[0].function.arguments",
        ),
        ([USER, {**CALL, "arguments": "["}], "input[1].tool_calls[0].function.arguments"),
        ([5], "input[0]"),
        ([], "input"),
        (7, "input"),
    ],
)
def test_wrong_item_is_refused_by_its_place(items: Any, param: str) -> None:
    with pytest.raises(OpenAIError) as refused:
        read_items(items, "input")
    assert refused.value.param == param
