"""What the bodies of Anthropic's routes may say, and the jobs they become."""

from dataclasses import replace
from typing import Any

import msgpack
import pytest
from symphony_runtime.config.limits import TenantLimits
from symphony_runtime.gateway.anthropic.parsing import parse_count, parse_messages
from symphony_runtime.gateway.openai.errors import OpenAIError
from symphony_runtime.gateway.openai.formats import AnswerFormat
from symphony_runtime.gateway.openai.program_messages import Usage
from symphony_runtime.gateway.openai.requests.limits import Model, RequestLimits
from symphony_runtime.gateway.openai.requests.parsing import parse_chat

MODEL = Model("m", 1_000, (0, 7), 2_048, (3,))
REASONING = replace(MODEL, answers=AnswerFormat(think=("<think>", "</think>")))
LIMITS = RequestLimits.of(TenantLimits())
USER = {"role": "user", "content": "hi"}
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}}
TOOL = {"name": "f", "input_schema": SCHEMA}
FORMAT = {"type": "json_schema", "schema": SCHEMA}
PREFILL = [USER, {"role": "assistant", "content": "Well"}]


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 9, "messages": [USER], **fields}


def job(model: Model = MODEL, **fields: Any) -> dict[str, Any]:
    wanted = parse_messages(body(**fields), model, LIMITS)
    unpacked: dict[str, Any] = msgpack.unpackb(wanted.job, strict_map_key=False)
    return unpacked


def conversation(model: Model = MODEL, **fields: Any) -> dict[str, Any]:
    unpacked: dict[str, Any] = msgpack.unpackb(job(model, **fields)["conversation"])
    return unpacked


def test_job_is_that_of_a_chat_which_tells_and_clips() -> None:
    chat = parse_chat({"model": "m", "max_tokens": 9, "messages": [USER]}, MODEL, LIMITS)
    assert job() == {**msgpack.unpackb(chat.job), "tells": True, "clips": True}
    assert not parse_messages(body(), MODEL, LIMITS).stream
    assert parse_messages(body(stream=True), MODEL, LIMITS).stream


@pytest.mark.parametrize(
    ("fields", "name", "value"),
    [
        ({"temperature": 0}, "sample", None),
        ({"temperature": 0.5, "top_k": 5, "top_p": 0.25}, "sample",
         {"temperature": 0.5, "top_k": 5, "top_p": 0.25, "min_p": 0.0}),
        ({"stop_sequences": ["x", "y"]}, "stop", ["x", "y"]),
        ({"stream": True}, "stream", True),
        ({"output_config": {"format": FORMAT}}, "constraint",
         [0, b'{"type": "object", "properties": {"a": {"type": "string"}}}', "format"]),
    ],
)  # fmt: skip
def test_option_becomes_that_of_the_job(fields: dict[str, Any], name: str, value: Any) -> None:
    assert job(**fields).get(name) == value


@pytest.mark.parametrize(
    "fields",
    [
        {"metadata": {"user_id": "u"}}, {"service_tier": "auto"}, {"speed": "standard"},
        {"cache_control": {"type": "ephemeral"}}, {"container": None}, {"mcp_servers": []},
        {"context_management": {"edits": []}}, {"thinking": {"type": "disabled"}},
        {"system": ""}, {"tools": [], "tool_choice": {"type": "auto"}},
    ],
)  # fmt: skip
def test_field_without_effect_changes_nothing(fields: dict[str, Any]) -> None:
    assert job(**fields) == job()


