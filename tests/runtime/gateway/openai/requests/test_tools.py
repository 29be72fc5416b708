"""What chat requests may say of tools and reasoning, and the jobs they become."""

import json
from typing import Any

import msgpack
import pytest
from symphony_runtime.config.limits import TenantLimits
from symphony_runtime.gateway.openai.completions import call_id
from symphony_runtime.gateway.openai.errors import OpenAIError
from symphony_runtime.gateway.openai.formats import TOOL_FORMATS, AnswerFormat
from symphony_runtime.gateway.openai.requests.json_fallback import tell_tools
from symphony_runtime.gateway.openai.requests.limits import Model, RequestLimits
from symphony_runtime.gateway.openai.requests.parsing import ParsedRequest, parse_chat

HERMES = AnswerFormat(TOOL_FORMATS[0], ("<think>", "</think>"), {"<tool_call>": 9})
PLAIN = AnswerFormat()
LIMITS = RequestLimits.of(TenantLimits())
USER = {"role": "user", "content": "hi"}
FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object"}}
TOOLS = [{"type": "function", "function": FUNCTION}]
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}}
CALLED = [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}]
DEEP: dict[str, Any] = {}
for _ in range(600):
    DEEP = {"a": DEEP}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "18"}]}


def parse(form: AnswerFormat = HERMES, **fields: Any) -> ParsedRequest:
    model = Model("m", 1_000, (0,), 2_048, answers=form)
    return parse_chat({"model": "m", "messages": [USER], **fields}, model, LIMITS)


def job(form: AnswerFormat = HERMES, **fields: Any) -> dict[str, Any]:
    unpacked: dict[str, Any] = msgpack.unpackb(parse(form, **fields).job, strict_map_key=False)
    return unpacked


def conversation(form: AnswerFormat = HERMES, **fields: Any) -> Any:
    return msgpack.unpackb(job(form, **fields)["conversation"])


def refused(**fields: Any) -> OpenAIError:
    with pytest.raises(OpenAIError) as error:
        parse(**fields)
    assert error.value.status == 400
    return error.value


def test_chat_without_tools_is_rendered_by_chat_and_split_only_if_the_model_reasons() -> None:
    plain = job(PLAIN)
    assert msgpack.unpackb(plain["messages"]) == [USER]
    assert not {"conversation", "calls", "think", "spelt", "budget", "constraint"} & set(plain)
    assert job(PLAIN, tools=[], tool_choice="auto", parallel_tool_calls=False) == plain
    assert job(PLAIN, tools=TOOLS, tool_choice="none") == plain
    assert job()["think"] == ["<think>", "</think>"]


def test_tools_go_to_the_template_and_their_format_to_the_parser() -> None:
    made = job(tools=[{"type": "function", "function": {**FUNCTION, "strict": False}}])
    assert msgpack.unpackb(made["conversation"]) == {"messages": [USER], "tools": TOOLS}
    assert made["calls"] == {
        "begin": "<tool_call>", "end": "</tool_call>", "args": "", "listed": False, "bare": False,
        "names": ["f"], "single": False,
    }  # fmt: skip
    assert "constraint" not in made
    assert job(tools=TOOLS, parallel_tool_calls=False)["calls"]["single"]


