"""OpenAI's own client and a real server: programs as models, errors, crowds, disconnects."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest

from tests.e2e import programs as guests
from tests.support.gateway.openai_client import (
    MODEL,
    TOKENS,
    chat,
    complete,
    connect,
    joined,
    respond,
    text,
)
from tests.support.server.server import RunningServer

CROWD = 32


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    """Connect to a server that has some programs to be models."""

    async def upload() -> None:
        async with server.client() as own:
            await own.programs.upload(guests.ECHO_WASM, name="echo-model")
            await own.programs.upload(guests.SPEAKER_WASM, name="speaker-model")
            await own.programs.upload(guests.CHATTY_WASM, name="chatty-model")

    asyncio.run(upload())
    with connect(server) as client:
        yield client


# --- Models and programs -------------------------------------------------------------------------
def test_models_list_the_model_and_the_tenants_programs(client: openai.OpenAI) -> None:
    models = list(client.models.list())
    assert models[0].id == MODEL
    assert {"echo-model", "speaker-model"} <= {model.id for model in models}
    assert client.models.retrieve(MODEL).owned_by == "symphony"
    assert client.models.retrieve("echo-model").id == "echo-model"
    assert not any("~" in model.owned_by for model in models)


async def test_idempotency_key_repeats_the_same_answer(
    server: RunningServer, client: openai.OpenAI
) -> None:
    """Whole or streamed, of the model or of a program; it was computed once."""

    asked: list[str] = []

    def ask(key: str, **options: Any) -> str:
        options = {"model": MODEL, "prompt": "once", "max_tokens": 12, "temperature": 1, **options}
        headers = {"Idempotency-Key": key}
        answer = client.completions.with_raw_response.create(extra_headers=headers, **options)
        asked.append(answer.headers["X-Run-Id"])
        return answer.http_response.read().decode()

    first, stream = ask("whole"), ask("streamed", stream=True)
    assert [ask("whole"), ask("streamed", stream=True)] == [first, stream]
    assert stream.count("data: ") > 2
    assert ask("another") != first, "a draw of its own"
    assert ask("own", model="chatty-model") == ask("own", model="chatty-model")
    with pytest.raises(openai.UnprocessableEntityError):
        ask("whole", max_tokens=13)
    assert len(asked) == 7
    assert len(set(asked)) == 4
    async with server.client() as own:
        assert set(asked) <= {run["id"] async for run in own.runs.list()}, (
            "a run with a key is kept"
        )


def test_program_as_a_model_answers_with_its_messages(client: openai.OpenAI) -> None:
    answer = chat(client, model="chatty-model")
    expected = "".join(chr(97 + n % 26) + "x" * 16383 for n in range(200))
    assert answer.choices[0].message.content == expected
    chunks = client.completions.create(model="chatty-model", prompt="x", stream=True)
    assert joined(list(chunks)) == expected
    pieces = chat(client, model="chatty-model", stream=True)
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == expected


def test_program_as_a_model_that_fails_is_an_error_with_its_reason(client: openai.OpenAI) -> None:
    with pytest.raises(openai.InternalServerError, match="trapped"):
        chat(client, model="speaker-model")
    # It exits with 7, after it has sent its input back.
    with pytest.raises(openai.InternalServerError, match="exited with code 7"):
        client.completions.create(model="echo-model", prompt="x")
    with pytest.raises(openai.APIError, match="code 7"):
        list(client.completions.create(model="echo-model", prompt="x", stream=True))
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model="echo-model", prompt="x", n=2)


# --- Errors --------------------------------------------------------------------------------------
def test_errors_have_openais_shape(server: RunningServer, client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="nothing", prompt="x")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nothing")
    with (
        connect(server, key="wrong") as stranger,
        pytest.raises(openai.AuthenticationError) as refused,
    ):
        stranger.models.list()
    assert refused.value.code == "invalid_api_key"


# Of each route: fields of a request, and the parameter that its refusal names.
WRONG: dict[Any, list[tuple[dict[str, Any], str]]] = {
    complete: [
        ({"max_tokens": 5000}, "prompt"),
        ({"prompt": "x " * 3000}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [4096]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [1.5]}, "prompt"),
        ({"n": 0}, "n"),
        ({"n": "two"}, "n"),
        ({"best_of": 0}, "best_of"),
        ({"n": 2, "best_of": 3, "stream": True}, "best_of"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"stop": ["x"] * 20}, "stop"),
        ({"stop": 5}, "stop"),
        ({"logprobs": 21}, "logprobs"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"suffix": "end"}, "suffix"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"extra_body": {"unheard_of": 1}}, "unheard_of"),
        ({"extra_body": {"repetition_penalty": 0}}, "repetition_penalty"),
        ({"extra_body": {"min_tokens": 30}}, "min_tokens"),
        ({"extra_body": {"stop_token_ids": [9999]}}, "stop_token_ids"),
    ],
    chat: [
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
         "messages[0].content"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_object"}, "extra_body": {"guided_regex": "a"}},
         "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema":
          {"properties": {"a": {"type": "intger"}}}}}}, "response_format"),
        ({"extra_body": {"guided_choice": []}}, "guided_choice"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
    respond: [
        ({"tools": [{"type": "code_interpreter"}]}, "tools"),
        ({"tool_choice": {"type": "web_search"}, "tools": [{"type": "web_search"}]},
         "tool_choice"),
        ({"previous_response_id": 5}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"include": ["everything"]}, "include"),
        ({"truncation": "auto"}, "truncation"),
        ({"background": True, "store": False}, "background"),
        ({"asked": [{"type": "function_call_output", "call_id": "c", "output": "x"}]},
         "input[0].tool_call_id"),
        ({"asked": [{"type": "file_search_call", "id": "x"}]}, "input[0]"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "xml"}}}, "text"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("ask", "fields", "param"),
    [(ask, *each) for ask, cases in WRONG.items() for each in cases],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_request_with_a_wrong_field_says_what_is_wrong(
    client: openai.OpenAI, ask: Callable[..., Any], fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, **fields)
    assert refused.value.param == param
    assert refused.value.type == "invalid_request_error"


# --- Many, and those who leave -------------------------------------------------------------------
def test_completions_in_a_crowd_equal_completions_alone(
    server: RunningServer, client: openai.OpenAI
) -> None:
    prompts = [f"class Case{i}:\n" + "    x = 1\n" * (i % 7) for i in range(CROWD)]
    alone = [text(client, prompt) for prompt in prompts[:4]]

    async def scenario() -> list[str]:
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key=server.key, max_retries=0
        ) as own:

            async def ask(number: int, prompt: str) -> str:
                fields: dict[str, Any] = {"model": MODEL, "prompt": prompt, "max_tokens": TOKENS,
                                          "temperature": 0,
                    "extra_body": {"add_special_tokens": False}}  # fmt: skip
                if number % 2:
                    return (await own.completions.create(**fields)).choices[0].text  # type: ignore[no-any-return]
                stream = await own.completions.create(**fields, stream=True)
                return "".join([chunk.choices[0].text async for chunk in stream])

            return await asyncio.gather(*map(ask, range(CROWD), prompts))

    together = asyncio.run(scenario())
    assert together[:4] == alone
    asyncio.run(server.wait_until_idle())


def test_client_that_disconnects_cancels_its_run(
    server: RunningServer, client: openai.OpenAI
) -> None:
    endless: dict[str, Any] = {"max_tokens": 1800, "extra_body": {"ignore_eos": True}}

    def spent() -> int:
        counters = asyncio.run(server.wait_until_idle(seconds=5))
        return int(counters["decode_rows"])

    before = spent()
    stream: Any = complete(client, stream=True, **endless)
    next(iter(stream))
    stream.close()
    after_stream = spent()
    assert 0 < after_stream - before < 1700
    with pytest.raises(openai.APITimeoutError):
        complete(client.with_options(timeout=0.3), **endless)
    assert 0 < spent() - after_stream < 1700


async def test_openai_requests_are_not_kept_as_runs_or_programs(
    server: RunningServer, client: openai.OpenAI
) -> None:
    async with server.client() as own:

        async def known() -> tuple[set[str], set[str]]:
            programs = {program["id"] async for program in own.programs.list()}
            return {run["id"] async for run in own.runs.list()}, programs

        before = await known()
        completion = complete(client)
        await server.wait_until_idle()
        runs, programs = await known()
    assert (runs, programs) == before
    assert f"run_{completion.id.removeprefix('cmpl-')}" not in runs


async def test_openai_request_under_way_is_a_run_that_can_be_cancelled(
    server: RunningServer, client: openai.OpenAI
) -> None:
    stream: Any = complete(client, stream=True, max_tokens=1800, extra_body={"ignore_eos": True})
    first = next(iter(stream))
    run = f"run_{first.id.removeprefix('cmpl-')}"
    async with server.client() as own:
        assert (await own.runs.get(run))["program_name"] == "openai"
        assert (await own.runs.cancel(run))["status"] == "killed"
        with pytest.raises(openai.APIError, match="cancelled"):
            list(stream)
        assert (await own.runs.get(run))["status"] == "killed"  # what fails is kept