def test_format_of_the_beta_is_that_of_output_config() -> None:
    assert job(output_format=FORMAT) == job(output_config={"format": FORMAT})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "at least 1; it is 0"),
        ({"max_tokens": 1 << 40}, "the tenant's limit `tokens`"),
        ({"temperature": 1.5}, "temperature"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"top_k": -1}, "top_k"),
        ({"n": 2}, "n"),
        ({"container": "c"}, "container"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"speed": "fast"}, "speed"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
         "context_management"),
        ({"thinking": {"type": "between_tools"}}, "thinking"),
        ({"output_config": {"effort": "most"}}, "effort"),
        ({"output_config": {"format": {"type": "text"}}}, "output_config"),
        ({"tool_choice": {"type": "any"}}, "`tool_choice` needs `tools`"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "'g'"),
        ({"tools": [TOOL, TOOL]}, "two functions"),
        ({"messages": [USER, {"role": "assistant", "content": ""}]}, "which the answer continues"),
        ({"messages": [USER, {"role": "assistant", "content": [
            {"type": "text", "text": "x"},
            {"type": "tool_use", "id": "t", "name": "f", "input": {}}]}]}, "the answer continues"),
    ],
)  # fmt: skip
def test_field_that_is_wrong_is_refused_by_name(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(OpenAIError) as refused:
        job(**fields)
    assert (refused.value.status, words in refused.value.detail) == (400, True), refused.value


def test_last_message_of_the_assistant_is_continued() -> None:
    assert conversation(messages=PREFILL)["continue_final_message"] is True


@pytest.mark.parametrize(
    ("fields", "forced", "single"),
    [
        ({"type": "auto"}, False, False),
        ({"type": "auto", "disable_parallel_tool_use": True}, False, True),
        ({"type": "any", "disable_parallel_tool_use": True}, True, True),
        ({"type": "any"}, True, False),
        ({"type": "tool", "name": "f"}, True, True),
    ],
)
def test_choice_of_tools_holds_the_model(
    fields: dict[str, Any], *, forced: bool, single: bool
) -> None:
    made = job(tools=[TOOL], tool_choice=fields)
    assert ("constraint" in made, made["calls"]["single"]) == (forced, single)
    assert "constraint" in job(tools=[{**TOOL, "strict": True}])


@pytest.mark.parametrize(
    ("fields", "reasons"),
    [
        ({}, False),
        ({"thinking": {"type": "disabled"}}, False),
        ({"thinking": {"type": "adaptive"}}, True),
        ({"thinking": {"type": "enabled", "budget_tokens": 5, "display": "omitted"}}, True),
        ({"thinking": {"type": "adaptive"}, "output_config": {"format": FORMAT}}, False),
        ({"thinking": {"type": "adaptive"}, "tools": [TOOL], "tool_choice": {"type": "any"}},
         False),
    ],
)  # fmt: skip
def test_model_reasons_where_thinking_asks_for_it(fields: dict[str, Any], *, reasons: bool) -> None:
    variables = conversation(REASONING, **fields)["variables"]
    assert variables == {"enable_thinking": reasons, "thinking": reasons}
    budget = fields.get("thinking", {}).get("budget_tokens")
    assert job(REASONING, **fields).get("budget") == budget


def test_effort_is_a_variable_of_the_template() -> None:
    variables = conversation(output_config={"effort": "max"})["variables"]
    assert variables == {"reasoning_effort": "max"}
    assert conversation(REASONING, output_config={"effort": "low"})["variables"] == {
        "reasoning_effort": "low", "enable_thinking": False, "thinking": False,
    }  # fmt: skip


def test_count_has_the_prompt_of_the_message_and_no_other_field() -> None:
    asked = body(system="Code", tools=[TOOL], thinking={"type": "adaptive"}, stop_sequences=[7])
    task = parse_count(asked, REASONING, LIMITS)
    del asked["stop_sequences"]
    made = msgpack.unpackb(parse_messages(asked, REASONING, LIMITS).job)
    counted = msgpack.unpackb(task.job)
    assert counted == {"task": "tokenize", "conversation": made["conversation"]}
    assert task.shape(msgpack.packb([b"\0" * 12, None]), Usage()) == {"input_tokens": 3}
    with pytest.raises(OpenAIError, match="container"):
        parse_count(body(container="c"), MODEL, LIMITS)
    with pytest.raises(OpenAIError, match="messages"):
        parse_count({"model": "m"}, MODEL, LIMITS)
