"""Responses that are kept, by OpenAI's own client: chains, retrieval, background, deletion."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support.gateway.openai_client import MODEL, connect, respond
from tests.support.server.server import RunningServer, running_server

TOKENS = 6
LONG: dict[str, Any] = {"background": True, "max_output_tokens": 1900,
                        "extra_body": {"ignore_eos": True}}  # fmt: skip
SHORT: dict[str, Any] = {"max_output_tokens": TOKENS}
TEXT: Any = {"type": "object", "properties": {"text": {"type": "string", "enum": ["ls"]}},
             "required": ["text"], "additionalProperties": False}  # fmt: skip


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with connect(server) as client:
        yield client


def wait_ended(client: openai.OpenAI, response: Any) -> Any:
    until = time.monotonic() + 30
    while response.status in ("queued", "in_progress"):
        assert time.monotonic() < until
        time.sleep(0.05)
        response = client.responses.retrieve(response.id)
    return response


# --- Chains --------------------------------------------------------------------------------------
def test_chain_of_three_turns_equals_the_conversation_sent_whole(client: openai.OpenAI) -> None:
    asked = ["read a file", "and a folder", "in one line"]
    told: list[Any] = []
    chained: Any = None
    for text in asked:
        chained = respond(
            client, text, **SHORT, previous_response_id=chained.id if chained else None
        )
        told.append({"role": "user", "content": text})
        whole = respond(client, told, **SHORT, store=False)
        assert chained.output_text == whole.output_text
        assert chained.usage.input_tokens == whole.usage.input_tokens
        told += [item.model_dump(exclude_none=True) for item in whole.output]
    assert chained.previous_response_id is not None


def test_instructions_do_not_carry_over(client: openai.OpenAI) -> None:
    first = respond(client, "read", **SHORT, instructions="Answer in code")
    told = [{"role": "user", "content": "read"}, *(item.model_dump() for item in first.output)]
    told.append({"role": "user", "content": "again"})
    second = respond(client, "again", **SHORT, previous_response_id=first.id)
    whole = respond(client, told, **SHORT)
    assert (second.instructions, second.usage.input_tokens) == (None, whole.usage.input_tokens)


def test_streamed_response_can_be_continued_at_once(client: openai.OpenAI) -> None:
    first = list(respond(client, "read", **SHORT, stream=True))[-1].response
    second = respond(client, "again", **SHORT, previous_response_id=first.id)
    assert second.usage.input_tokens > first.usage.input_tokens


def test_chain_with_a_call_and_its_output_continues(client: openai.OpenAI) -> None:
    tools: Any = [{"type": "function", "name": "run", "parameters": TEXT}]
    forced: Any = {"type": "function", "name": "run"}
    first = respond(client, "list", tools=tools, tool_choice=forced, max_output_tokens=100)
    (call,) = first.output
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "a.txt"}
    second = respond(
        client, [output], **SHORT, tools=tools, tool_choice="none", previous_response_id=first.id
    )
    parts = [{"type": "input_text", "text": "a."}, {"type": "input_text", "text": "txt"}]
    told = [{"role": "user", "content": "list"}, call.model_dump(exclude_none=True),
            {**output, "output": parts}]  # fmt: skip
    whole = respond(client, told, **SHORT, tools=tools, tool_choice="none")
    assert second.output_text == whole.output_text
    assert second.usage.input_tokens == whole.usage.input_tokens


def test_referred_items_are_those_of_stored_responses(client: openai.OpenAI) -> None:
    first = respond(client, "read a file", **SHORT)
    (asked,) = client.responses.input_items.list(first.id).data
    references: Any = [{"type": "item_reference", "id": asked.id},
                       {"type": "item_reference", "id": first.output[0].id}]  # fmt: skip
    more: Any = {"role": "user", "content": "more"}
    referring = respond(client, [*references, more], **SHORT)
    chained = respond(client, "more", **SHORT, previous_response_id=first.id)
    assert referring.output_text == chained.output_text
    assert referring.usage.input_tokens == chained.usage.input_tokens
    kept: list[Any] = client.responses.input_items.list(referring.id, order="asc").data
    assert [item.id for item in kept][:2] == [asked.id, first.output[0].id]
    with pytest.raises(openai.NotFoundError) as refused:
        respond(client, [{"type": "item_reference", "id": f"msg_{'0' * 24}"}], **SHORT)
    assert refused.value.param == "input[0]"


# --- What is kept --------------------------------------------------------------------------------
def test_retrieved_response_equals_the_answer(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        **SHORT, "instructions": "Code", "metadata": {"a": "ü"}, "include": [
            "message.output_text.logprobs"], "top_logprobs": 2,
    }  # fmt: skip
    answer = respond(client, "read a file", **asked)
    assert client.responses.retrieve(answer.id).model_dump() == answer.model_dump()
    logprobs = answer.output[0].content[0].logprobs
    assert "".join(token.token for token in logprobs) == answer.output_text
    assert all(len(token.top_logprobs) == 2 for token in logprobs)


def test_retrieved_stream_equals_the_stream_and_resumes_within(client: openai.OpenAI) -> None:
    events = [event.model_dump() for event in respond(client, stream=True, **SHORT)]
    response = events[0]["response"]["id"]
    again = [event.model_dump() for event in client.responses.retrieve(response, stream=True)]
    assert again == events
    for after in (0, 3, events[-1]["sequence_number"]):
        resumed = client.responses.retrieve(response, stream=True, starting_after=after)
        assert [event.model_dump() for event in resumed] == events[after + 1 :]


def test_response_that_is_not_stored_is_not_found(client: openai.OpenAI) -> None:
    answer = respond(client, **SHORT, store=False)
    assert answer.model_dump()["store"] is False
    with pytest.raises(openai.NotFoundError) as refused:
        client.responses.retrieve(answer.id)
    assert refused.value.code == "response_not_found"
    with pytest.raises(openai.NotFoundError) as refused:
        respond(client, **SHORT, previous_response_id=answer.id)
    assert refused.value.param == "previous_response_id"


@pytest.mark.parametrize("wanted", ["resp_x", f"resp_{'0' * 24}", "run_1", "\ud83d\ude00"])
def test_unknown_response_is_not_found(client: openai.OpenAI, wanted: str) -> None:
    with pytest.raises(openai.NotFoundError):
        respond(client, **SHORT, previous_response_id=wanted.encode("utf-16", "surrogatepass")
                .decode("utf-16"))  # fmt: skip


async def test_deleted_response_is_gone_with_its_text(server: RunningServer) -> None:
    with connect(server) as client:
        first = respond(client, "a secret word: aquamarine", **SHORT)
        second = respond(client, "more", **SHORT, previous_response_id=first.id)
        client.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(first.id)
        with pytest.raises(openai.NotFoundError, match=first.id):
            respond(client, "more", **SHORT, previous_response_id=second.id)
        with pytest.raises(openai.NotFoundError):
            client.responses.delete(first.id)
    status, _ = await server.ask("GET", f"/v1/runs/run_{first.id.removeprefix('resp_')}")
    assert status == 404
    files = [path for path in server.data_dir.iterdir() if path.name.startswith("symphony.sqlite")]
    (database,) = [path for path in files if path.name == "symphony.sqlite"]
    assert b"aquamarine" not in database.read_bytes()


async def test_kept_response_is_a_run_with_its_request(server: RunningServer) -> None:
    with connect(server) as client:
        answer = respond(client, "read a file", **SHORT)
    async with server.client() as own:
        events = [
            event async for event in own.runs.events(f"run_{answer.id.removeprefix('resp_')}")
        ]
    assert events[0].kind == "request"
    assert json.loads(events[0].data["text"])["body"]["input"] == "read a file"
    assert events[-1].data["status"] == "exited"


def test_input_items_are_paged_with_those_of_the_chain(client: openai.OpenAI) -> None:
    first = respond(client, "one", **SHORT)
    second = respond(client, [{"role": "user", "content": [{"type": "input_text", "text": "two"}]}],
                     **SHORT, previous_response_id=first.id)  # fmt: skip
    items: list[Any] = list(client.responses.input_items.list(second.id, order="asc", limit=2))
    assert [item.id for item in items][1] == first.output[0].id
    assert [item.role for item in items] == ["user", "assistant", "user"]
    assert [item.content[0].text for item in items] == ["one", first.output_text, "two"]
    newest = client.responses.input_items.list(second.id, limit=1)
    assert (newest.data[0].id, newest.has_more) == (items[-1].id, True)
    rest = client.responses.input_items.list(second.id, after=newest.data[0].id)
    assert [item.id for item in rest.data] == [item.id for item in items[1::-1]]
    with pytest.raises(openai.BadRequestError):
        client.responses.input_items.list(second.id, after="msg_none")


async def test_other_tenants_response_is_not_found(server: RunningServer) -> None:
    other = await server.add_tenant("responses-other")
    with connect(server) as client, connect(server, other) as stranger:
        answer = respond(client, **SHORT)
        item = answer.output[0].id
        for attempt in (
            lambda: stranger.responses.retrieve(answer.id),
            lambda: stranger.responses.delete(answer.id),
            lambda: stranger.responses.cancel(answer.id),
            lambda: stranger.responses.input_items.list(answer.id),
            lambda: respond(stranger, **SHORT, previous_response_id=answer.id),
            lambda: respond(stranger, [{"type": "item_reference", "id": item}], **SHORT),
        ):
            with pytest.raises(openai.NotFoundError):
                attempt()
        assert client.responses.retrieve(answer.id).output_text == answer.output_text


# --- In the background ---------------------------------------------------------------------------
def test_background_response_answers_at_once_and_ends_by_itself(client: openai.OpenAI) -> None:
    begun = respond(client, **SHORT, background=True)
    assert (begun.status, begun.output, begun.background) == ("queued", [], True)
    ended = wait_ended(client, begun)
    usual = respond(client, **SHORT)
    assert (ended.status, ended.output_text) == ("incomplete", usual.output_text)
    assert ended.usage.output_tokens == TOKENS


def test_background_response_is_cancelled_with_what_it_has(client: openai.OpenAI) -> None:
    begun = respond(client, **LONG)
    with pytest.raises(openai.BadRequestError, match=r"in_progress|queued"):
        respond(client, **SHORT, previous_response_id=begun.id)
    with pytest.raises(openai.ConflictError):
        client.responses.delete(begun.id)
    for event in client.responses.retrieve(begun.id, stream=True):
        if event.type == "response.output_text.delta" and event.sequence_number > 10:
            break
    cancelled = client.responses.cancel(begun.id)
    assert cancelled.status == "cancelled"
    assert cancelled.output_text
    again = client.responses.cancel(begun.id)
    assert again.model_dump() == client.responses.retrieve(begun.id).model_dump()
    with pytest.raises(openai.BadRequestError, match="cancelled"):
        respond(client, **SHORT, previous_response_id=begun.id)
    client.responses.delete(begun.id)


def test_background_stream_goes_on_without_its_client(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"background": True, "stream": True, "max_output_tokens": 60,
                             "extra_body": {"ignore_eos": True}}  # fmt: skip
    seen = []
    with respond(client, **asked) as stream:
        for event in stream:
            seen.append(event)
            if event.sequence_number == 8:
                break
    response, last = seen[0].response.id, seen[-1].sequence_number
    rest: list[Any] = list(client.responses.retrieve(response, stream=True, starting_after=last))
    assert [event.sequence_number for event in rest] == list(range(9, 9 + len(rest)))
    assert rest[-1].response.usage.output_tokens == 60
    kept = client.responses.retrieve(response)
    assert kept.output_text == rest[-1].response.output_text


def test_background_response_has_to_be_stored(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        respond(client, **SHORT, background=True, store=False)
    assert refused.value.param == "background"


# --- Restarts ------------------------------------------------------------------------------------
def test_kept_responses_survive_a_restart(tmp_path: Path) -> None:
    with running_server(tmp_path, executor="torch") as server, connect(server) as client:
        first = respond(client, "read a file", **SHORT)
        begun = respond(client, **LONG)
        for event in client.responses.retrieve(begun.id, stream=True):
            if event.type == "response.output_text.delta":
                break
        server.process.kill()
        server.process.wait()
    with running_server(tmp_path, executor="torch") as server, connect(server) as client:
        assert client.responses.retrieve(first.id).model_dump() == first.model_dump()
        second = respond(client, "again", **SHORT, previous_response_id=first.id)
        assert second.usage.input_tokens > first.usage.input_tokens
        failed = client.responses.retrieve(begun.id)
        assert failed.status == "failed"
        assert failed.error is not None
        assert "died" in failed.error.message or "shut down" in failed.error.message


# --- Tools ---------------------------------------------------------------------------------------
def test_custom_tool_is_called_with_a_text(client: openai.OpenAI) -> None:
    form = {"type": "grammar", "syntax": "regex", "definition": "ls|cat [a-c]"}
    shell: Any = {"type": "custom", "name": "shell", "description": "Run one", "format": form}
    asked: dict[str, Any] = {
        "tools": [shell], "tool_choice": {"type": "custom", "name": "shell"},
        "max_output_tokens": 200, "temperature": 1, "extra_body": {"seed": 3},
    }  # fmt: skip
    first = respond(client, "list", **asked)
    (call,) = first.output
    assert (call.type, call.name) == ("custom_tool_call", "shell")
    assert call.input == "ls" or call.input.startswith("cat ")
    events = list(respond(client, "list", stream=True, **asked))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[2:] == [
        "response.output_item.added", "response.custom_tool_call_input.delta",
        "response.custom_tool_call_input.done", "response.output_item.done", "response.completed",
    ]  # fmt: skip
    assert events[3].delta == events[4].input == events[5].item.input == call.input
    output: Any = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "a"}
    second = respond(
        client, [output], **SHORT, tools=[shell], tool_choice="none", previous_response_id=first.id
    )
    assert second.usage.input_tokens > 20


def test_tool_of_a_namespace_is_called_by_its_own_name(client: openai.OpenAI) -> None:
    own: Any = {"type": "function", "name": "run", "parameters": TEXT, "strict": True}
    space: Any = {"type": "namespace", "name": "box", "description": "A box", "tools": [own]}
    asked: dict[str, Any] = {"tools": [space, {"type": "web_search"}], "tool_choice": "required",
                             "max_output_tokens": 200}  # fmt: skip
    first = respond(client, "list", **asked)
    call = first.output[0]
    assert (call.name, call.namespace) == ("run", "box")
    assert json.loads(call.arguments) == {"text": "ls"}
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "a"}
    told = [{"role": "user", "content": "list"}, call.model_dump(exclude_none=True), output]
    assert respond(client, told, **{**asked, **SHORT, "tool_choice": "none"}).output_text


def test_parsed_response_has_the_formats_type(client: openai.OpenAI) -> None:
    from pydantic import BaseModel

    class Answer(BaseModel):
        ok: bool

    parsed = client.responses.parse(
        model=MODEL, input="ok?", text_format=Answer, max_output_tokens=60, temperature=0
    )
    assert isinstance(parsed.output_parsed, Answer)
    kept = client.responses.retrieve(parsed.id)
    assert json.loads(kept.output_text) == parsed.output_parsed.model_dump()
    assert kept.text is not None
    assert kept.text.format is not None
    assert kept.text.format.type == "json_schema"


async def test_many_continuations_of_one_response_agree(server: RunningServer) -> None:
    async with openai.AsyncOpenAI(
        base_url=f"{server.url}/v1", api_key=server.key, max_retries=0
    ) as client:
        asked: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_output_tokens": TOKENS}
        first = await client.responses.create(input="read", **asked)
        answers = await asyncio.gather(
            *(
                client.responses.create(input="more", previous_response_id=first.id, **asked)
                for _ in range(12)
            )
        )
    assert len({answer.output_text for answer in answers}) == 1
    assert len({answer.id for answer in answers}) == 12
