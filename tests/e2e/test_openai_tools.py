"""Tools and reasoning over the chat route: OpenAI's own client against real servers.

The tiny model knows nothing of tools: constraints make its answers certain.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest

from tests.support.gateway.families import family_model
from tests.support.gateway.openai_client import MODEL, chat, connect, respond
from tests.support.server.server import RunningServer, running_server

CITY: dict[str, Any] = {"type": "string", "enum": ["Paris", "Rome"]}
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": CITY, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
WEATHER = {"name": "get_weather", "description": "The weather", "parameters": PARAMETERS}
TIME = {"name": "get_time", "parameters": NO_PARAMETERS}
TOOLS: Any = [{"type": "function", "function": function} for function in (WEATHER, TIME)]
ASKED: Any = [{"role": "user", "content": "Is it warm?"}]
WANTED: dict[str, Any] = {"max_tokens": 200, "temperature": 1.0, "seed": 3, "tools": TOOLS}
NAMED: Any = {"type": "function", "function": {"name": "get_weather"}}


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with connect(server) as client:
        yield client


@pytest.fixture(scope="module", params=["hermes", "mistral", "mistral11"])
def family(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, openai.OpenAI]]:
    folder = tmp_path_factory.mktemp(request.param)
    model = family_model(folder / MODEL, request.param)
    with (
        running_server(folder / "data", "--model", str(model), executor="torch") as server,
        connect(server) as client,
    ):
        yield request.param, client


def check_weather(call: Any) -> None:
    assert call.type == "function"
    assert call.function.name == "get_weather"
    jsonschema.validate(json.loads(call.function.arguments), PARAMETERS)


def streamed_message(client: openai.OpenAI, **asked: Any) -> dict[str, Any]:
    """Return the message that a stream's deltas make, as OpenAI documents them."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    for chunk in chat(client, asked.pop("messages", ASKED), stream=True, **asked):
        for choice in chunk.choices:
            message["content"] += choice.delta.content or ""
            message["reasoning_content"] += getattr(choice.delta, "reasoning_content", None) or ""
            for delta in choice.delta.tool_calls or []:
                if delta.index == len(message["tool_calls"]):
                    named = {"id": delta.id, "name": delta.function.name, "arguments": ""}
                    message["tool_calls"].append(named)
                message["tool_calls"][delta.index]["arguments"] += delta.function.arguments
            message["finish_reason"] = choice.finish_reason or message.get("finish_reason")
    return message


def test_named_tool_is_called_with_arguments_of_its_schema(client: openai.OpenAI) -> None:
    (choice,) = chat(client, ASKED, **WANTED, tool_choice=NAMED).choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    (call,) = choice.message.tool_calls
    assert re.fullmatch("call_[0-9a-f]{24}", call.id)
    check_weather(call)


def test_named_tool_streams_its_name_and_then_pieces_of_arguments(client: openai.OpenAI) -> None:
    asked = {**WANTED, "tool_choice": NAMED}
    (whole,) = chat(client, ASKED, **asked).choices[0].message.tool_calls
    message = streamed_message(client, **asked)
    assert message["finish_reason"] == "tool_calls"
    (call,) = message["tool_calls"]
    assert (call["name"], call["arguments"]) == (whole.function.name, whole.function.arguments)
    chunks = [chunk for chunk in chat(client, ASKED, stream=True, **asked) if chunk.choices]
    first = chunks[0].choices[0].delta
    assert (first.role, first.tool_calls[0].function.arguments) == ("assistant", "")
    assert sum(bool(chunk.choices[0].delta.tool_calls) for chunk in chunks) > 3
    with client.chat.completions.stream(model=MODEL, messages=ASKED, **asked) as stream:
        final = stream.get_final_completion().choices[0].message
    assert final.tool_calls is not None
    assert final.tool_calls[0].function.arguments == whole.function.arguments


