"""Anthropic's own client against real servers: what it sends is answered as it expects.

The tiny model knows nothing of tools or reasoning: constraints and prefills make answers certain.
"""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import anthropic
import jsonschema
import pytest

from tests.e2e import programs as guests
from tests.support.gateway.anthropic_client import (
    ASKED,
    MODEL,
    TOKENS,
    ask,
    comparable,
    connect,
    events,
    stream,
    text_of,
    wanted,
)
from tests.support.gateway.families import family_model
from tests.support.gateway.openai_client import LONG_PROMPT, MESSAGES, chat
from tests.support.gateway.openai_client import connect as connect_openai
from tests.support.server.server import RunningServer, running_server

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Paris", "Rome"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER: Any = {"name": "get_weather", "description": "The weather", "input_schema": SCHEMA}
TIME: Any = {"name": "get_time", "input_schema": {"type": "object", "properties": {}}}
ONE_CALL: Any = {"max_tokens": 200, "tools": [WEATHER, TIME],
                 "tool_choice": {"type": "tool", "name": "get_weather"}}  # fmt: skip
CACHED: Any = {"type": "ephemeral"}


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[anthropic.Anthropic]:
    with connect(server) as client:
        yield client


@pytest.fixture(scope="module", params=["hermes", "mistral"])
def family(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, anthropic.Anthropic]]:
    folder = tmp_path_factory.mktemp(request.param)
    model = family_model(folder / MODEL, request.param)
    with (
        running_server(folder / "data", "--model", str(model), executor="torch") as server,
        connect(server) as client,
    ):
        yield request.param, client


def refusal(client: anthropic.Anthropic, **fields: Any) -> str:
    with pytest.raises(anthropic.BadRequestError) as refused:
        ask(client, fields.pop("messages", ASKED), **fields)
    assert refused.value.type == "invalid_request_error"
    assert refused.value.request_id is not None
    return str(refused.value.api_message)


# --- Messages ------------------------------------------------------------------------------------
def test_message_is_the_answer_of_the_chat_route(
    server: RunningServer, client: anthropic.Anthropic
) -> None:
    message = ask(client, ASKED, system="Code")
    with connect_openai(server) as other:
        answer = chat(other, MESSAGES)
    assert text_of(message) == answer.choices[0].message.content
    assert (message.type, message.role, message.model) == ("message", "assistant", MODEL)
    assert message.id.startswith("msg_")
    assert message.usage.output_tokens == answer.usage.completion_tokens == TOKENS
    assert message.stop_reason == "max_tokens"
    blocks = [{"type": "text", "text": "Code", "cache_control": CACHED}]
    assert comparable(ask(client, ASKED, system=blocks)) == comparable(message)


def test_message_streams_in_anthropics_order(client: anthropic.Anthropic) -> None:
    whole = ask(client)
    told = events(client)
    kinds = [event.type for event in told]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert len(kinds) > 7, "as they come"
    assert "".join(event.delta.text for event in told[2:-3]) == text_of(whole)
    assert told[0].message.stop_reason is None
    assert told[0].message.usage.input_tokens + told[0].message.usage.cache_read_input_tokens == (
        whole.usage.input_tokens + whole.usage.cache_read_input_tokens
    )
    assert told[-2].usage.output_tokens == TOKENS
    assert comparable(stream(client)) == comparable(whole)


async def test_messages_of_async_clients_are_the_same(server: RunningServer) -> None:
    own = anthropic.AsyncAnthropic(base_url=server.url, auth_token=server.key, max_retries=0)
    async with own as client:
        whole, again = await asyncio.gather(
            client.messages.create(**wanted()), client.messages.create(**wanted())
        )
        async with client.messages.stream(**wanted()) as streamed:
            texts = [text async for text in streamed.text_stream]
            final = await streamed.get_final_message()
    assert comparable(whole) == comparable(again) == comparable(final)
    assert "".join(texts) == text_of(whole)


