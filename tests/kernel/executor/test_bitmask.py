"""Rows with matchers: a mask is an `allow` that is made while the step computes."""

from collections.abc import Callable

from symphony_kernel.executor.base import Matcher, Row
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import MASKS_MS_MAX
from symphony_kernel.protocol.pred_options import Get, PredOptions, Sampling

from tests.support.executor.models import (
    VOCAB,
    Allows,
    ExecutorRig,
    make_row,
    mask_of,
    random_tokens,
    tokens_of,
)

SAMPLED = PredOptions(get=Get.SAMPLE, sampling=Sampling(temperature=1.5, top_p=0.9, seed=3))
ASKED = [PredOptions(), SAMPLED, PredOptions(get=Get.TOP, top=4), PredOptions(logprobs=3)]


def rows(
    rig: ExecutorRig, matcher_of: Callable[[int], Matcher | None], options: list[PredOptions]
) -> list[Row]:
    made = []
    for number, each in enumerate(options):
        count = 1 if number % 3 else 5
        row = make_row(random_tokens(count, number), rig.table(count), 0, each, seed=number)
        row.matcher = matcher_of(number)
        made.append(row)
    return made


def sets(number: int) -> list[int]:
    return list(range(number, VOCAB, number + 2))


def test_mask_answers_as_allow_would(rig: ExecutorRig) -> None:
    options = [ASKED[number % len(ASKED)] for number in range(9)]
    every_third = [number for number in range(9) if number % 3 != 1]
    plain = [
        PredOptions(
            get=each.get, top=each.top, sampling=each.sampling, logprobs=each.logprobs,
            allow=mask_of(sets(number)) if number in every_third else None,
        )
        for number, each in enumerate(options)
    ]  # fmt: skip
    wanted = rig.run(rows(rig, lambda _: None, plain))
    for _ in range(2):  # the second time the step asks as the last one did
        found = rig.run(rows(rig, lambda n: Allows(sets(n)) if n in every_third else None, options))
        assert found == wanted
    assert rig.run(rows(rig, lambda _: None, options)) != wanted, "a mask is its step's alone"


def test_mask_with_allow_permits_both_and_an_error_fails_its_row(rig: ExecutorRig) -> None:
    options = [PredOptions(allow=mask_of([4, 9])), PredOptions(), PredOptions(), PredOptions()]
    matchers: list[Matcher | None] = [
        Allows([9, 11]), Allows([3], SyscallError(Errno.EFBIG, "too much")), None, Allows([]),
    ]  # fmt: skip
    found = rig.run(rows(rig, matchers.__getitem__, options))
    assert tokens_of(found[:1]) == [9]
    errnos = [each.errno for each in found if isinstance(each, SyscallError)]
    assert errnos == [Errno.EFBIG, Errno.EINVAL]
    alone = rig.run(rows(rig, lambda _: None, options))
    assert found[2] == alone[2]


class PanicError(BaseException):
    """What a library in another language raises."""


def test_matcher_that_raises_fails_its_row_alone(rig: ExecutorRig) -> None:
    options = [PredOptions()] * 3
    matchers = [Allows([], ZeroDivisionError()), Allows([5]), Allows([], PanicError())]
    found = rig.run(rows(rig, matchers.__getitem__, options))
    assert [each.errno for each in found if isinstance(each, SyscallError)] == [Errno.EIO] * 2
    assert tokens_of(found[1:2]) == [5]
    assert tokens_of(rig.run(rows(rig, lambda _: Allows([5]), options))) == [5] * 3


def test_masks_that_take_too_long_make_later_rows_try_again(rig: ExecutorRig) -> None:
    options = [PredOptions()] * 4
    seconds = 1.1 * MASKS_MS_MAX / 1000  # more than all masks of a step may take
    found = rig.run(
        rows(rig, lambda n: Allows([n + 1], seconds=seconds) if n != 1 else None, options)
    )
    assert tokens_of(found[:1]) == [1]
    assert isinstance(found[1], bytes), "it has no matcher"
    later = [each.errno for each in found[2:] if isinstance(each, SyscallError)]
    assert later == [Errno.EAGAIN] * 2