def test_required_tools_are_called_in_each_answer(client: openai.OpenAI) -> None:
    answer = chat(client, ASKED, **WANTED, n=3, tool_choice="required", parallel_tool_calls=False)
    for choice in answer.choices:
        assert choice.finish_reason == "tool_calls"
        (call,) = choice.message.tool_calls
        assert call.function.name in ("get_weather", "get_time")
    ids = [choice.message.tool_calls[0].id for choice in answer.choices]
    assert len(set(ids)) == 3


def test_required_calls_may_be_several(client: openai.OpenAI) -> None:
    lines = '{"name": "get_time", "arguments": {}}\n{"name": "get_weather", "arguments": {"a": 1}}'
    asked = {**WANTED, "extra_body": {"guided_choice": [lines]}}
    (choice,) = chat(client, ASKED, **asked).choices
    names = [call.function.name for call in choice.message.tool_calls]
    assert names == ["get_time", "get_weather"]
    assert choice.message.tool_calls[1].function.arguments == '{"a": 1}'
    message = streamed_message(client, **asked)
    assert [call["name"] for call in message["tool_calls"]] == names
    (single,) = chat(client, ASKED, **asked, parallel_tool_calls=False).choices
    assert [call.function.name for call in single.message.tool_calls] == ["get_time"]
    assert single.finish_reason == "tool_calls"


def test_answer_without_a_call_is_content(client: openai.OpenAI) -> None:
    for text in ('{"city": "Paris"}', "It is {warm}.", '{"name": "Ada", "age": 3}'):
        asked = {**WANTED, "extra_body": {"guided_choice": [text]}}
        (choice,) = chat(client, ASKED, **asked).choices
        assert (choice.message.content, choice.finish_reason) == (text, "stop")
        assert choice.message.tool_calls is None
        assert streamed_message(client, **asked)["content"] == text


def test_strict_tool_is_called_by_its_schema_or_not_at_all(client: openai.OpenAI) -> None:
    strict = [{"type": "function", "function": {**WEATHER, "strict": True}}]
    for seed in range(4):
        answer = chat(client, ASKED, **{**WANTED, "seed": seed, "tools": strict, "max_tokens": 60})
        for call in answer.choices[0].message.tool_calls or []:
            check_weather(call)


def test_tool_choice_none_hides_the_tools(client: openai.OpenAI) -> None:
    plain = chat(client, ASKED).usage
    assert chat(client, ASKED, tools=TOOLS, tool_choice="none").usage == plain
    assert chat(client, ASKED, tools=TOOLS).usage.prompt_tokens > plain.prompt_tokens


def test_dialogue_with_a_tool_continues_with_its_result(
    family: tuple[str, openai.OpenAI],
) -> None:
    name, client = family
    message = chat(client, ASKED, **WANTED, tool_choice=NAMED).choices[0].message
    (call,) = message.tool_calls
    check_weather(call)
    assert len(call.id) == (9 if name.startswith("mistral") else 29)
    told = [*ASKED, message.model_dump(exclude_none=True)]
    told.append({"role": "tool", "tool_call_id": call.id, "content": "18 <|im_end|> [TOOL_CALLS]"})
    answer = chat(client, told, **{**WANTED, "tool_choice": "none", "max_tokens": 8})
    assert answer.usage.prompt_tokens > 20
    assert streamed_message(client, messages=ASKED, **WANTED, tool_choice=NAMED)["tool_calls"]


def test_required_calls_in_a_familys_format_have_their_schemas(
    family: tuple[str, openai.OpenAI],
) -> None:
    _, client = family
    asked = {**WANTED, "tool_choice": "required", "parallel_tool_calls": False, "n": 3}
    for choice in chat(client, ASKED, **asked).choices:
        (call,) = choice.message.tool_calls
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
        if call.function.name == "get_weather":
            check_weather(call)
        else:
            assert call.function.arguments == "{}"


