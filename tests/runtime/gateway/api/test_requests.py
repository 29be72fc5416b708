"""What the body of a request for a run may say."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from symphony_kernel.protocol.limits import RUN_INPUT_BYTES_MAX
from symphony_runtime.gateway.api.requests import parse_run
from symphony_runtime.gateway.errors import Problem
from symphony_runtime.gateway.runs.record import LIMITS_MAX, encode_message, merge_usage


def test_a_string_is_its_bytes_and_the_rest_is_json() -> None:
    assert parse_run({"input": "é"}).input == "é".encode()
    assert parse_run({"input": '"é"'}).input == '"é"'.encode()
    assert parse_run({"input": {"a": "é"}}).input == '{"a": "é"}'.encode()
    assert parse_run({"input": None}).input == b"null"
    assert parse_run({}).input == b""


def test_limits_are_lowered_and_complete() -> None:
    assert parse_run({}).limits == LIMITS_MAX
    assert parse_run({"limits": {"wall_ms": 5}}).limits == {**LIMITS_MAX, "wall_ms": 5}


@pytest.mark.parametrize(
    "body",
    [
        [],
        "text",
        {"inputs": 1},
        {"entry": 1},
        {"entry": "x" * 200},
        {"stream": "yes"},
        {"priority": 8},
        {"priority": True},
        {"limits": []},
        {"limits": {"walls": 1}},
        *({"limits": {name: most + 1}} for name, most in LIMITS_MAX.items()),
        {"limits": {"wall_ms": 0}},
        {"limits": {"wall_ms": 1.5}},
        {"limits": {"wall_ms": True}},
        {"input": "\ud800"},
    ],
)
def test_what_is_not_described_is_refused(body: Any) -> None:
    with pytest.raises(Problem) as refused:
        parse_run(body)
    assert refused.value.status == 400


def test_an_input_has_a_limit() -> None:
    assert len(parse_run({"input": "x" * RUN_INPUT_BYTES_MAX}).input) == RUN_INPUT_BYTES_MAX
    with pytest.raises(Problem) as refused:
        parse_run({"input": "x" * RUN_INPUT_BYTES_MAX + "x"})
    assert refused.value.status == 413


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # others compute, too
@given(
    st.dictionaries(
        st.sampled_from(["input", "entry", "limits", "priority", "stream", "x"]), json_values
    )
)
def test_any_json_is_parsed_or_refused(body: Any) -> None:
    try:
        request = parse_run(body)
    except Problem as refused:
        refusal = refused.status
    else:
        refusal = 400
        assert set(request.limits) == set(LIMITS_MAX)
    assert refusal in (400, 413)


def test_messages_are_text_where_they_can_be() -> None:
    assert encode_message(b"") == ""
    assert encode_message("ü".encode()) == "ü"
    assert encode_message(b"\xff") == {"base64": "/w=="}


def test_usage_has_every_key() -> None:
    usage = merge_usage({"cpu_ms": 3, "wall_ms": 4}, {"prompt_tokens": 5})
    assert (usage["cpu_ms"], usage["prompt_tokens"], usage["syscalls"]) == (3, 5, 0)
    assert len(usage) == 8


def test_a_problem_may_repeat_what_is_no_unicode() -> None:
    with pytest.raises(Problem) as refused:
        parse_run({"\ud800": 1})
    body = refused.value.response().body
    assert isinstance(body, bytes)
    assert json.loads(body)["unknown"] == ["\ud800"]
