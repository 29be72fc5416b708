"""What the bodies of the OpenAI routes may say, and the jobs they become."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgpack
import pytest
from hypothesis import given
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


def test_job_has_the_length_of_drafts_where_there_are_any() -> None:
    body, drafting = {"model": "m", "prompt": "p"}, replace(MODEL, draft_tokens=5)
    assert job(parse_completion(body, drafting, LIMITS))["drafts"] == 5
    assert "drafts" not in job(parse_completion(body, MODEL, LIMITS))


def completion(**fields: Any) -> dict[str, Any]:
    return job(parse_completion({"model": "m", "prompt": "p", **fields}, MODEL, LIMITS))


def chat(**fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "hi"}]
    return job(parse_chat({"model": "m", "messages": messages, **fields}, MODEL, LIMITS))


def test_completion_without_options_has_openais_defaults() -> None:
    plain = completion()
    assert plain["prompts"] == ["p"]
    assert (plain["n"], plain["best_of"], plain["max"], plain["min"]) == (1, 1, 16, 0)
    assert plain["sample"] == {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    assert (plain["ends"], plain["stop"], plain["bias"]) == ([0, 7], [], {})
    assert not any(plain[name] for name in ("stream", "echo", "ids"))
    assert plain["prefix"] == [3], "what the tokenizer puts before a text"
    assert "logprobs" not in plain
    assert chat()["max"] is None


def test_option_that_is_null_is_the_default() -> None:
    names = ("n", "max_tokens", "stop", "logprobs", "stream", "seed", "logit_bias", "suffix",
             "stream_options", "echo", "user", "temperature")  # fmt: skip
    assert completion(**dict.fromkeys(names)) == completion()


ABSENT = object()
PACKED = b"\x01\0\0\0\x02\0\0\0"


@pytest.mark.parametrize(
    ("ask", "fields", "name", "value"),
    [
        (completion, {"prompt": ["a", "b"]}, "prompts", ["a", "b"]),
        (completion, {"prompt": [1, 2]}, "prompts", [PACKED]),
        (completion, {"prompt": [[1, 2], [1, 2], "x"]}, "prompts", [PACKED, PACKED, "x"]),
        (completion, {"add_special_tokens": False}, "prefix", ABSENT),
        (completion, {"temperature": 0, "seed": 3, "top_k": 5}, "sample", ABSENT),  # greedy
        (completion, {"stop_token_ids": [5]}, "ends", [5, 0, 7]),
        (completion, {"stop_token_ids": [5], "ignore_eos": True}, "ends", [5]),
        (completion, {"return_token_ids": True}, "ids", True),
        (completion, {"stop": "x"}, "stop", ["x"]),
        (completion, {"stop": ["x", "", "y"]}, "stop", ["x", "y"]),
        (completion, {"logprobs": 3}, "logprobs", 3),
        (chat, {"logprobs": True}, "logprobs", 0),
        (chat, {"logprobs": True, "top_logprobs": 4}, "logprobs", 4),
        (chat, {"logprobs": False}, "logprobs", ABSENT),
        (chat, {"max_tokens": 5}, "max", 5),
        (chat, {"max_tokens": 5, "max_completion_tokens": 6}, "max", 6),
        (chat, {"presence_penalty": 1.0, "logit_bias": {"3": -100}}, "bias", {3: -100.0}),
        # Penalties need a bias for each token of the answer, and the two above are taken.
        (chat, {"presence_penalty": 1.0, "logit_bias": {"3": -100}}, "most", PRED_BIAS_MAX - 1 - 2),
    ],
)
def test_option_becomes_a_field_of_the_job(
    ask: Callable[..., dict[str, Any]], fields: dict[str, Any], name: str, value: Any
) -> None:
    assert ask(**fields).get(name, ABSENT) == value


def test_sampling_options_become_the_jobs() -> None:
    assert completion(seed=-1)["sample"]["seed"] == 2**64 - 1
    assert completion(top_k=-1)["sample"]["top_k"] == 0


def test_token_ids_of_a_stream_are_refused() -> None:
    with pytest.raises(OpenAIError, match="not streamed"):
        completion(return_token_ids=True, stream=True)


def test_penalty_with_too_many_tokens_is_refused() -> None:
    with pytest.raises(OpenAIError) as refused:
        chat(presence_penalty=1.0, max_tokens=PRED_BIAS_MAX)
    assert refused.value.param == "max_tokens"


@pytest.mark.parametrize(
    ("ask", "fields", "words"),
    [
        (chat, {"length_penalty": 2}, "is not supported; of its values only 1 may be given"),
        (chat, {"suffix": "x"}, '`suffix` is not supported; of its values only "" may be'),
        (completion, {"suffix": "x"}, "no fill-in-the-middle tokens"),
        (chat, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
         "images are not supported: content must be"),
        (chat, {"messages": [{"role": "user", "content": [{"type": ["image_url"]}]}]},
         "content must be a string"),
    ],
)  # fmt: skip
def test_refused_field_or_image_is_called_unsupported(
    ask: Callable[..., dict[str, Any]], fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(OpenAIError) as refused:
        ask(**fields)
    assert words in str(refused.value)


def messages(parse: Callable[..., ParsedRequest], **fields: Any) -> Any:
    return msgpack.unpackb(job(parse({"model": "m", **fields}, MODEL, LIMITS))["messages"])


def test_chat_message_in_parts_is_one_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    given = [
        {"role": "user", "content": parts, "name": "n"},
        {"role": "assistant", "content": None},
    ]
    assert messages(parse_chat, messages=given) == [
        {"role": "user", "content": "ab", "name": "n"},
        {"role": "assistant", "content": ""},
    ]


def test_response_input_becomes_a_conversation() -> None:
    user = {"role": "user", "content": "hi"}
    assert messages(parse_response, input="hi") == [user]
    given = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
    assert messages(parse_response, input=[given], instructions="be kind") == [
        {"role": "system", "content": "be kind"}, user,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "told",
    [
        {"metadata": {"a": "\ud800"}}, {"metadata": {"a": "x" * 600}},
        {"metadata": {str(i): "" for i in range(17)}}, {"metadata": {"a": [[]]}},
        {"metadata": [[]]}, {"user": "\udfff"}, {"user": {"deep": 1}},
    ],
)  # fmt: skip
def test_response_with_long_or_odd_metadata_is_refused(told: dict[str, Any]) -> None:
    with pytest.raises(OpenAIError):
        parse_response({"model": "m", "input": "hi", **told}, MODEL, LIMITS)


def test_response_with_short_metadata_is_accepted() -> None:
    kept = {"metadata": {"a": "b"}, "user": "me"}
    assert parse_response({"model": "m", "input": "hi", **kept}, MODEL, LIMITS).choices == 1


def test_request_for_a_program_passes_as_it_came() -> None:
    raw = b'{"model": "p", "anything": 1, "stream": true}'
    wanted = parse_for_program({"model": "p", "anything": 1, "stream": True}, raw)
    assert (wanted.job, wanted.stream, wanted.choices) == (raw, True, 1)
    with pytest.raises(OpenAIError):
        parse_for_program({"n": 2}, b"")


@pytest.mark.parametrize("body", [[], "x", {}, {"model": 5}, {"model": None}])
def test_request_without_a_model_is_refused(body: Any) -> None:
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


@given(st.dictionaries(names, values), st.sampled_from([parse_completion, parse_chat,
                                                        parse_response]))  # fmt: skip
def test_any_json_request_is_a_job_or_refused(body: dict[str, Any], parse: Any) -> None:
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
