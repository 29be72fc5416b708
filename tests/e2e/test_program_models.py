"""Programs as models: what they refuse, reason, call and count reaches OpenAI's own client."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from tests.e2e import programs as guests
from tests.support.examples import tokens_of
from tests.support.gateway.openai_client import connect
from tests.support.gateway.program_records import (
    CONTENT_FILTER,
    LENGTH,
    OPENING,
    failure,
    reasoning,
    text,
    text_with,
    usage,
)
from tests.support.gateway.scripted import script, upload_scripted
from tests.support.server.server import RunningServer
from tests.support.worker.guests import call, data, drop, main

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name} a file",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
        },
    }
    for name in ("read", "edit")
]
RESPONSE_TOOLS: Any = [{"type": "function", "strict": None, **each["function"]} for each in TOOLS]
LOGPROBS = [[b"caf\xc3", -0.5, [[b"caf\xc3", -0.5], [b"x", -2.0]]], [b"\xa9", None, []]]


def sends(sent: bytes, then: str = "") -> bytes:
    """Return a program that sends these bytes, and then does more."""
    return guests.wasm(main(f"{drop('send', 8, len(sent))} {then} (i32.const 0)", data(8, sent)))


HANG = call("await", call("sleep", 86_400_000))
PROGRAMS = {
    "refuses": sends(OPENING + failure(status=429, code="busy", param="n", message="come later")),
    "breaks-off": sends(OPENING + text("half") + failure(status=400, message="no more")),
    "broken": sends(OPENING + text("half") + b"plain text between", HANG),
    "two": sends(OPENING + text("b", 1, CONTENT_FILTER) + text("a") + usage(90, 40, 3)),
    "scored": sends(OPENING + text_with("caf\xe9", LOGPROBS, finish=LENGTH)),
    "thinks": sends(OPENING + reasoning("hm") + text("so")),
    "answers-first": sends(OPENING + text("done") + usage(1, 0, 1), HANG),
    "receives": guests.PARROT_WASM,
    "plain": sends(b"just text"),
}


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    async def upload() -> None:
        async with server.client() as own:
            await upload_scripted(own)
            for name, wasm in PROGRAMS.items():
                await own.programs.upload(wasm, name=name)

    asyncio.run(upload())
    with connect(server) as client:
        yield client


def user(*steps: dict[str, Any]) -> Any:
    return {"role": "user", "content": f"Do it.\n{script(*steps)}\nThank you."}


def ask(client: openai.OpenAI, messages: Any, model: str = "scripted", **fields: Any) -> Any:
    return client.chat.completions.create(model=model, messages=messages, **fields)


def chunks_of(stream: Any) -> tuple[dict[str, Any], list[Any]]:
    """Return a stream's choice 0 as a message, and its chunks."""
    chunks = list(stream)
    whole: dict[str, Any] = {"content": "", "reasoning": "", "calls": [], "finish": None}
    for chunk in chunks:
        for choice in chunk.choices:
            whole["content"] += choice.delta.content or ""
            whole["reasoning"] += getattr(choice.delta, "reasoning_content", None) or ""
            for each in choice.delta.tool_calls or []:
                if each.id:
                    whole["calls"].append([each.id, each.function.name, ""])
                whole["calls"][each.index][2] += each.function.arguments or ""
            whole["finish"] = choice.finish_reason or whole["finish"]
    return whole, chunks


# --- An agent's conversation, by the SDK's types -------------------------------------------------
STEPS: list[dict[str, Any]] = [
    {"reason": "Look first.", "say": "I read it.", "call": "read", "arguments": {"path": "a.py"}},
    {"expect": "x = 1", "calls": [{"call": "edit", "arguments": {"path": "a.py"}},
                                  {"call": "read", "arguments": {"path": "b.py"}}]},
    {"expect": "nothing", "say": "Done: caf\xe9."},
]  # fmt: skip


def test_chat_of_a_program_calls_tools_turn_by_turn(client: openai.OpenAI) -> None:
    messages: list[Any] = [user(*STEPS)]
    first = ask(client, messages, tools=TOOLS).choices[0]
    (called,) = first.message.tool_calls
    assert (called.function.name, json.loads(called.function.arguments)) == (
        "read", {"path": "a.py"},
    )  # fmt: skip
    assert (first.message.content, first.finish_reason) == ("I read it.", "tool_calls")
    assert first.message.reasoning_content == "Look first."

    streamed, chunks = chunks_of(ask(client, messages, tools=TOOLS, stream=True))
    assert streamed["content"] == "I read it."
    assert streamed["reasoning"] == "Look first."
    assert (streamed["calls"][0][1:], streamed["finish"]) == (
        ["read", called.function.arguments], "tool_calls",
    )  # fmt: skip
    assert len(chunks) > 8, "the model writes the arguments token by token"

    messages += [first.message, {"role": "tool", "tool_call_id": called.id, "content": "x = 1"}]
    second = ask(client, messages, tools=TOOLS).choices[0].message
    assert [each.function.name for each in second.tool_calls] == ["edit", "read"]
    messages += [second, *({"role": "tool", "tool_call_id": each.id, "content": "nothing"}
                           for each in second.tool_calls)]  # fmt: skip
    third = ask(client, messages, tools=TOOLS).choices[0]
    assert (third.message.content, third.finish_reason) == ("Done: caf\xe9.", "stop")
    assert third.message.tool_calls is None


