"""The body of a request for a run."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from symphony_kernel.protocol.limits import RUN_INPUT_BYTES_MAX
from symphony_runtime.gateway.api.requests import parse_run
from symphony_runtime.gateway.errors import Problem
from symphony_runtime.gateway.runs.record import LIMITS_MAX, encode_message, merge_usage


@pytest.mark.parametrize(
    ("body", "read"),
    [
        ({"input": "é"}, "é".encode()),
        ({"input": '"é"'}, '"é"'.encode()),
        ({"input": {"a": "é"}}, '{"a": "é"}'.encode()),
        ({"input": None}, b"null"),
        ({}, b""),
    ],
)
def test_input_is_a_strings_bytes_or_json(body: Any, read: bytes) -> None:
    assert parse_run(body).input == read


def test_limits_asked_for_lower_the_full_table() -> None:
    assert parse_run({}).limits == LIMITS_MAX
    assert parse_run({"limits": {"wall_ms": 5}}).limits == {**LIMITS_MAX, "wall_ms": 5}


@pytest.mark.parametrize(
    "body",
    [
        [], "text", {"inputs": 1}, {"entry": 1}, {"entry": "x" * 200}, {"stream": "yes"},
        {"priority": 8}, {"priority": True}, {"limits": []}, {"limits": {"walls": 1}},
        *({"limits": {name: most + 1}} for name, most in LIMITS_MAX.items()),
        {"limits": {"wall_ms": 0}}, {"limits": {"wall_ms": 1.5}}, {"limits": {"wall_ms": True}},
        {"input": "\ud800"},
    ],
)  # fmt: skip
def test_undescribed_body_is_refused(body: Any) -> None:
    with pytest.raises(Problem) as refused:
        parse_run(body)
    assert refused.value.status == 400


def test_input_past_its_limit_is_refused() -> None:
    assert len(parse_run({"input": "x" * RUN_INPUT_BYTES_MAX}).input) == RUN_INPUT_BYTES_MAX
    with pytest.raises(Problem) as refused:
        parse_run({"input": "x" * RUN_INPUT_BYTES_MAX + "x"})
    assert refused.value.status == 413


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(
    st.dictionaries(
        st.sampled_from(["input", "entry", "limits", "priority", "stream", "x"]), json_values
    )
)
def test_any_json_body_is_parsed_or_refused(body: Any) -> None:
    try:
        request = parse_run(body)
    except Problem as refused:
        refusal = refused.status
    else:
        refusal = 400
        assert set(request.limits) == set(LIMITS_MAX)
    assert refusal in (400, 413)


def test_message_is_shown_as_text_or_base64() -> None:
    assert encode_message(b"") == ""
    assert encode_message("ü".encode()) == "ü"
    assert encode_message(b"\xff") == {"base64": "/w=="}


def test_merged_usage_has_every_key() -> None:
    usage = merge_usage({"cpu_ms": 3, "wall_ms": 4}, {"prompt_tokens": 5})
    assert (usage["cpu_ms"], usage["prompt_tokens"], usage["syscalls"]) == (3, 5, 0)
    assert len(usage) == 8


def test_problem_repeats_lone_surrogates() -> None:
    with pytest.raises(Problem) as refused:
        parse_run({"\ud800": 1})
    body = refused.value.response().body
    assert isinstance(body, bytes)
    assert json.loads(body)["unknown"] == ["\ud800"]
