"""Constrained answers over OpenAI's routes, by its formats and by vLLM's fields."""

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest

from tests.support.gateway.openai_client import MODEL, PROMPT, chat, connect, respond
from tests.support.kernel.constrained import PERSON
from tests.support.server.server import RunningServer

FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
WRONG = {"properties": {"age": {"type": "intger"}}}


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with connect(server) as client:
        yield client


def completed(client: openai.OpenAI, **given: Any) -> list[str]:
    asked = {"model": MODEL, "prompt": PROMPT, "max_tokens": 300, "temperature": 1.0, "seed": 5}
    completion = client.completions.create(**asked | given)  # type: ignore[call-overload]
    assert {choice.finish_reason for choice in completion.choices} == {"stop"}
    return [choice.text for choice in completion.choices]


def test_chat_with_a_json_schema_answers_with_an_instance(client: openai.OpenAI) -> None:
    asked: Any = {
        "max_tokens": 300, "seed": 2, "temperature": 1, "response_format": FORMAT,
    }  # fmt: skip
    answer = chat(client, **asked, n=3)
    for choice in answer.choices:
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content or ""), PERSON)
    # The same as a stream, and token by token with penalties.
    stream = chat(client, **asked, stream=True)
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert "".join(pieces) == answer.choices[0].message.content
    penal = chat(client, **asked, presence_penalty=0.5)
    jsonschema.validate(json.loads(penal.choices[0].message.content or ""), PERSON)


def test_responses_with_a_text_format_follow_it(client: openai.OpenAI) -> None:
    form = {"type": "json_schema", "name": "person", "schema": PERSON}
    answer = respond(client, "Who?", max_output_tokens=300, temperature=1, text={"format": form})
    jsonschema.validate(json.loads(answer.output_text), PERSON)


def test_completion_with_vllms_guided_fields_follows_them(client: openai.OpenAI) -> None:
    for text in completed(client, n=3, extra_body={"guided_regex": "[A-Z][a-z]{2,5}-[0-9]{3}"}):
        assert re.fullmatch(r"[A-Z][a-z]{2,5}-\d{3}", text)
    choices = ["yes (or no)", "no\n", "*"]
    assert set(completed(client, n=4, extra_body={"guided_choice": choices})) <= set(choices)
    (text,) = completed(client, extra_body={"guided_json": PERSON})
    jsonschema.validate(json.loads(text), PERSON)
    grammar = 'start: "(" NUMBER ("+" NUMBER)~1..3 ")"\nNUMBER: /[0-9]{1,2}/'
    (text,) = completed(client, extra_body={"guided_grammar": grammar})
    assert re.fullmatch(r"\(\d\d?(\+\d\d?){1,3}\)", text)


def test_constrained_answer_that_is_cut_off_says_so(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "prompt": PROMPT, "max_tokens": 4}
    cut = client.completions.create(**asked, extra_body={"guided_regex": "[a-z]{50}"})
    assert cut.choices[0].finish_reason == "length"
    assert re.fullmatch("[a-z]+", cut.choices[0].text)


def test_invalid_schema_is_refused_with_its_place(client: openai.OpenAI) -> None:
    for fields, param, words in (
        ({"guided_json": WRONG}, "guided_json", "#/properties/age: Invalid type: intger"),
        ({"guided_regex": "a(b"}, "guided_regex", "column 2"),
        ({"guided_regex": "a", "min_tokens": 2}, "response_format", "min_tokens"),
        ({"guided_regex": "a", "ignore_eos": True}, "response_format", "ignore_eos"),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            completed(client, extra_body=fields)
        assert refused.value.param == param
        assert words in refused.value.message
