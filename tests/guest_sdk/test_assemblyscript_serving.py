"""The AssemblyScript SDK's requests and answers of a program that serves as a model."""

import asyncio
import json
from typing import Any

import pytest
from symphony_runtime.gateway.openai.program_answers import ProgramAnswer
from symphony_runtime.gateway.openai.program_messages import (
    CallArguments,
    CallBegin,
    Failure,
    Piece,
    Reasoning,
    Record,
    Usage,
)
from tokenizers import Tokenizer

from tests.support.assemblyscript import compiled
from tests.support.executor.byte_model import byte_assets
from tests.support.worker.rig import WorkerRig

COUNTED = Usage(1, 1, 1)
TOOL = {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("serving")
    return compiled("tests/serving.ts", folder / "serving.wasm")


def serve(program: bytes, body: dict[str, Any] | str, choices: int = 1) -> list[Record]:
    """Return the records with which the program answers, read as the gateway does."""

    async def main() -> list[Record]:
        async with WorkerRig(assets=byte_assets(ends=False)) as rig:
            data = body if isinstance(body, str) else json.dumps(body)
            result = await rig.run(program, data.encode())
        assert (result.status, result.exit_code) == ("exited", 0), (result.reason, result.logs)
        answer = ProgramAnswer(choices, choices)
        records = answer.feed(b"".join(result.messages))
        return (
            records if isinstance(records[-1], Failure | Usage) else records + answer.end(COUNTED)
        )

    return asyncio.run(main())


def described(program: bytes, body: dict[str, Any] | str) -> str:
    first = serve(program, body)[0]
    assert isinstance(first, Reasoning), first
    return first.text


def test_request_of_each_route_is_the_same_conversation(serving: bytes) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}
    chat = {
        "max_completion_tokens": 9, "stop": ["x", "y"], "temperature": 0, "logprobs": True,
        "top_logprobs": 2, "messages": [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "seen"},
        ],
    }  # fmt: skip
    conversation = 'system[|Be kind.||]user[|hi||]assistant[hm||c1 look {"a": 1}|]tool[|seen||c1]'
    assert described(serving, chat) == f"{conversation} 9 2 0.0 x,y"
    response = {
        "max_output_tokens": 9, "instructions": "Be kind.", "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
            {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"a": 1}'},
            {"type": "function_call_output", "call_id": "c1", "output": "seen"},
        ],
    }  # fmt: skip
    assert described(serving, response) == f"{conversation} 9 -1 1.0 "
    use = {"type": "tool_use", "id": "c1", "name": "look", "input": {"a": 1}}
    blocks = {
        "max_tokens": 9, "stop_sequences": ["x"], "system": [{"type": "text", "text": "Be kind."}],
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, use]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c1",
                 "content": [{"type": "text", "text": "seen"}]}]},
        ],
    }  # fmt: skip
    expected = conversation.replace('{"a": 1}', '{"a":1}')
    assert described(serving, blocks) == f"{expected} 9 -1 1.0 x"


def test_prompts_are_texts_or_tokens(serving: bytes) -> None:
    tokenizer = Tokenizer.from_buffer(byte_assets().tokenizer_json or b"")
    one, other = tokenizer.encode("ab").ids, tokenizer.encode("c").ids
    for prompt, shown in (("ab", "prompt[ab]"), (one, "prompt[ab]"), ([one], "prompt[ab]"),
                          ("plain", "prompt[plain]")):  # fmt: skip
        body: Any = prompt if prompt == "plain" else {"prompt": prompt}
        assert described(serving, body).startswith(f"{shown} ")
    for prompts in (["ab", "c"], [one, other]):
        told = [
            each for each in serve(serving, {"prompt": prompts}, 2) if isinstance(each, Reasoning)
        ]
        assert [each.choice for each in told] == [0, 1]
        assert told[0].text.startswith("prompt[ab]prompt[c] ")


@pytest.mark.parametrize(
    ("choice", "shown"),
    [(None, "auto "), ("none", "none "), ({"type": "any"}, "required "),
     ({"type": "function", "function": {"name": "look"}}, "function look"),
     ({"type": "tool", "name": "look"}, "function look")],
)  # fmt: skip
def test_answer_calls_the_tools_of_a_request(serving: bytes, choice: object, shown: str) -> None:
    chat = {"type": "function", "function": TOOL}
    anthropic = {"name": "edit", "input_schema": {}}
    body = {"messages": [], "tools": [chat, {"type": "web_search"}, anthropic],
            "tool_choice": choice}  # fmt: skip
    arguments = ['{"choice": ', f'"{shown}"}}']
    assert serve(serving, body)[1:] == [
        CallBegin(0, 0, "look"), *(CallArguments(0, 0, part) for part in arguments),
        CallBegin(0, 1, "edit"), *(CallArguments(0, 1, part) for part in arguments),
        Piece(0, "", "tool_calls"), COUNTED,
    ]  # fmt: skip


