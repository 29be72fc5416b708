"""What the bodies of the OpenAI routes may say, and the jobs they become."""

from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from symphony_kernel.protocol.limits import PRED_BIAS_MAX
from symphony_runtime.config.limits import TenantLimits
from symphony_runtime.gateway.openai.errors import OpenAIError
from symphony_runtime.gateway.openai.requests.limits import Model, RequestLimits
from symphony_runtime.gateway.openai.requests.parsing import (
    ParsedRequest,
    model_of,
    parse_chat,
    parse_completion,
    parse_for_program,
    parse_response,
)

MODEL = Model("m", 1_000, (0, 7), 2_048, (3,))
LIMITS = RequestLimits.of(TenantLimits())


def job(wanted: ParsedRequest) -> dict[str, Any]:
    unpacked: dict[str, Any] = msgpack.unpackb(wanted.job, strict_map_key=False)
    return unpacked


def completion(**fields: Any) -> dict[str, Any]:
    return job(parse_completion({"model": "m", "prompt": "p", **fields}, MODEL, LIMITS))


def chat(**fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "hi"}]
    return job(parse_chat({"model": "m", "messages": messages, **fields}, MODEL, LIMITS))


def test_what_is_left_out_has_openai_s_defaults() -> None:
    plain = completion()
    assert plain["prompts"] == ["p"]
    assert (plain["n"], plain["best_of"], plain["max"], plain["min"]) == (1, 1, 16, 0)
    assert plain["sample"] == {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    assert (plain["ends"], plain["stop"], plain["bias"]) == ([0, 7], [], {})
    assert not plain["stream"]
    assert not plain["echo"]
    assert "logprobs" not in plain
    assert chat()["max"] is None


def test_null_is_like_left_out() -> None:
    names = ("n", "max_tokens", "stop", "logprobs", "stream", "seed", "logit_bias", "suffix",
             "stream_options", "echo", "user", "temperature")  # fmt: skip
    assert completion(**dict.fromkeys(names)) == completion()


def test_prompts_become_texts_and_packed_tokens() -> None:
    assert completion(prompt=["a", "b"])["prompts"] == ["a", "b"]
    packed = b"\x01\0\0\0\x02\0\0\0"
    assert completion(prompt=[1, 2])["prompts"] == [packed]
    assert completion(prompt=[[1, 2], [1, 2], "x"])["prompts"] == [packed, packed, "x"]


def test_texts_get_what_the_tokenizer_puts_before_them() -> None:
    assert completion()["prefix"] == [3]
    assert "prefix" not in completion(add_special_tokens=False)


def test_temperature_0_is_greedy() -> None:
    assert "sample" not in completion(temperature=0, seed=3, top_k=5)
    assert completion(seed=-1)["sample"]["seed"] == 2**64 - 1
    assert completion(top_k=-1)["sample"]["top_k"] == 0


def test_ends_are_the_model_s_and_one_s_own() -> None:
    assert completion(stop_token_ids=[5])["ends"] == [5, 0, 7]
    assert completion(stop_token_ids=[5], ignore_eos=True)["ends"] == [5]


def test_token_ids_are_told_of_whole_answers_only() -> None:
    assert completion(return_token_ids=True)["ids"]
    assert not completion()["ids"]
    with pytest.raises(OpenAIError, match="not streamed"):
        completion(return_token_ids=True, stream=True)


def test_the_newer_name_of_max_tokens_wins() -> None:
    assert chat(max_tokens=5)["max"] == 5
    assert chat(max_tokens=5, max_completion_tokens=6)["max"] == 6


def test_stops_may_be_one_or_several() -> None:
    assert completion(stop="x")["stop"] == ["x"]
    assert completion(stop=["x", "", "y"])["stop"] == ["x", "y"]


def test_penalties_bound_what_has_no_bound() -> None:
    bounded = chat(presence_penalty=1.0, logit_bias={"3": -100})
    assert bounded["bias"] == {3: -100.0}
    assert bounded["most"] == PRED_BIAS_MAX - 1 - 2
    with pytest.raises(OpenAIError) as refused:
        chat(presence_penalty=1.0, max_tokens=PRED_BIAS_MAX)
    assert refused.value.param == "max_tokens"


def test_log_probabilities_are_asked_for_differently() -> None:
    assert completion(logprobs=3)["logprobs"] == 3
    assert chat(logprobs=True)["logprobs"] == 0
    assert chat(logprobs=True, top_logprobs=4)["logprobs"] == 4
    assert "logprobs" not in chat(logprobs=False)


def test_messages_are_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = {"model": "m", "messages": [{"role": "user", "content": parts, "name": "n"},
                                       {"role": "assistant", "content": None}]}  # fmt: skip
    assert msgpack.unpackb(job(parse_chat(body, MODEL, LIMITS))["messages"]) == [
        {"role": "user", "content": "ab", "name": "n"},
        {"role": "assistant", "content": ""},
    ]


def test_a_response_s_input_is_a_conversation() -> None:
    def messages(**fields: Any) -> Any:
        return msgpack.unpackb(
            job(parse_response({"model": "m", **fields}, MODEL, LIMITS))["messages"]
        )

    assert messages(input="hi") == [{"role": "user", "content": "hi"}]
    given = [{"type": "message", "role": "user",
              "content": [{"type": "input_text", "text": "hi"}]}]  # fmt: skip
    assert messages(input=given, instructions="be kind") == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "hi"},
    ]