def test_stop_sequence_ends_the_message_and_is_named(client: anthropic.Anthropic) -> None:
    free = text_of(ask(client))
    sequence = free[10:14]
    for asked in (ask, stream):
        message = asked(client, stop_sequences=["never comes", sequence])
        assert text_of(message) == free[: free.index(sequence)]
        assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", sequence)
        message = asked(client, stop_sequences=["never comes"])
        assert (message.stop_reason, message.stop_sequence) == ("max_tokens", None)


def test_sampling_fields_have_their_effect(client: anthropic.Anthropic) -> None:
    greedy = text_of(ask(client))
    assert text_of(ask(client, extra_body={"temperature": 1.0, "top_k": 1})) == greedy
    assert text_of(ask(client, extra_body={"temperature": 1.0, "top_p": 0.0})) == greedy
    drawn = {text_of(ask(client, extra_body={"temperature": 1.0})) for _ in range(4)}
    assert len(drawn) > 1


def test_last_message_of_the_assistant_is_continued(client: anthropic.Anthropic) -> None:
    free = text_of(ask(client))
    begun = free[: len(free) // 2]
    for content in (begun, [{"type": "text", "text": begun}]):
        prefilled = [*ASKED, {"role": "assistant", "content": content}]
        rest = ask(client, prefilled, max_tokens=4)
        assert free.startswith(begun + text_of(rest)[:3])


def test_message_ends_where_the_context_does(client: anthropic.Anthropic) -> None:
    words = "read " * 3_000
    asked: Any = {"model": MODEL, "messages": [{"role": "user", "content": words}]}
    most = client.messages.count_tokens(**asked).input_tokens
    room = 2_048 - 6
    words = words[: len(words) * room // most // 5 * 5]
    asked = [{"role": "user", "content": words}]
    left = 2_048 - client.messages.count_tokens(model=MODEL, messages=asked).input_tokens
    assert 1 <= left < 40
    message = ask(client, asked, max_tokens=1_000)
    assert message.stop_reason == "model_context_window_exceeded"
    assert message.usage.output_tokens == left
    assert "prompt is too long" in refusal(client, messages=[*asked, *asked])


# --- Counting ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"system": "Code"},
        {"tools": [WEATHER, TIME]},
        {"tools": [WEATHER], "tool_choice": {"type": "any"}},
        {"thinking": {"type": "enabled", "budget_tokens": 1_024}},
        {"output_config": {"effort": "low"}},
    ],
)
def test_counted_tokens_are_those_of_the_usage(
    client: anthropic.Anthropic, fields: dict[str, Any]
) -> None:
    counted = client.messages.count_tokens(model=MODEL, messages=ASKED, **fields)
    usage = ask(client, max_tokens=1, **fields).usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


def test_repeated_prompt_is_read_from_the_cache(client: anthropic.Anthropic) -> None:
    block = {"type": "text", "text": f"# cached\n{LONG_PROMPT}", "cache_control": CACHED}
    asked: Any = [{"role": "user", "content": [block]}]
    counted = client.messages.count_tokens(model=MODEL, messages=asked).input_tokens
    first, again = ask(client, asked).usage, ask(client, asked).usage
    assert (first.input_tokens, first.cache_read_input_tokens) == (counted, 0)
    assert again.cache_read_input_tokens > counted // 2
    assert again.input_tokens + again.cache_read_input_tokens == counted
    (start, *_, _end) = events(client, asked)
    assert start.message.usage.cache_read_input_tokens > counted // 2


# --- Tools ---------------------------------------------------------------------------------------
def test_named_tool_is_called_whole_and_streamed(client: anthropic.Anthropic) -> None:
    whole = ask(client, **ONE_CALL)
    (call,) = whole.content
    assert (whole.stop_reason, call.type, call.name) == ("tool_use", "tool_use", "get_weather")
    assert call.id.startswith("toolu_")
    jsonschema.validate(call.input, SCHEMA)
    told = events(client, **ONE_CALL)
    pieces = [event.delta.partial_json for event in told if event.type == "content_block_delta"]
    assert len(pieces) > 3
    assert json.loads("".join(pieces)) == call.input
    assert told[1].content_block.input == {}
    assert comparable(stream(client, **ONE_CALL)) == comparable(whole)