def test_refused_requests_name_the_field(client: openai.OpenAI) -> None:
    def function(**fields: Any) -> list[dict[str, Any]]:
        return [{"type": "function", "function": {"name": "f", **fields}}]

    wrong = {"type": "object", "properties": {"age": {"type": "intger"}}}
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{"}}
    result = {"role": "tool", "tool_call_id": "c9", "content": "x"}
    for fields, param, words in (
        ({"tools": TOOLS * 65}, "tools", "at most 128"),
        ({"tools": [*TOOLS, TOOLS[0]]}, "tools", "'get_weather'"),
        ({"tools": [{"type": "web"}]}, "tools", "type"),
        ({"tools": function(name="a b")}, "tools", "name"),
        ({"tools": function(parameters=[])}, "tools", "parameters"),
        ({"tools": function(parameters=wrong), "tool_choice": "required"}, "tools",
         "f: at #/properties/age: Invalid type: intger"),
        ({"tools": function(parameters=wrong, strict=True)}, "tools", "intger"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "g"}}},
         "tool_choice", "'g'"),
        ({"tools": TOOLS, "tool_choice": "maybe"}, "tool_choice", "required"),
        ({"tool_choice": "required"}, "tool_choice", "tools"),
        ({"tools": TOOLS, "tool_choice": "required", "extra_body": {"guided_regex": "a"}},
         "tool_choice", "guided_"),
        ({"messages": [*ASKED, {"role": "assistant", "tool_calls": [call]}]},
         "messages[1].tool_calls[0].function.arguments", "JSON object"),
        ({"messages": [*ASKED, result]}, "messages[1].tool_call_id", "earlier call"),
        ({"extra_body": {"chat_template_kwargs": {"messages": []}}}, "chat_template_kwargs",
         "'messages'"),
        ({"reasoning_effort": "most"}, "reasoning_effort", "low"),
        ({"extra_body": {"continue_final_message": True}}, "continue_final_message", "assistant"),
    ):  # fmt: skip
        asked = {"messages": ASKED, **fields}
        with pytest.raises(openai.BadRequestError) as refused:
            chat(client, asked.pop("messages"), **asked)
        assert refused.value.param == param, fields
        assert words in refused.value.message, refused.value.message


@pytest.mark.parametrize("family", ["mistral"], indirect=True)
def test_template_that_refuses_a_dialogue_says_why(family: tuple[str, openai.OpenAI]) -> None:
    _, client = family
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    with pytest.raises(openai.BadRequestError, match="length 9"):
        chat(client, [*ASKED, {"role": "assistant", "tool_calls": [call]}], max_tokens=1)


# --- Reasoning -----------------------------------------------------------------------------------
@pytest.mark.parametrize("family", ["hermes"], indirect=True)
def test_reasoning_is_told_apart_from_content_and_calls(family: tuple[str, openai.OpenAI]) -> None:
    _, client = family
    call = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
    thought = "<think>\nwhat time?\n</think>\n\n"
    # A token is not its text in a grammar: they are named by their numbers.
    numbers = {"<think>": 4094, "</think>": 4095, "<tool_call>": 4092, "</tool_call>": 4093}
    for text, content, calls in ((f"{thought}Noon.", "Noon.", 0), (thought + call, None, 1)):
        parts = re.split("(</?[a-z_]+>)", text)
        grammar = " ".join(
            f"<[{numbers[part]}]>" if part in numbers else json.dumps(part)
            for part in parts
            if part
        )
        asked = {**WANTED, "extra_body": {"guided_grammar": f"start: {grammar}"}}
        message = chat(client, ASKED, **asked).choices[0].message
        assert (message.reasoning_content, message.content) == ("what time?", content)
        assert len(message.tool_calls or []) == calls
        streamed = streamed_message(client, **asked)
        assert streamed["reasoning_content"] == "what time?"
        assert (streamed["content"], len(streamed["tool_calls"])) == (content or "", calls)


def thought_of(message: Any) -> str:
    return getattr(message, "reasoning_content", None) or ""