@pytest.mark.parametrize(
    "told",
    [
        {"metadata": {"a": "\ud800"}},
        {"metadata": {"a": "x" * 600}},
        {"metadata": {str(i): "" for i in range(17)}},
        {"metadata": {"a": [[]]}},
        {"metadata": [[]]},
        {"user": "\udfff"},
        {"user": {"deep": 1}},
    ],
)
def test_a_response_tells_again_only_what_is_short_and_text(told: dict[str, Any]) -> None:
    with pytest.raises(OpenAIError):
        parse_response({"model": "m", "input": "hi", **told}, MODEL, LIMITS)
    kept = {"metadata": {"a": "b"}, "user": "me"}
    assert parse_response({"model": "m", "input": "hi", **kept}, MODEL, LIMITS).choices == 1


def test_a_program_gets_the_request_as_it_came() -> None:
    raw = b'{"model": "p", "anything": 1, "stream": true}'
    wanted = parse_for_program({"model": "p", "anything": 1, "stream": True}, raw)
    assert (wanted.job, wanted.stream, wanted.choices) == (raw, True, 1)
    with pytest.raises(OpenAIError):
        parse_for_program({"n": 2}, b"")


@pytest.mark.parametrize("body", [[], "x", {}, {"model": 5}, {"model": None}])
def test_a_model_must_be_named(body: Any) -> None:
    with pytest.raises(OpenAIError) as refused:
        model_of(body)
    assert refused.value.status == 400


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
names = st.sampled_from(
    ["prompt", "messages", "input", "n", "best_of", "max_tokens", "min_tokens", "temperature",
     "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids", "logit_bias", "logprobs",
     "top_logprobs", "echo", "stream", "stream_options", "presence_penalty", "user", "tools",
     "instructions", "x"]
)  # fmt: skip


@settings(deadline=None)
@given(st.dictionaries(names, values), st.sampled_from([parse_completion, parse_chat,
                                                        parse_response]))  # fmt: skip
def test_any_json_is_a_job_or_refused(body: dict[str, Any], parse: Any) -> None:
    base = {"model": "m", "prompt": "p", "messages": [{"role": "user"}], "input": "i"}
    wanted_fields = {parse_completion: "prompt", parse_chat: "messages", parse_response: "input"}
    field = wanted_fields[parse]
    refused: OpenAIError | None = None
    try:
        wanted = parse({"model": "m", field: base[field], **body}, MODEL, LIMITS)
    except OpenAIError as error:
        refused = error
    if refused is None:
        assert job(wanted)["n"] >= 1
    else:
        assert refused.status == 400
        assert refused.document()["error"]["type"] == "invalid_request_error"
