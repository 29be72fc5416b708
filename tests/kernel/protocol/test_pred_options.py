"""The options of pred: what is accepted, what it becomes, and the errno of each mistake."""

import struct
import time
from dataclasses import replace
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import (
    PRED_BIAS_MAX,
    PRED_LOGPROBS_MAX,
    PRED_OPTIONS_BYTES_MAX,
    PRED_TOKENS_MAX,
    PRED_TOP_MAX,
    PRED_TREE_TOKENS_MAX,
)
from symphony_kernel.protocol.pred_options import (
    DEFAULT,
    Get,
    PredOptions,
    Sampling,
    parse_pred_options,
)

NAN, INFINITY = float("nan"), float("inf")
NO_MAPS = [b"\xc1", b"\x90", b"\x05", b"\xc0", b"\x80\x80", b"\x81\xa2at"]


def parse(**options: Any) -> PredOptions:
    return parse_pred_options(msgpack.packb(options))


def outcome(data: bytes) -> PredOptions | Errno:
    try:
        return parse_pred_options(data)
    except SyscallError as error:
        return error.errno


SAMPLED = PredOptions(get=Get.SAMPLE, sampling=Sampling())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, DEFAULT),
        ({"at": "last"}, DEFAULT),
        ({"at": "all"}, PredOptions(at="all")),
        ({"at": [3, 0, 3]}, PredOptions(at=(3, 0, 3))),
        ({"at": []}, PredOptions(at=())),
        ({"get": "argmax"}, DEFAULT),
        ({"get": "none"}, PredOptions(get=Get.NONE)),
        ({"get": "logits"}, PredOptions(get=Get.LOGITS)),
        ({"get": {"top": 5}}, PredOptions(get=Get.TOP, top=5)),
        ({"get": {"of": [7, 7, 9]}}, PredOptions(get=Get.OF, of=(7, 7, 9))),
        ({"get": {"sample": {}}}, SAMPLED),
        (
            {"get": {"sample": {"temperature": 0, "top_k": 40, "top_p": 0.9, "min_p": 0.05,
                                "seed": 2**64 - 1}}},
            PredOptions(get=Get.SAMPLE, sampling=Sampling(0.0, 40, 0.9, 0.05, 2**64 - 1)),
        ),
        ({"logprobs": 0}, DEFAULT),
        ({"logprobs": 20, "get": "argmax"}, PredOptions(logprobs=20)),
        ({"logprobs": 1, "get": {"sample": {}}}, replace(SAMPLED, logprobs=1)),
        ({"bias": {5: -1.5, 9: 2}}, PredOptions(bias=((5, -1.5), (9, 2.0)))),
        ({"allow": b"\xff\x00"}, PredOptions(allow=b"\xff\x00")),
        ({"bias_mask": {"mask": b"\x05", "value": 2}}, PredOptions(bias_mask=(b"\x05", 2.0))),
        ({"repetition": {"mask": b"\x05", "penalty": 2}}, PredOptions(repetition=(b"\x05", 2.0))),
        ({"parents": [-1, 0, 0, 2]}, PredOptions(parents=(-1, 0, 0, 2))),
        ({"parents": struct.pack("<3i", -1, -1, 0)}, PredOptions(parents=(-1, -1, 0))),
        ({"keep": False}, PredOptions(keep=False)),
        ({"constraint": 3, "since": 7}, PredOptions(constraint=3, since=7)),
    ],
)  # fmt: skip
def test_options_that_are_documented_are_accepted(
    given: dict[str, Any], expected: PredOptions
) -> None:
    assert parse(**given) == expected


def test_options_without_bytes_are_the_default_and_equal_ones_shared() -> None:
    assert parse_pred_options(b"") is DEFAULT
    data = msgpack.packb({"at": "all"})
    assert parse_pred_options(data) is parse_pred_options(bytes(data))