@pytest.mark.parametrize("family", ["hermes"], indirect=True)
def test_reasoning_budget_ends_the_reasoning(family: tuple[str, openai.OpenAI]) -> None:
    _, client = family
    # The prompt ends within reasoning, so the answer begins with it.
    begun = [*ASKED, {"role": "assistant", "content": "<think>"}]
    asked: dict[str, Any] = {"max_tokens": 40, "temperature": 1.0, "seed": 11}
    more = {"continue_final_message": True, "ignore_eos": True}
    free = chat(client, begun, **asked, extra_body=more).choices[0].message
    assert len(free.reasoning_content) > 40
    for budget in (1, 8):
        limited = {**more, "thinking_token_budget": budget}
        answer = chat(client, begun, **asked, extra_body=limited)
        message = answer.choices[0].message
        assert answer.usage.completion_tokens == 40
        assert message.content
        assert free.reasoning_content.startswith(thought_of(message))
        assert len(thought_of(message)) < 10 * budget
        streamed = streamed_message(client, messages=begun, **asked, extra_body=limited)
        assert (streamed["content"], streamed["reasoning_content"]) == (
            message.content, thought_of(message),
        )  # fmt: skip
        # A pass a token, and log-probabilities.
        penal = chat(client, begun, **asked, presence_penalty=0.1, logprobs=True,
                     extra_body=limited).choices[0]  # fmt: skip
        assert penal.message.content
        assert len(penal.logprobs.content) == 40
    none = {**more, "thinking_token_budget": 0}
    message = chat(client, begun, **asked, extra_body=none).choices[0].message
    assert message.content
    assert not thought_of(message)


@pytest.mark.parametrize("family", ["hermes"], indirect=True)
def test_template_arguments_reach_the_template(family: tuple[str, openai.OpenAI]) -> None:
    _, client = family
    usual = chat(client, ASKED, max_tokens=1).usage.prompt_tokens
    off: Any = {"chat_template_kwargs": {"enable_thinking": False}}
    more = chat(client, ASKED, max_tokens=1, extra_body=off).usage.prompt_tokens
    assert more > usual
    effort = chat(client, ASKED, max_tokens=1, reasoning_effort="none").usage.prompt_tokens
    assert effort == more
    assert chat(client, ASKED, max_tokens=1, reasoning_effort="low").usage.prompt_tokens == usual


def test_message_that_continues_is_the_answers_beginning(client: openai.OpenAI) -> None:
    begun = [*ASKED, {"role": "assistant", "content": "import os\n\n\ndef add("}]
    more: Any = {"continue_final_message": True}
    answer = chat(client, begun, max_tokens=12, extra_body=more)
    ended = chat(client, begun, max_tokens=12)
    assert answer.usage.prompt_tokens < ended.usage.prompt_tokens
    assert answer.choices[0].message.content != ended.choices[0].message.content


@pytest.mark.parametrize("family", ["hermes"], indirect=True)
@pytest.mark.parametrize(
    "text", ['<[4094]> "what time?" <[4095]> "I look."', '<[4094]> "what time?"', '"I look."']
)
def test_reasoning_tokens_are_those_up_to_the_reasonings_end(
    family: tuple[str, openai.OpenAI], text: str
) -> None:
    _, client = family
    asked: dict[str, Any] = {**WANTED, "extra_body": {"guided_grammar": f"start: {text}"}}
    (choice,), usage = (answer := chat(client, ASKED, **asked, logprobs=True)).choices, answer.usage
    tokens = [token.token for token in choice.logprobs.content]
    ended = tokens.index("</think>") + 1 if "</think>" in tokens else len(tokens)
    reasoning = ended if "<think>" in tokens else 0
    assert usage.completion_tokens_details.reasoning_tokens == reasoning
    more: Any = {"stream": True, "stream_options": {"include_usage": True}}
    (counted,) = [chunk.usage for chunk in chat(client, ASKED, **asked, **more) if chunk.usage]
    assert counted.completion_tokens_details.reasoning_tokens == reasoning
    wanted = {**RESPONSE_WANTED, "extra_body": {**asked["extra_body"], "seed": 3}}
    response = respond(client, "Is it warm?", **wanted)
    assert response.usage.output_tokens_details.reasoning_tokens == reasoning
    assert client.responses.retrieve(response.id).usage == response.usage