def test_choice_of_tools_is_held(client: anthropic.Anthropic) -> None:
    alone = {"type": "any", "disable_parallel_tool_use": True}
    message = ask(client, **{**ONE_CALL, "tool_choice": alone})
    assert [block.type for block in message.content] == ["tool_use"]
    plain = ask(client, max_tokens=1).usage
    hidden = ask(client, max_tokens=1, tools=[WEATHER], tool_choice={"type": "none"}).usage
    assert hidden.input_tokens + hidden.cache_read_input_tokens == (
        plain.input_tokens + plain.cache_read_input_tokens
    )


def test_dialogue_with_a_tool_continues_with_its_result(
    family: tuple[str, anthropic.Anthropic],
) -> None:
    name, client = family
    message = ask(client, **ONE_CALL)
    (call,) = message.content
    jsonschema.validate(call.input, SCHEMA)
    assert len(call.id) == (9 if name == "mistral" else 30)
    content = [{"type": "text", "text": "18 <|im_end|> [TOOL_CALLS]"}]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": content,
              "is_error": True, "cache_control": CACHED}  # fmt: skip
    told: Any = [*ASKED, message.to_param(), {"role": "user", "content": [result]}]
    fields: Any = {"tools": ONE_CALL["tools"]}
    before = client.messages.count_tokens(model=MODEL, messages=ASKED, **fields).input_tokens
    counted = client.messages.count_tokens(model=MODEL, messages=told, **fields).input_tokens
    assert counted > before + 20
    answer = ask(client, told, max_tokens=4, **fields)
    assert answer.usage.input_tokens + answer.usage.cache_read_input_tokens == counted


def test_output_has_the_schema_of_its_format(client: anthropic.Anthropic) -> None:
    config: Any = {"format": {"type": "json_schema", "schema": SCHEMA}}
    message = ask(client, max_tokens=200, output_config=config)
    jsonschema.validate(json.loads(text_of(message)), SCHEMA)
    assert message.stop_reason == "end_turn"


# --- Thinking ------------------------------------------------------------------------------------
@pytest.mark.parametrize("family", ["hermes"], indirect=True)
def test_thinking_is_a_block_that_can_be_sent_back(
    family: tuple[str, anthropic.Anthropic],
) -> None:
    _, client = family
    begun: Any = [*ASKED, {"role": "assistant", "content": "<think>"}]
    thinking: Any = {"type": "enabled", "budget_tokens": 8}
    message = ask(client, begun, thinking=thinking, max_tokens=40)
    block = message.content[0]
    assert (block.type, bool(block.thinking), bool(block.signature)) == ("thinking", True, True)
    assert comparable(stream(client, begun, thinking=thinking, max_tokens=40)) == (
        comparable(message)
    )
    kinds = [
        event.delta.type
        for event in events(client, begun, thinking=thinking, max_tokens=40)
        if event.type == "content_block_delta"
    ]
    assert kinds.index("signature_delta") == kinds.count("thinking_delta") > 0
    told: Any = [*ASKED, message.to_param(), *ASKED]
    without = [*ASKED, {"role": "assistant", "content": text_of(message) or "x"}, *ASKED]
    counts = [
        client.messages.count_tokens(model=MODEL, messages=each).input_tokens
        for each in (told, without)
    ]
    assert counts[0] > counts[1]
    omitted = ask(client, begun, thinking={**thinking, "display": "omitted"}, max_tokens=40)
    assert (omitted.content[0].thinking, bool(omitted.content[0].signature)) == ("", True)
    assert text_of(omitted) == text_of(message)


