"""JSON that nests: parsed up to a bound, and counted as it is written."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from symphony_kernel.protocol.limits import JSON_DEPTH_MAX
from symphony_runtime.bounded_json import DeepJsonError, load_json, nests_deeper

VALUES = st.recursive(
    st.none() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=20,
)


def nested(depth: int) -> bytes:
    return (
        b'{"[":' * (depth // 2)
        + b"[" * (depth - depth // 2)
        + b"]" * (depth - depth // 2)
        + (b"}" * (depth // 2))
    )


@pytest.mark.parametrize("depth", [0, 1, 2, JSON_DEPTH_MAX])
def test_json_within_the_bound_is_parsed(depth: int) -> None:
    data = nested(depth) or b"1"
    assert load_json(b"\xef\xbb\xbf" + data) == json.loads(data)


@pytest.mark.parametrize("depth", [JSON_DEPTH_MAX + 1, 900, 990, 100_000])
def test_json_past_the_bound_is_refused(depth: int) -> None:
    with pytest.raises(DeepJsonError):
        load_json(nested(depth))


def test_json_of_very_many_shallow_values_is_parsed() -> None:
    data = json.dumps([[{}]] * 10_000).encode()
    assert len(load_json(data)) == 10_000


@pytest.mark.parametrize(
    "data", [b"NaN", b"[-Infinity]", b"{", b"\xff", b"1 2", "{}".encode("utf-16")]
)
def test_json_that_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"JSON|Expecting|decode|Extra") as caught:
        load_json(data)
    assert not isinstance(caught.value, DeepJsonError)


def depth_of(value: object) -> int:
    if not isinstance(value, dict | list):
        return 0
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max(map(depth_of, inner), default=0)


@given(VALUES)
def test_depth_is_that_of_the_value(value: object) -> None:
    depth = depth_of(value)
    assert not nests_deeper(value, depth)
    assert not depth or nests_deeper(value, depth - 1)
