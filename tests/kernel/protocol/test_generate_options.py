"""The options of `generate`: those of pred that apply to it, and its own."""

from typing import Any

import msgpack
import pytest
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.generate_options import (
    GENERATE_DEFAULT,
    GenerateOptions,
    parse_generate_options,
)
from symphony_kernel.protocol.limits import (
    FILE_ENTRIES_MAX,
    GENERATE_AHEAD_MAX,
    GENERATE_STOP_MAX,
    PRED_OPTIONS_BYTES_MAX,
)
from symphony_kernel.protocol.pred_options import DEFAULT, Get, PredOptions, Sampling

NO_MAPS = [b"\xc1", b"\x80\x80", b"\x90", b"\x01", b"\xdd\xff\xff\xff\xff"]


def parse(**given: Any) -> GenerateOptions:
    return parse_generate_options(msgpack.packb(given))


def test_options_without_bytes_are_greedy_and_unlimited() -> None:
    assert parse_generate_options(b"") is GENERATE_DEFAULT
    assert parse() == GENERATE_DEFAULT
    assert GENERATE_DEFAULT.tokens_max > FILE_ENTRIES_MAX
    assert (GENERATE_DEFAULT.stop, GENERATE_DEFAULT.ahead) == (frozenset(), 8)


def test_options_max_stop_and_ahead_are_accepted() -> None:
    made = parse(max=7, stop=[3, 0, 3], ahead=0)
    assert made == GenerateOptions(DEFAULT, 7, frozenset({0, 3}), 0)
    assert made.pred is DEFAULT
    assert parse(max=2**32 - 1, stop=[2**32 - 1], ahead=GENERATE_AHEAD_MAX).tokens_max == 2**32 - 1


def test_option_lot_is_limited_by_ahead() -> None:
    assert (GENERATE_DEFAULT.lot, GENERATE_DEFAULT.gathered) == (1, 1)
    assert (parse(lot=4).lot, parse(lot=4).gathered) == (4, 4)
    assert parse(lot=GENERATE_AHEAD_MAX).gathered == 9
    assert parse(lot=7, ahead=0).gathered == 1


def test_options_of_pred_apply_to_each_step() -> None:
    made = parse(get={"sample": {"seed": 4}}, bias={}, allow=b"\x01", at="last", keep=True)
    assert made.pred == PredOptions(
        get=Get.SAMPLE, sampling=Sampling(seed=4), allow=b"\x01", at="last", keep=True
    )


@pytest.mark.parametrize(
    "given",
    [
        {"at": "all"}, {"at": [0]}, {"at": []}, {"parents": [-1]}, {"keep": False},
        {"get": "none"}, {"get": "logits"}, {"get": {"top": 1}}, {"get": {"of": [1]}},
        {"max": 0}, {"max": -1}, {"max": 2**32}, {"max": 1.5}, {"max": True}, {"max": None},
        {"stop": 3}, {"stop": "3"}, {"stop": [-1]}, {"stop": [2**32]}, {"stop": [True]},
        {"stop": [[1]]}, {"stop": [0] * (GENERATE_STOP_MAX + 1)},
        {"ahead": -1}, {"ahead": GENERATE_AHEAD_MAX + 1}, {"ahead": "8"}, {"ahead": False},
        {"lot": 0}, {"lot": GENERATE_AHEAD_MAX + 1}, {"lot": True}, {"lot": None},
        {"positions": b""}, {"Max": 1}, {"stops": [1]},
    ],
    ids=str,
)  # fmt: skip
def test_option_with_a_wrong_value_is_einval_and_named(given: dict[str, Any]) -> None:
    with pytest.raises(SyscallError) as raised:
        parse(**given)
    assert raised.value.errno is Errno.EINVAL
    assert next(iter(given)) in raised.value.detail


@pytest.mark.parametrize(
    ("data", "errno"),
    [
        *((data, Errno.EINVAL) for data in NO_MAPS),
        (msgpack.packb({"adapter": 1}), Errno.EINVAL),
        (msgpack.packb({"adapter": "other/sha256:0"}), Errno.EINVAL),
        (bytes(PRED_OPTIONS_BYTES_MAX + 1), Errno.EFBIG),
    ],
    ids=lambda each: str(each)[:40],
)
def test_bytes_that_are_no_options_have_their_errno(data: bytes, errno: Errno) -> None:
    with pytest.raises(SyscallError) as raised:
        parse_generate_options(data)
    assert raised.value.errno is errno
