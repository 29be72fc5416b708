"""Rows with guides beside rows without: a mask is an `allow` that comes while the step computes."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from symphony_kernel.executor.base import Matcher, Row, UInt32
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import MASKS_MS_MAX
from symphony_kernel.protocol.pred_options import Get, PredOptions, Sampling

from tests.support.executor.models import (
    VOCAB,
    ExecutorRig,
    load,
    make_checkpoint,
    make_row,
    random_tokens,
)

SAMPLED = PredOptions(get=Get.SAMPLE, sampling=Sampling(temperature=1.5, top_p=0.9, seed=3))
ASKED = [PredOptions(), SAMPLED, PredOptions(get=Get.TOP, top=4), PredOptions(logprobs=3)]


class Allows:
    """A guide of one place, known beforehand; or one that fails."""

    def __init__(self, allowed: list[int], error: BaseException | None = None) -> None:
        self.allowed, self.error = allowed, error
        self.ended = 0.0

    def fill(
        self,
        start: int,
        tokens: UInt32,
        mask: UInt32,
        began: float | None = None,
        address: int | None = None,
    ) -> SyscallError | None:
        self.ended = time.thread_time()
        if isinstance(self.error, SyscallError):
            return self.error
        if self.error is not None:
            raise self.error
        bits = np.zeros(32 * len(mask), np.uint8)
        bits[self.allowed] = 1
        mask[:] = np.packbits(bits, bitorder="little").view(np.uint32)
        return None


@pytest.fixture
def rig(tmp_path: Path, network: str) -> Any:
    found = load(make_checkpoint(tmp_path))
    yield found
    found.close()


def allow(tokens: list[int]) -> bytes:
    bits = np.zeros(8 * -(-VOCAB // 8), np.uint8)
    bits[tokens] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def rows(
    rig: ExecutorRig, guided: Callable[[int], Matcher | None], options: list[PredOptions]
) -> list[Row]:
    made = []
    for number, each in enumerate(options):
        count = 1 if number % 3 else 5
        row = make_row(random_tokens(count, number), rig.table(count), 0, each, seed=number)
        row.matcher = guided(number)
        made.append(row)
    return made


def sets(number: int) -> list[int]:
    return list(range(number, VOCAB, number + 2))


def test_a_mask_is_what_allow_would_be(rig: ExecutorRig) -> None:
    options = [ASKED[number % len(ASKED)] for number in range(9)]
    every_third = [number for number in range(9) if number % 3 != 1]
    plain = [
        PredOptions(
            get=each.get, top=each.top, sampling=each.sampling, logprobs=each.logprobs,
            allow=allow(sets(number)) if number in every_third else None,
        )
        for number, each in enumerate(options)
    ]  # fmt: skip
    wanted = rig.run(rows(rig, lambda _: None, plain))
    for _ in range(2):  # the second time the step asks as the last one did
        found = rig.run(rows(rig, lambda n: Allows(sets(n)) if n in every_third else None, options))
        assert found == wanted
    assert rig.run(rows(rig, lambda _: None, options)) != wanted, "a mask is its step's alone"


def test_a_mask_counts_beside_allow_and_an_error_is_its_rows_alone(rig: ExecutorRig) -> None:
    options = [PredOptions(allow=allow([4, 9])), PredOptions(), PredOptions(), PredOptions()]
    matchers: list[Matcher | None] = [
        Allows([9, 11]), Allows([3], SyscallError(Errno.EFBIG, "too much")), None, Allows([]),
    ]  # fmt: skip
    found = rig.run(rows(rig, matchers.__getitem__, options))
    assert isinstance(found[0], bytes)
    assert int.from_bytes(found[0][:4], "little") == 9
    assert [each.errno for each in found if isinstance(each, SyscallError)] == [
        Errno.EFBIG,
        Errno.EINVAL,
    ]
    alone = rig.run(rows(rig, lambda _: None, options))
    assert found[2] == alone[2]


class PanicError(BaseException):
    """What a library that is not Python's raises."""


def test_a_fault_of_a_guide_is_its_rows_alone(rig: ExecutorRig) -> None:
    options = [PredOptions()] * 3
    matchers = [Allows([], ZeroDivisionError()), Allows([5]), Allows([], PanicError())]
    found = rig.run(rows(rig, matchers.__getitem__, options))
    assert [each.errno for each in found if isinstance(each, SyscallError)] == [Errno.EIO] * 2
    assert isinstance(found[1], bytes)
    assert found[1][:4] == bytes([5, 0, 0, 0])
    found = rig.run(rows(rig, lambda _: Allows([5]), options))
    assert [each[:4] for each in found if isinstance(each, bytes)] == [bytes([5, 0, 0, 0])] * 3


class Slow(Allows):
    """A guide that takes all the time that a step has."""

    def fill(
        self,
        start: int,
        tokens: UInt32,
        mask: UInt32,
        began: float | None = None,
        address: int | None = None,
    ) -> SyscallError | None:
        until = time.thread_time() + 1.1 * MASKS_MS_MAX / 1000
        while time.thread_time() < until:
            pass
        return super().fill(start, tokens, mask, began, address)


def test_no_step_waits_for_a_second_slow_mask(rig: ExecutorRig) -> None:
    options = [PredOptions()] * 4
    found = rig.run(rows(rig, lambda n: Slow([n + 1]) if n != 1 else None, options))
    assert isinstance(found[0], bytes)
    assert found[0][:4] == bytes([1, 0, 0, 0])
    assert isinstance(found[1], bytes), "it has no guide"
    later = [each.errno for each in found[2:] if isinstance(each, SyscallError)]
    assert later == [Errno.EAGAIN] * 2
