"""KV calls and `pred` as a guest sees them, with the kernel behind them."""

import struct

import msgpack
import pytest
from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.limits import INSTANCE_HANDLES_MAX
from symphony_runtime.abi import table

from tests.support.worker import guests
from tests.support.worker.guests import data, drop, main, result, times
from tests.support.worker.rig import WorkerRig

EBADF, EACCES, EINVAL = -Errno.EBADF, -Errno.EACCES, -Errno.EINVAL
R, A, T, S, G = (table().rights[name] for name in "RATSG")
PROMPT = data(100, struct.pack("<4I", 5, 6, 7, 8))
PATHS = data(300, "a/b") + data(310, "c") + data(320, "/public/x/y")


def pred(kv: str, tokens: int = 100, n: int = 4, opts: int = 0, opts_len: int = 0) -> guests.Step:
    return ("pred", kv, tokens, n, 0, opts, opts_len)


def options(offset: int, /, **given: object) -> tuple[str, int]:
    """Return the data segment of pred's options and their length."""
    packed = msgpack.packb(given)
    return data(offset, packed), len(packed)


async def test_pred_appends_and_answers_with_a_token(rig: WorkerRig) -> None:
    found = await rig.play(
        ("kv_create",), pred(result(0)), ("claim", result(1), 0, 8), ("show", 0, 8),
        ("kv_len", result(0)), ("kv_tokens", result(0), 1, 3, 0), ("show", 0, 12),
        ("kv_tokens", result(0), 2, 3, 0), ("kv_tokens", result(0), 4, 0, 0),
        parts=(PROMPT,),
    )  # fmt: skip
    assert found[2] == 8
    assert found[4:6] == [4, 3]
    assert found[6] == struct.pack("<3I", 6, 7, 8)
    assert found[7:] == [EINVAL, 0]
    again = await rig.play(
        ("kv_create",), pred(result(0)), ("claim", result(1), 0, 8), ("show", 0, 8),
        parts=(PROMPT,),
    )  # fmt: skip
    assert again[3] == found[3]


async def test_kv_forks_are_independent_and_truncation_rolls_back(rig: WorkerRig) -> None:
    found = await rig.play(
        ("kv_create",), pred(result(0)), ("kv_fork", result(0)),
        pred(result(0), 104, 1), pred(result(2), 108, 1),
        ("await", result(1)), ("await", result(3)), ("claim", result(4), 0, 8),
        ("kv_len", result(0)), ("kv_len", result(2)),
        ("kv_tokens", result(2), 0, 5, 0), ("show", 16, 4),
        ("kv_truncate", result(2), 4), ("kv_len", result(2)), ("kv_truncate", result(2), 5),
        ("kv_extract", result(0), 400, 2), ("kv_tokens", result(15), 0, 3, 0), ("show", 0, 12),
        ("kv_append", result(15), result(0), 0, 2), ("kv_len", result(15)),
        ("kv_append", result(15), result(0), 3, 2),
        parts=(PROMPT, data(400, struct.pack("<4I", 0, 1, 2, 4))),
    )  # fmt: skip
    assert found[8:11] == [5, 5, 5]
    assert found[11] == struct.pack("<I", 7)
    assert found[12:15] == [0, 4, EINVAL]
    assert found[16:] == [3, struct.pack("<3I", 5, 7, 8), 0, 5, EINVAL]


async def test_kv_file_that_failed_keeps_its_answer_until_it_is_closed(rig: WorkerRig) -> None:
    found = await rig.play(
        ("kv_create",), ("kv_extract", result(0), 400, 1), ("kv_len", result(1)),
        pred(result(1)), ("claim", result(3), 0, 8), ("kv_close", result(1)),
        ("kv_len", result(1)),
        parts=(PROMPT, data(400, struct.pack("<2I", 0, 9))),
    )  # fmt: skip
    assert found[2] == EINVAL
    assert found[4:] == [EINVAL, 0, EBADF]


async def test_kv_names_are_saved_opened_listed_and_removed(rig: WorkerRig) -> None:
    found = await rig.play(
        ("kv_create",), pred(result(0)), ("await", result(1)),
        ("kv_save", result(0), 300, 3, 0), ("kv_save", result(0), 300, 3, 0),
        ("kv_save", result(0), 300, 3, 1),
        ("kv_open", 300, 3, R | A), ("kv_len", result(6)), ("kv_save", result(6), 310, 1, 0),
        ("kv_open", 310, 1, R), ("kv_open", 320, 11, R),
        ("kv_list", 0, 0, 0, 0), ("kv_list", 300, 1, 0, 2000), ("show", 0, result(12)),
        ("kv_remove", 300, 3), ("kv_remove", 300, 3), ("kv_len", result(6)),
        ("kv_save", result(0), 300, 3, 2), ("kv_save", result(0), 300, 3, 4),
        ("kv_save", result(0), 300, 3, 8),
        parts=(PROMPT, PATHS),
    )  # fmt: skip
    enoent = -Errno.ENOENT
    assert found[3:6] == [0, -Errno.EEXIST, 0]
    assert found[7:11] == [4, EACCES, enoent, enoent]
    assert found[11] == found[12]
    assert isinstance(found[13], bytes)
    (listed,) = msgpack.unpackb(found[13])
    assert (listed["path"], listed["len"]) == ("a/b", 4)
    assert found[14:] == [0, enoent, 4, -Errno.ENOSYS, EACCES, EINVAL]