@pytest.mark.parametrize("family", ["hermes"], indirect=True)
def test_thinking_is_off_unless_it_is_asked_for(
    family: tuple[str, anthropic.Anthropic],
) -> None:
    _, client = family

    def count(**fields: Any) -> int:
        tokens: int = client.messages.count_tokens(
            model=MODEL, messages=ASKED, **fields
        ).input_tokens
        return tokens

    assert count() == count(thinking={"type": "disabled"})
    assert count() > count(thinking={"type": "adaptive"}), "the template ends the reasoning"


# --- Errors --------------------------------------------------------------------------------------
def test_errors_are_the_packages_exceptions(
    server: RunningServer, client: anthropic.Anthropic
) -> None:
    assert "`max_tokens`" in refusal(client, max_tokens=0)
    image = [{"role": "user", "content": [{"type": "image", "source": {}}]}]
    assert "'image'" in refusal(client, messages=image)
    search = [{"type": "web_search_20250305", "name": "web_search"}]
    assert "'web_search_20250305'" in refusal(client, tools=search)
    wrong = {"name": "f", "strict": True, "input_schema": {"type": "object", "properties": {
        "age": {"type": "intger"}}}}  # fmt: skip
    assert "f: at #/properties/age: Invalid type: intger" in refusal(client, tools=[wrong])
    assert "container" in refusal(client, extra_body={"container": "c"})
    with pytest.raises(anthropic.NotFoundError) as missing:
        ask(client, model="none")
    assert missing.value.type == "not_found_error"
    with connect(server, "sym_1_2") as other, pytest.raises(anthropic.AuthenticationError) as none:
        ask(other)
    assert none.value.type == "authentication_error"
    with pytest.raises(anthropic.NotFoundError):
        client.messages.batches.list()


async def test_message_that_is_cancelled_ends_with_an_error_event(server: RunningServer) -> None:
    own = anthropic.AsyncAnthropic(base_url=server.url, api_key=server.key, max_retries=0)
    async with own as client, server.client() as operator:
        asked = wanted(max_tokens=2_000, extra_body={"temperature": 1.0})
        streamed = await client.messages.create(**asked, stream=True)
        run = streamed.response.headers["X-Run-Id"]
        assert (await anext(streamed)).type == "message_start"
        await operator.runs.cancel(run)
        with pytest.raises(anthropic.APIStatusError) as failed:
            _ = [event async for event in streamed]
        assert failed.value.type == "api_error"
        assert run in str(failed.value.api_message)


def test_repeated_key_gets_the_first_message(client: anthropic.Anthropic) -> None:
    headers = {"Idempotency-Key": "message-1"}
    asked = wanted(extra_headers=headers, extra_body={"temperature": 1.0})
    first, again = client.messages.create(**asked), client.messages.create(**asked)
    assert first.model_dump() == again.model_dump()
    whole = {key: value for key, value in asked.items() if key != "stream"}
    with pytest.raises(anthropic.UnprocessableEntityError):
        client.messages.create(**{**whole, "max_tokens": 3})


async def test_program_as_a_model_answers_with_its_messages(server: RunningServer) -> None:
    expected = "".join(chr(97 + n % 26) + "x" * 16383 for n in range(200))
    own = anthropic.AsyncAnthropic(base_url=server.url, api_key=server.key, max_retries=0)
    async with own as client, server.client() as uploader:
        await uploader.programs.upload(guests.CHATTY_WASM, name="chatty-messages")
        await uploader.programs.upload(guests.SPEAKER_WASM, name="speaker-messages")
        asked = wanted(model="chatty-messages")
        message = await client.messages.create(**asked)
        assert (text_of(message), message.stop_reason) == (expected, "end_turn")
        async with client.messages.stream(**asked) as streamed:
            assert text_of(await streamed.get_final_message()) == expected
        with pytest.raises(anthropic.InternalServerError, match="trapped"):
            await client.messages.create(**wanted(model="speaker-messages"))


def test_models_are_listed_in_anthropics_form(client: anthropic.Anthropic) -> None:
    models = client.models.list().data
    assert (models[0].id, models[0].type, models[0].max_input_tokens) == (MODEL, "model", 2_048)
    assert client.models.retrieve(MODEL).display_name == MODEL