def test_response_of_a_program_calls_tools_turn_by_turn(client: openai.OpenAI) -> None:
    items: list[Any] = [user(*STEPS)]
    for stream in (False, True):
        asked: Any = {"model": "scripted", "input": items, "tools": RESPONSE_TOOLS, "store": False}
        if stream:
            events = list(client.responses.create(**asked, stream=True))
            kinds = {event.type for event in events}
            assert "response.function_call_arguments.delta" in kinds
            assert "response.reasoning_text.delta" in kinds
            ended: Any = events[-1]
            assert ended.type == "response.completed"
            first = ended.response
        else:
            first = client.responses.create(**asked)
        assert [item.type for item in first.output] == ["reasoning", "message", "function_call"]
        called = first.output[2]
        assert (called.name, json.loads(called.arguments)) == ("read", {"path": "a.py"})
        assert first.output_text == "I read it."
    answer = {"type": "function_call_output", "call_id": called.call_id, "output": "x = 1"}
    items += [*first.output, answer]
    second = client.responses.create(
        model="scripted", input=items, tools=RESPONSE_TOOLS, store=False
    )
    assert [item.type for item in second.output] == ["function_call", "function_call"]


def test_refusal_of_a_program_is_the_clients_error(client: openai.OpenAI) -> None:
    refusal = {"status": 404, "code": "no_file", "param": "messages", "message": "no such file"}
    for stream in (False, True):
        with pytest.raises(openai.NotFoundError) as refused:
            ask(client, [user({"refuse": refusal})], stream=stream)
        told = {key: refusal[key] for key in ("code", "param", "message")}
        assert refused.value.body == {"type": "invalid_request_error", **told}
    with pytest.raises(openai.BadRequestError, match=r"the script calls \\?\"drop") as wrong:
        ask(client, [user({"call": "drop"})], tools=TOOLS)
    assert wrong.value.param == "tools"
    with pytest.raises(openai.BadRequestError, match="`messages` has to be a list"):
        ask(client, "hello")
    with pytest.raises(openai.RateLimitError, match="come later") as later:
        ask(client, [], "refuses")
    assert int(later.value.response.headers["Retry-After"]) >= 1


def test_refusal_within_a_stream_is_its_last_event(client: openai.OpenAI) -> None:
    stream = ask(client, [], "breaks-off", stream=True)
    assert next(stream).choices[0].delta.content == "half"
    with pytest.raises(openai.APIError, match="no more"):
        next(stream)
    with pytest.raises(openai.BadRequestError, match="no more"):
        ask(client, [], "breaks-off")


async def test_broken_answer_is_502_and_ends_the_run(
    server: RunningServer, client: openai.OpenAI
) -> None:
    with pytest.raises(openai.InternalServerError, match="the program's answer is broken") as error:
        await asyncio.to_thread(ask, client, [], "broken")
    assert (error.value.status_code, error.value.code) == (502, "broken_answer")
    await server.wait_until_idle()
    async with server.client() as own:
        ended = await anext(aiter(own.runs.list()))
    assert (ended["program_name"], ended["status"]) == ("broken", "killed")
    assert ended["reason"].startswith("the program's answer is broken: a record has 1 to 65536")


# --- Choices, ends, usage, log-probabilities -----------------------------------------------------
def test_choices_of_a_program_are_as_many_as_wanted(client: openai.OpenAI) -> None:
    both = ask(client, [], "two", n=2)
    assert [(c.index, c.message.content, c.finish_reason) for c in both.choices] == [
        (0, "a", "stop"), (1, "b", "content_filter"),
    ]  # fmt: skip
    assert (both.usage.prompt_tokens, both.usage.completion_tokens) == (90, 3)
    assert both.usage.prompt_tokens_details.cached_tokens == 40
    completed = client.completions.create(model="two", prompt=["x", "y"])
    assert [choice.text for choice in completed.choices] == ["a", "b"]
    streamed = list(ask(client, [], "two", n=2, stream=True))
    assert {choice.index for chunk in streamed for choice in chunk.choices} == {0, 1}
    with pytest.raises(openai.InternalServerError, match=r"choice 1 is not one of 1"):
        ask(client, [], "two")
    with pytest.raises(openai.InternalServerError, match=r"it gives 2 of 3 choices"):
        ask(client, [], "two", n=3)
    three = ask(client, [user({"say": "hi"})], n=3)
    assert [choice.message.content for choice in three.choices] == ["hi"] * 3
    with pytest.raises(openai.BadRequestError, match="a program gives at most 128 answers"):
        ask(client, [], "two", n=129)