def test_tools_of_a_namespace_and_custom_ones_are_functions(serving: bytes) -> None:
    space = {"type": "namespace", "name": "fs", "tools": [{"type": "function", "name": "look"}]}
    patch = {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": "a\nb"}
    look = {"type": "function_call", "call_id": "c2", "name": "look", "namespace": "fs"}
    body = {"input": [patch, look], "tools": [{"type": "custom", "name": "patch"}, space]}
    told = serve(serving, body)
    assert [each.name for each in told if isinstance(each, CallBegin)] == ["patch", "fs__look"]
    calls = 'assistant[||c1 patch {"input":"a\\nb"}c2 fs__look {}|]'
    assert described(serving, body).startswith(calls)


def test_answers_end_as_the_program_says(serving: bytes) -> None:
    both = [Piece(0, "half", None), Piece(0, "", "content_filter"), Usage(7, 3, 1)]
    assert serve(serving, {"messages": [], "told": "cut"}) == both
    long = serve(serving, {"messages": [], "told": "long"})
    texts = [each.text for each in long if isinstance(each, Piece)]
    assert "".join(texts) == "\U0001f600" * 30_000
    assert len(texts) == 5


@pytest.mark.parametrize(
    "asked", [{"messages": [{"role": "user", "content": "hi"}]}, {"prompt": "hi"}]
)
def test_session_of_a_request_generates_its_answer(serving: bytes, asked: dict[str, Any]) -> None:
    tools = [{"type": "function", "function": TOOL}]
    body = {**asked, "told": "generate", "max_tokens": 5, "tools": tools, "temperature": 0}
    text, end, _ = serve(serving, body)
    assert isinstance(text, Piece)
    assert isinstance(end, Piece)
    assert (len(text.text) > 0, end.finish) == (True, "length")


def test_answer_with_log_probabilities_has_its_tokens(serving: bytes) -> None:
    scored = serve(serving, {"prompt": "hi", "told": "scored"})[0]
    assert isinstance(scored, Piece)
    assert scored.text == "ab"
    assert [len(entry.top) for entry in scored.logprobs or []] == [2, 2]


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"told": "refuse"}, "n", "come later"),
        ("{oh", None, "expected"),
        ({"n": 0}, "n", "`n` has to be a whole number from 1 to 128"),
        ({"temperature": "x"}, "temperature", "`temperature` has to be a number"),
        ({"stream": 1}, "stream", "`stream` has to be true or false"),
        ({"stop": [1]}, "stop", "`stop` has to be a list of texts"),
        ({"messages": 7}, "messages", "`messages` has to be a list"),
        ({"messages": [{"content": "a"}]}, "messages", "`messages` needs a `role`, a text"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages",
         'a message has a part of the type "image_url": text only'),
        ({"input": [{"type": "web"}]}, "input",
         'an item of `input` is of the type "web", which is not known'),
        ({"tools": [{"type": "function"}]}, "tools", "`tools` needs a `name`, a text"),
        ({"tool_choice": "x"}, "tool_choice",
         "`tool_choice` has to be none, auto, required, or the name of a function"),
        ({"prompt": [[1.5]]}, "prompt",
         "`prompt` has to be a text, token ids, or a list of several of either"),
    ],
)  # fmt: skip
def test_request_that_is_wrong_is_refused_in_words(
    serving: bytes, body: dict[str, Any] | str, param: str | None, words: str
) -> None:
    (refused,) = serve(serving, body)
    assert isinstance(refused, Failure)
    assert (refused.status, refused.code) == (
        (429, "busy") if words == "come later" else (400, "invalid_request")
    )
    assert refused.param == param
    assert words in refused.message


def test_response_format_that_is_wrong_is_refused(serving: bytes) -> None:
    body = {"prompt": "a", "told": "generate", "response_format": {"type": "xml"}}
    (refused,) = serve(serving, body)
    assert isinstance(refused, Failure)
    assert (refused.param, "text, json_object or json_schema" in refused.message) == (
        "response_format", True,
    )  # fmt: skip