async def test_kv_rights_only_shrink(rig: WorkerRig) -> None:
    found = await rig.play(
        ("kv_create",), pred(result(0)), ("await", result(1)),
        ("kv_save", result(0), 300, 3, 0),
        ("kv_open", 300, 3, R), pred(result(4)), ("kv_truncate", result(4), 0),
        ("kv_save", result(4), 310, 1, 0), ("kv_append", result(4), result(0), 0, 1),
        ("kv_grant", result(4), 0, R, 300, 3), ("kv_fork", result(4)), pred(result(10)),
        ("kv_open", 300, 3, A), ("kv_len", result(12)), ("kv_fork", result(12)),
        pred(result(12)), ("kv_append", result(0), result(12), 0, 1),
        ("kv_stat", result(12), 0, 0), ("kv_tokens", result(12), 0, 1, 0),
        ("kv_open", 300, 3, 0), ("kv_len", result(19)), ("kv_close", result(19)),
        ("kv_open", 300, 3, 32),
        parts=(PROMPT, PATHS),
    )  # fmt: skip
    assert found[5:10] == [EACCES] * 5
    assert found[11] == EACCES
    assert found[13:19] == [EACCES] * 6
    assert found[20:] == [EACCES, 0, EINVAL]


async def test_kv_stat_has_length_pages_and_rights(rig: WorkerRig) -> None:
    found = await rig.play(
        ("kv_create",), pred(result(0)), ("await", result(1)),
        ("kv_stat", result(0), 0, 1), ("kv_stat", result(0), 0, 500), ("show", 0, result(4)),
        parts=(PROMPT,),
    )  # fmt: skip
    assert found[3] == found[4]
    assert isinstance(found[5], bytes)
    status = msgpack.unpackb(found[5])
    assert (status["len"], status["pages"], status["rights"]) == (4, 1, 31)


async def test_kv_handle_numbers_return_with_another_generation(rig: WorkerRig) -> None:
    once = f"(local.set $last (call $kv_create)) {drop('kv_close', '(local.get $last)')}"
    body = f"{times(INSTANCE_HANDLES_MAX + 2, once)} (local.get $last)"
    ended = await rig.run(main(body, locals_="(local $n i32) (local $last i32)"))
    assert ended.exit_code == (2 << 16 | 1)


@pytest.mark.parametrize(
    ("given", "length"),
    [
        ({"at": "all"}, 32), ({"at": [3, 0]}, 16), ({"get": "none"}, 0), ({"get": {"top": 5}}, 40),
        ({"get": {"of": [1, 2, 3]}}, 12), ({"logprobs": 3}, 32),
        ({"logprobs": 20, "at": "all", "get": {"sample": {"seed": 1}}}, 4 * 168),
        ({"get": {"sample": {"seed": 1, "temperature": 0.5}}}, 8), ({"get": "logits"}, 4 * 4096),
        ({"parents": [-1, -1, 0, 1]}, 8), ({"keep": False}, 8), ({"bias": {1: 2.5}}, 8),
        ({"bias_mask": {"mask": b"\x55" * 512, "value": 2.5}}, 8),
    ],
)  # fmt: skip
async def test_pred_options_decide_the_length_of_the_result(
    rig: WorkerRig, given: dict[str, object], length: int
) -> None:
    segment, size = options(500, **given)
    found = await rig.play(
        ("kv_create",), pred(result(0), opts=500, opts_len=size), ("claim", result(1), 0, 0),
        ("take", result(1), 20_000, 20_000), ("take", result(1), 0, 0), ("kv_len", result(0)),
        parts=(PROMPT, segment),
    )  # fmt: skip
    assert found[2] == length
    assert found[3] == (length or EBADF)  # an empty result fitted at once
    assert found[4] == EBADF
    assert found[5] == (0 if given.get("keep") is False else 4)


@pytest.mark.parametrize(
    ("given", "errno"),
    [
        ({"unknown": 1}, Errno.EINVAL),
        ({"at": [4]}, Errno.EINVAL),
        ({"parents": [-1]}, Errno.EINVAL),
        ({"get": {"top": 0}}, Errno.EINVAL),
        ({"get": {"top": 1}, "logprobs": 1}, Errno.EINVAL),
        ({"adapter": "a name"}, Errno.EINVAL),
    ],
)
async def test_pred_with_wrong_options_is_refused_at_once(
    rig: WorkerRig, given: dict[str, object], errno: Errno
) -> None:
    segment, size = options(500, **given)
    found = await rig.play(
        ("kv_create",), pred(result(0), opts=500, opts_len=size), parts=(PROMPT, segment)
    )
    assert found[1] == -errno


async def test_pred_that_is_cancelled_is_dropped_and_the_file_is_usable(rig: WorkerRig) -> None:
    found = await rig.play(
        ("kv_create",), pred(result(0)), pred(result(0)), ("cancel", result(2)),
        ("claim", result(1), 0, 8), pred(result(0), n=1), ("claim", result(5), 0, 8),
        ("take", result(2), 0, 8), ("kv_len", result(0)),
        parts=(PROMPT,),
    )  # fmt: skip
    assert found[3:5] == [0, 8]
    assert found[6:8] == [8, EBADF]
    assert found[8] in (5, 9)  # it may have been computed already