def test_plain_program_gives_one_answer(client: openai.OpenAI) -> None:
    assert ask(client, [], "plain").choices[0].message.content == "just text"
    with pytest.raises(openai.BadRequestError, match="gives one answer: `n` must be 1") as error:
        ask(client, [], "plain", n=2)
    assert error.value.param == "n"
    with pytest.raises(openai.BadRequestError, match="this route gives one answer"):
        client.responses.create(model="plain", input="x", extra_body={"n": 2})


def test_logprobs_of_a_program_are_in_each_routes_form(client: openai.OpenAI) -> None:
    choice = ask(client, [], "scored").choices[0]
    tokens = choice.logprobs.content
    assert [token.logprob for token in tokens] == [-0.5, None]
    assert bytes(tokens[0].bytes + tokens[1].bytes).decode() == choice.message.content == "caf\xe9"
    assert [other.token for other in tokens[0].top_logprobs] == ["caf\ufffd", "x"]
    completed = client.completions.create(model="scored", prompt="x").choices[0]
    assert completed.logprobs is not None
    assert completed.logprobs.token_logprobs == [-0.5, None]
    assert (completed.text, completed.finish_reason) == ("caf\xe9", "length")


def test_usage_of_a_program_is_what_its_preds_counted(client: openai.OpenAI) -> None:
    answer = ask(client, [user({"say": "a sentence of some length"})])
    tokens = len(tokens_of("a sentence of some length"))
    assert tokens <= answer.usage.completion_tokens <= tokens + 1
    chunks = list(
        ask(client, [user({"say": "hi"})], stream=True, stream_options={"include_usage": True})
    )
    assert chunks[-1].usage.completion_tokens >= 1


async def test_answer_with_its_usage_does_not_wait_for_the_program(
    server: RunningServer, client: openai.OpenAI
) -> None:
    answer = await asyncio.to_thread(ask, client, [], "answers-first", timeout=20)
    assert answer.choices[0].message.content == "done"
    async with server.client() as own:
        (live,) = await own.runs.live()
        await own.runs.cancel(live["id"])
    await server.wait_until_idle()


def test_completion_leaves_out_reasoning(client: openai.OpenAI) -> None:
    assert client.completions.create(model="thinks", prompt="x").choices[0].text == "so"
    streamed = list(client.completions.create(model="thinks", prompt="x", stream=True))
    assert "".join(choice.text for chunk in streamed for choice in chunk.choices) == "so"
    prompt = script({"reason": "hm", "say": "hello"})
    assert client.completions.create(model="scripted", prompt=prompt).choices[0].text == "hello"


def test_response_that_is_cut_says_why(client: openai.OpenAI) -> None:
    for reason, word in (("length", "max_output_tokens"), ("content_filter", "content_filter")):
        told = client.responses.create(
            model="scripted", input=[user({"say": "half", "finish": reason})]
        )
        assert told.status == "incomplete"
        assert told.incomplete_details is not None
        assert told.incomplete_details.reason == word


def test_message_that_a_program_waits_for_never_comes(client: openai.OpenAI) -> None:
    answer = ask(client, [], "receives", timeout=20)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("", "stop")


def test_message_of_a_program_calls_tools_and_is_refused(server: RunningServer) -> None:
    tools: Any = [{"name": "read", "input_schema": {"type": "object"}}]
    client = anthropic.Anthropic(base_url=server.url, api_key=server.key, max_retries=0)
    with client:
        asked: Any = {"model": "scripted", "max_tokens": 99, "tools": tools}
        messages: list[Any] = [user(STEPS[0], {"expect": "x = 1", "say": "Done."})]
        first = client.messages.create(messages=messages, **asked)
        assert [block.type for block in first.content] == ["thinking", "text", "tool_use"]
        called: Any = first.content[2]
        assert (called.name, called.input, first.stop_reason) == (
            "read", {"path": "a.py"}, "tool_use",
        )  # fmt: skip
        with client.messages.stream(messages=messages, **asked) as stream:
            streamed: Any = stream.get_final_message().content[2]
        assert streamed.input == called.input
        result = {"type": "tool_result", "tool_use_id": called.id, "content": "x = 1"}
        messages += [{"role": "assistant", "content": first.content},
                     {"role": "user", "content": [result]}]  # fmt: skip
        second: Any = client.messages.create(messages=messages, **asked)
        assert (second.content[0].text, second.stop_reason) == ("Done.", "end_turn")
        cut = client.messages.create(messages=[user({"finish": "content_filter"})], **asked)
        assert cut.stop_reason == "refusal"
        with pytest.raises(anthropic.BadRequestError, match="no such file"):
            client.messages.create(
                messages=[user({"refuse": {"message": "no such file"}})], **asked
            )