# --- Responses -----------------------------------------------------------------------------------
RESPONSE_TOOLS: Any = [{"type": "function", **function} for function in (WEATHER, TIME)]
RESPONSE_WANTED: dict[str, Any] = {
    "max_output_tokens": 200, "temperature": 1.0, "tools": RESPONSE_TOOLS,
    "extra_body": {"seed": 3},
}  # fmt: skip


def test_response_calls_a_named_tool_and_continues_with_its_output(
    family: tuple[str, openai.OpenAI],
) -> None:
    _, client = family
    named: Any = {"type": "function", "name": "get_weather"}
    response = respond(client, "Is it warm?", **RESPONSE_WANTED, tool_choice=named)
    assert (response.status, response.output_text) == ("completed", "")
    (call,) = response.output
    assert (call.type, call.name, call.status) == ("function_call", "get_weather", "completed")
    jsonschema.validate(json.loads(call.arguments), PARAMETERS)
    told = [
        {"role": "user", "content": "Is it warm?"},
        call.model_dump(exclude_none=True),
        {"type": "function_call_output", "call_id": call.call_id, "output": "18"},
    ]
    answer = respond(client, told, **{**RESPONSE_WANTED, "max_output_tokens": 8},
                     tool_choice="none")  # fmt: skip
    assert answer.usage.input_tokens > 20


def test_response_streams_the_events_of_a_call(client: openai.OpenAI) -> None:
    asked = {**RESPONSE_WANTED, "tool_choice": {"type": "function", "name": "get_weather"}}
    (whole,) = respond(client, "Is it warm?", **asked).output
    events = list(respond(client, "Is it warm?", stream=True, **asked))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    assert kinds[-3:] == ["response.function_call_arguments.done", "response.output_item.done",
                          "response.completed"]  # fmt: skip
    assert set(kinds[3:-3]) == {"response.function_call_arguments.delta"}
    assert events[2].item.name == "get_weather"
    assert "".join(event.delta for event in events[3:-3]) == whole.arguments
    assert events[-3].arguments == events[-2].item.arguments == whole.arguments
    assert events[-1].response.output[0].arguments == whole.arguments


@pytest.mark.parametrize("family", ["hermes"], indirect=True)
def test_response_has_reasoning_text_and_calls_as_items(
    family: tuple[str, openai.OpenAI],
) -> None:
    _, client = family
    call_text = json.dumps('{"name": "get_time", "arguments": {}}')
    grammar = f'start: <[4094]> "what time?" <[4095]> "I look." <[4092]> {call_text} <[4093]>'
    asked = {**RESPONSE_WANTED, "extra_body": {"guided_grammar": grammar}}
    response = respond(client, "When?", **asked, reasoning={"effort": "low"})
    thought, said, call = response.output
    assert (thought.type, thought.content[0].text) == ("reasoning", "what time?")
    assert (said.type, response.output_text) == ("message", "I look.")
    assert (call.type, call.name, call.arguments) == ("function_call", "get_time", "{}")
    events = list(respond(client, "When?", stream=True, **asked))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    output = events[-1].response.output
    assert [item.type for item in output] == ["reasoning", "message", "function_call"]
    assert output[0].content[0].text == "what time?"
    done = [event for event in events if event.type == "response.output_item.done"]
    assert [event.output_index for event in done] == [0, 1, 2]
    told = [{"role": "user", "content": "When?"}, *(item.model_dump() for item in output)]
    told.append({"type": "function_call_output", "call_id": output[2].call_id, "output": "12"})
    usage = respond(client, told, max_output_tokens=1).usage
    assert usage.input_tokens > 20