def test_call_and_result_are_messages_of_the_template() -> None:
    messages = conversation(messages=[*CALLED, RESULT])["messages"]
    assert messages[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": [1]}}
    assert messages[2] == {"role": "tool", "content": "18", "tool_call_id": "c1", "name": "f"}
    thought = {"role": "assistant", "content": "x", "reasoning_content": "y"}
    assert conversation(messages=[USER, thought])["messages"][1] == thought


def test_fallback_tells_tools_calls_and_results_in_texts() -> None:
    messages = conversation(PLAIN, messages=[*CALLED, RESULT, RESULT], tools=TOOLS)["messages"]
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
    assert '{"name": "f", "description": "d", "parameters"' in messages[0]["content"]
    assert messages[2]["content"] == '{"name": "f", "arguments": {"a": [1]}}'
    assert messages[3]["content"] == "Result of f: 18\nResult of f: 18"
    system = {"role": "system", "content": "Be kind."}
    told = tell_tools([system, USER], TOOLS)
    assert told[0]["content"].startswith("Be kind.\n\nYou can call functions.")
    assert system["content"] == "Be kind.", "the request's own is left alone"


def test_forced_calls_have_a_constraint_and_turn_reasoning_off() -> None:
    made = job(tools=TOOLS, tool_choice="required")
    kind, grammar, origin = made["constraint"]
    assert (kind, origin) == (2, "tools")
    assert b"<[9]>" in grammar, "the marker is a token"
    assert made["schemas"] == [["tools: f", b'{"type": "object"}']]
    assert msgpack.unpackb(made["conversation"])["variables"] == {
        "enable_thinking": False, "thinking": False,
    }  # fmt: skip
    named = job(tools=TOOLS, tool_choice={"type": "function", "function": {"name": "f"}})
    assert named["calls"]["single"]


def test_reasoning_options_become_variables_and_a_budget() -> None:
    assert conversation(reasoning_effort="none")["variables"] == {
        "reasoning_effort": "none", "enable_thinking": False, "thinking": False,
    }  # fmt: skip
    given = {"enable_thinking": False}
    mixed = conversation(reasoning_effort="high", chat_template_kwargs=given)["variables"]
    assert mixed == {"reasoning_effort": "high", "enable_thinking": False, "thinking": True}
    assert job(thinking_token_budget=5)["budget"] == 5
    assert "budget" not in job(PLAIN, thinking_token_budget=5)


def test_continued_message_reaches_the_template() -> None:
    begun = [USER, {"role": "assistant", "content": "It "}]
    made = conversation(messages=begun, continue_final_message=True)
    assert made == {"messages": begun, "continue_final_message": True}
    assert conversation(add_generation_prompt=False)["add_generation_prompt"] is False


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": TOOLS * 2}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "f", "more": 1}}]},
         "tools.0.function.more"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "required", "guided_regex": "a"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "required", "min_tokens": 1}, "response_format"),
        ({"messages": [USER, {**RESULT, "tool_call_id": "c2"}]}, "messages[1].tool_call_id"),
        ({"messages": [{**USER, "tool_calls": [CALL]}]}, "messages[0].role"),
        ({"messages": [{"role": "assistant", "tool_calls": [{**CALL, "id": 5}]}]},
         "messages[0].tool_calls[0].id"),
        ({"messages": [{"role": "assistant", "tool_calls": [{**CALL, "type": "web"}]}]},
         "messages[0].tool_calls[0].type"),
        ({"messages": [{"role": "assistant", "content": "x", "reasoning_content": 5}]},
         "messages[0].reasoning_content"),
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"thinking_token_budget": -1}, "thinking_token_budget"),
        ({"chat_template_kwargs": {"bos_token": "x"}}, "chat_template_kwargs"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"chat_template_kwargs": {"a": 1 << 70}}, None),
        ({"chat_template_kwargs": {"a": DEEP}}, "chat_template_kwargs"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": DEEP}}]},
         "tools"),
        ({"messages": [{"role": "assistant", "tool_calls": [
            {**CALL, "function": {"name": "f", "arguments": json.dumps(DEEP)}}]}]},
         "messages[0].tool_calls[0].function.arguments"),
    ],
)  # fmt: skip
def test_wrong_field_is_refused_by_name(fields: dict[str, Any], param: str | None) -> None:
    assert refused(**fields).param == param


def test_call_id_is_the_same_each_time_and_as_long_as_the_family_wants() -> None:
    assert call_id("chatcmpl-1", 0, 0, 24) == call_id("chatcmpl-1", 0, 0, 24)
    assert call_id("chatcmpl-1", 0, 0, 24) != call_id("chatcmpl-1", 0, 1, 24)
    short = call_id("chatcmpl-1", 0, 0, 9)
    assert (len(short), short.isalnum()) == (9, True)
    assert parse(AnswerFormat(TOOL_FORMATS[1])).call_id_characters == 9