@pytest.mark.parametrize(
    "wrong",
    [
        {"colour": 1}, {"at": "first"}, {"at": 5}, {"at": [-1]}, {"at": [2**31]}, {"at": [1.0]},
        {"at": [True]}, {"at": None}, {"at": {"a": 1}},
        {"get": "max"}, {"get": {}}, {"get": None}, {"get": 3}, {"get": ["top", 3]},
        {"get": {"top": 0}}, {"get": {"top": PRED_TOP_MAX + 1}}, {"get": {"top": 1, "of": [1]}},
        {"get": {"top": True}},
        {"logprobs": -1}, {"logprobs": PRED_LOGPROBS_MAX + 1}, {"logprobs": True},
        {"logprobs": 1, "get": "none"}, {"logprobs": 1, "get": "logits"},
        {"logprobs": 1, "get": {"top": 2}}, {"logprobs": 1, "get": {"of": [1]}},
        {"get": {"of": []}}, {"get": {"of": [-1]}}, {"get": {"of": "x"}},
        {"get": {"of": [0] * (PRED_BIAS_MAX + 1)}},
        {"get": {"sample": None}}, {"get": {"sample": {"heat": 1}}}, {"get": {"sample": {1: 1}}},
        {"get": {"sample": {"temperature": -0.1}}}, {"get": {"sample": {"temperature": NAN}}},
        {"get": {"sample": {"temperature": INFINITY}}}, {"get": {"sample": {"temperature": "1"}}},
        {"get": {"sample": {"top_p": 1.1}}}, {"get": {"sample": {"min_p": -1}}},
        {"get": {"sample": {"top_k": -1}}}, {"get": {"sample": {"top_k": 1.5}}},
        {"get": {"sample": {"seed": -1}}}, {"get": {"sample": {"seed": 1.0}}},
        {"bias": [1]}, {"bias": {"x": 1}}, {"bias": {-1: 1}}, {"bias": {1: NAN}},
        {"bias": {1: None}}, {"bias": dict.fromkeys(range(PRED_BIAS_MAX + 1), 0.0)},
        {"bias_mask": b"\x05"}, {"bias_mask": {"mask": b"\x05"}},
        {"bias_mask": {"mask": "text", "value": 1.0}},
        {"repetition": {"mask": b"\x05", "penalty": 0}}, {"repetition": {"mask": b"\x05"}},
        {"repetition": {"mask": 1, "penalty": 1.1}}, {"repetition": 1.1},
        {"get": "hidden", "repetition": {"mask": b"\x05", "penalty": 1.1}},
        {"bias_mask": {"mask": b"\x05", "value": INFINITY}},
        {"bias_mask": {"mask": b"\x05", "value": 1.0, "also": 1}},
        {"allow": "text"}, {"allow": [1]},
        {"parents": []}, {"parents": [0]}, {"parents": [-1, 1]}, {"parents": [-2]},
        {"parents": [-1, -1.0]}, {"parents": b"\xff\xff\xff"}, {"parents": b""},
        {"parents": [-1] * (PRED_TREE_TOKENS_MAX + 1)}, {"parents": 5},
        {"keep": 1}, {"keep": None},
        {"constraint": 0}, {"constraint": True}, {"constraint": 2**31}, {"since": 1},
        {"constraint": 1, "since": -1}, {"constraint": 1, "at": "all"},
        {"constraint": 1, "parents": [-1]},
        {"get": "hidden", "bias": {1: 1.0}}, {"get": "hidden", "allow": b"\x05"},
        {"get": "hidden", "bias_mask": {"mask": b"\x05", "value": 1.0}},
        {"get": "hidden", "constraint": 1}, {"get": "hidden", "logprobs": 1},
        {"get": {"hidden": "mean"}},
    ],
    ids=lambda wrong: str(wrong)[:40],
)  # fmt: skip
def test_option_with_a_wrong_value_is_einval(wrong: dict[str, Any]) -> None:
    assert outcome(msgpack.packb(wrong)) is Errno.EINVAL


def test_options_that_claim_to_be_huge_are_refused_cheaply() -> None:
    """A guest makes such a call with one import, and the calls of all others wait for it.

    A second is a hundred times what it takes.
    """
    nested = b"\xdd\x00\x0f\xfb\x00" * 900  # lists of a million items, each in the one before
    many = b"\x81\xa2at\xdd\x00\x0f\x42\x40" + bytes(1_000_000)
    allowed = msgpack.packb({"at": [0] * PRED_TOKENS_MAX})
    began = time.process_time()
    for _ in range(10):
        assert outcome(nested.ljust(PRED_OPTIONS_BYTES_MAX, b"\xc0")) is Errno.EINVAL
        assert outcome(many) is Errno.EINVAL
        assert isinstance(outcome(allowed), PredOptions)
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    ("data", "errno"),
    [
        *((data, Errno.EINVAL) for data in NO_MAPS),
        (msgpack.packb({"adapter": 1}), Errno.EINVAL),
        (msgpack.packb({"adapter": "other/sha256:0"}), Errno.EINVAL),
        (b"\xc1" * (PRED_OPTIONS_BYTES_MAX + 1), Errno.EFBIG),
    ],
    ids=lambda each: str(each)[:40],
)
def test_bytes_that_are_no_options_have_their_errno(data: bytes, errno: Errno) -> None:
    assert outcome(data) is errno


@given(st.binary(max_size=300))
def test_bytes_at_random_are_options_or_an_errno(data: bytes) -> None:
    assert isinstance(outcome(data), PredOptions) or outcome(data) in (Errno.EINVAL, Errno.ENOSYS)


@given(
    st.dictionaries(
        st.sampled_from(["at", "get", "bias", "bias_mask", "allow", "parents", "keep"]),
        st.recursive(
            st.none() | st.booleans() | st.integers(-5, 70000) | st.floats() | st.text(max_size=4)
            | st.binary(max_size=8)
            | st.sampled_from(["all", "last", "logits", "hidden", "sample", "top"]),
            lambda inner: st.lists(inner, max_size=3)
            | st.dictionaries(st.text(max_size=3) | st.sampled_from(["top", "of", "sample"]), inner)
            | st.dictionaries(st.integers(0, 9), inner, max_size=3),
            max_leaves=6,
        ),
    )
)  # fmt: skip
def test_map_at_random_is_options_or_an_errno(options: dict[str, Any]) -> None:
    parsed = outcome(msgpack.packb(options))
    if isinstance(parsed, PredOptions):
        hash(parsed)
        assert parsed.places(4) >= 0
        assert parsed.place_bytes(10, 8) >= 0
    else:
        assert parsed is Errno.EINVAL


@pytest.mark.parametrize(
    ("options", "places", "size"),
    [
        (DEFAULT, 1, 8), (PredOptions(at="all"), 7, 8), (PredOptions(at=(1, 2, 1)), 3, 8),
        (PredOptions(get=Get.NONE, at="all"), 0, 0), (PredOptions(get=Get.TOP, top=6), 1, 48),
        (PredOptions(get=Get.OF, of=(1, 2, 3)), 1, 12), (PredOptions(get=Get.LOGITS), 1, 4000),
        (PredOptions(get=Get.SAMPLE, sampling=Sampling()), 1, 8),
        (PredOptions(get=Get.HIDDEN, at="all"), 7, 256),
    ],
)  # fmt: skip
def test_result_size_follows_from_the_options(options: PredOptions, places: int, size: int) -> None:
    assert options.places(7) == places
    assert options.place_bytes(1000, 64) == size
