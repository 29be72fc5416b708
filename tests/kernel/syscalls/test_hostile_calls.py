"""What a hostile worker may send: each call with each wrong argument, and random msgpack."""

from collections.abc import Iterator
from typing import Any

import msgpack
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.limits import (
    FILE_ENTRIES_MAX,
    NAME_BYTES_MAX,
    PATH_BYTES_MAX,
    TENANT_LISTED_MAX,
)
from symphony_kernel.protocol.messages import Op
from symphony_kernel.syscalls import validation

from tests.support.kernel.syscalls import MODEL, WORKER, SyscallRig, handle, u32

A, WEAK, NEW = handle(0), handle(1), handle(2)
JUNK: list[Any] = [
    None, True, False, -1, 1 << 63, (1 << 64) - 1, 1.5, float("nan"), "", "x", b"", b"\xff", [], {},
    [[]], {"a": 1}, msgpack.ExtType(5, b"x"), msgpack.Timestamp(1),
]  # fmt: skip
TOKEN, TEXT = u32(1), u32(*range(20))


def packed(**options: Any) -> bytes:
    data: bytes = msgpack.packb(options)
    return data


@pytest.fixture
def rig() -> Iterator[SyscallRig]:
    """A file A of five entries, a handle without any rights, and an offered prefix."""
    rig = SyscallRig()
    rig.filled(NEW, 20)
    rig.call(1, Op.KV_OFFER, NEW)
    rig.call(1, Op.KV_CLOSE, NEW)
    rig.filled(A, 5)
    rig.call(1, Op.KV_SAVE, A, "named", 0)
    rig.call(1, Op.KV_OPEN, WEAK, "named", 0)
    yield rig
    rig.finish(rig.kvfs.statistics()["names"])


GOOD: dict[Op, list[Any]] = {
    Op.KV_CREATE: [NEW], Op.KV_OPEN: [NEW, "named", 31], Op.KV_FORK: [NEW, A],
    Op.KV_EXTRACT: [NEW, A, u32(0, 2)], Op.KV_APPEND: [A, A, 0, 2], Op.KV_TRUNCATE: [A, 3],
    Op.KV_LEN: [A], Op.KV_STAT: [A], Op.KV_TOKENS: [A, 0, 2], Op.KV_SAVE: [A, "other", 0],
    Op.KV_REMOVE: ["named"], Op.KV_LIST: [""], Op.KV_LIST_AFTER: ["", "", 10],
    Op.KV_GRANT: [A, 2, 1, "name"], Op.KV_GRANTED: [NEW, "name"], Op.KV_CLOSE: [A],
    Op.PRED: [A, TOKEN, None, b""], Op.STAGE: [5, [[A, 1, "name"]]], Op.CANCEL: [1],
    Op.GENERATE: [A, TOKEN, b""], Op.TAKEN: [1, 1], Op.KV_OFFER: [A], Op.KV_MATCH: [NEW, TEXT],
    Op.KV_ADVISE: [A, 4, 7], Op.WAITS: [1], Op.CONSTRAINT: [1, b"a+"], Op.CONSTRAINT_CLOSE: [1],
}  # fmt: skip
# Junk that is right in its place.
FITTING: dict[tuple[Op, int], list[Any]] = {
    (Op.KV_LIST, 0): ["", "x", b""], (Op.KV_LIST_AFTER, 0): ["", "x", b""],
    (Op.KV_LIST_AFTER, 1): ["", "x", b""], (Op.KV_OPEN, 1): ["x"], (Op.KV_SAVE, 1): ["x"],
    (Op.KV_REMOVE, 0): ["x"], (Op.KV_GRANT, 3): ["x"], (Op.KV_GRANTED, 1): ["x"],
    (Op.KV_EXTRACT, 2): [b""], (Op.PRED, 2): [None], (Op.PRED, 3): [b""], (Op.GENERATE, 2): [b""],
    (Op.CONSTRAINT, 1): [b""], (Op.STAGE, 0): [1 << 62], (Op.STAGE, 1): [[]], (Op.CANCEL, 0): [],
}  # fmt: skip


@pytest.mark.parametrize("op", list(Op), ids=lambda op: op.name)
def test_valid_arguments_are_accepted(rig: SyscallRig, op: Op) -> None:
    rig.register(2, parent=1)
    rig.processes.grant(rig.register(3), "name", rig.file(A), 1)
    result = rig.call(3 if op is Op.KV_GRANTED else 1, op, *GOOD[op])
    if op in (Op.PRED, Op.GENERATE):
        rig.scheduler.compute()
    elif op is Op.CONSTRAINT_CLOSE:
        assert result == -Errno.EBADF  # this model has no tokenizer, so there is none
    else:
        assert isinstance(result, bytes) or (result is not None and result >= 0)


@pytest.mark.parametrize("op", list(Op), ids=lambda op: op.name)
def test_junk_in_any_argument_is_refused(op: Op) -> None:
    for place in range(len(GOOD[op])):
        for junk in JUNK:
            if any(junk is good or junk == good for good in FITTING.get((op, place), [])):
                continue
            fresh = SyscallRig()
            fresh.call(1, Op.KV_CREATE, A)
            given = [*GOOD[op]]
            given[place] = junk
            result = fresh.call(1, op, *given)
            assert isinstance(result, int), (place, junk, result)
            assert result < 0, (place, junk, result)
            assert fresh.scheduler.requests == []
            fresh.finish()


@pytest.mark.parametrize("op", list(Op), ids=lambda op: op.name)
def test_wrong_number_of_arguments_is_refused(rig: SyscallRig, op: Op) -> None:
    for given in ([*GOOD[op], 0], GOOD[op][:-1], [A] * 1000):
        assert rig.call(1, op, *given) == -Errno.EINVAL


@pytest.mark.parametrize(
    ("op", "given"),
    [
        (Op.KV_FORK, [NEW, WEAK]), (Op.KV_EXTRACT, [NEW, WEAK, b""]),
        (Op.KV_APPEND, [WEAK, A, 0, 0]), (Op.KV_APPEND, [A, WEAK, 0, 0]),
        (Op.KV_TRUNCATE, [WEAK, 0]), (Op.KV_LEN, [WEAK]), (Op.KV_STAT, [WEAK]),
        (Op.KV_ADVISE, [WEAK, 0, 0]), (Op.KV_TOKENS, [WEAK, 0, 0]), (Op.KV_SAVE, [WEAK, "x", 0]),
        (Op.KV_GRANT, [WEAK, 2, 0, "x"]), (Op.PRED, [WEAK, TOKEN, None, b""]),
        (Op.GENERATE, [WEAK, TOKEN, b""]), (Op.STAGE, [5, [[WEAK, 0, "x"]]]),
    ],
    ids=lambda value: value.name if isinstance(value, Op) else "",
)  # fmt: skip
def test_call_without_the_right_is_refused(rig: SyscallRig, op: Op, given: list[Any]) -> None:
    assert rig.call(1, op, *given) == -Errno.EACCES


@pytest.mark.parametrize(
    ("op", "place", "value", "errno"),
    [
        (Op.KV_OPEN, 2, 32, Errno.EINVAL), (Op.KV_OPEN, 1, "a/../b", Errno.EINVAL),
        (Op.KV_OPEN, 1, "x" * (PATH_BYTES_MAX + 1), Errno.ENAMETOOLONG),
        (Op.KV_OPEN, 0, A, Errno.EBADF), (Op.KV_OPEN, 0, handle(4096), Errno.EBADF),
        (Op.KV_CREATE, 0, A, Errno.EBADF), (Op.KV_FORK, 1, NEW, Errno.EBADF),
        (Op.KV_EXTRACT, 2, u32(0, 6), Errno.EINVAL), (Op.KV_EXTRACT, 2, u32(3, 2), Errno.EINVAL),
        (Op.KV_EXTRACT, 2, u32(0, 1, 2), Errno.EINVAL),
        (Op.KV_EXTRACT, 2, u32(0, (1 << 32) - 1), Errno.EFBIG),
        (Op.KV_EXTRACT, 2, u32(0, 5) * 101, Errno.EFBIG),
        (Op.KV_EXTRACT, 2, bytes(8 * (FILE_ENTRIES_MAX + 1)), Errno.EFBIG),
        (Op.KV_APPEND, 3, 6, Errno.EINVAL), (Op.KV_APPEND, 2, 3, Errno.EINVAL),
        (Op.KV_APPEND, 3, 1 << 62, Errno.EFBIG), (Op.KV_TRUNCATE, 1, 6, Errno.EINVAL),
        (Op.KV_TOKENS, 2, 6, Errno.EINVAL), (Op.KV_TOKENS, 1, 1 << 62, Errno.EINVAL),
        (Op.KV_SAVE, 2, 8, Errno.EINVAL), (Op.KV_SAVE, 1, "named", Errno.EEXIST),
        (Op.KV_REMOVE, 0, "nothing", Errno.ENOENT),
        (Op.KV_LIST, 0, "x" * (PATH_BYTES_MAX + 1), Errno.ENAMETOOLONG),
        (Op.KV_ADVISE, 1, 5, Errno.EINVAL), (Op.KV_ADVISE, 2, 8, Errno.EINVAL),
        (Op.WAITS, 0, 2, Errno.EINVAL), (Op.KV_GRANT, 1, 1, Errno.ENOENT),
        (Op.KV_GRANTED, 1, "x" * (NAME_BYTES_MAX + 1), Errno.ENAMETOOLONG),
        (Op.KV_GRANTED, 1, "nothing", Errno.ENOENT),
        (Op.STAGE, 1, [[A, 1, "n"], [A, 1, "n"]], Errno.EEXIST),
        (Op.STAGE, 1, [[A, 1]], Errno.EINVAL), (Op.STAGE, 1, [[NEW, 1, "n"]], Errno.EBADF),
        (Op.STAGE, 1, [[A, 64, "n"]], Errno.EINVAL),
        (Op.STAGE, 1, [[A, 1, "n"]] * 5000, Errno.EINVAL), (Op.STAGE, 0, 0, Errno.EINVAL),
        (Op.PRED, 1, u32(100), Errno.EINVAL), (Op.PRED, 1, u32(*[0] * 501), Errno.EFBIG),
        (Op.PRED, 1, b"123", Errno.EINVAL), (Op.PRED, 2, u32(500), Errno.EINVAL),
        (Op.PRED, 2, u32(1, 2), Errno.EINVAL), (Op.PRED, 3, packed(at=[1]), Errno.EINVAL),
        (Op.PRED, 3, packed(at=[0, 0]), Errno.EINVAL),
        (Op.PRED, 3, packed(parents=[-1, 0]), Errno.EINVAL),
        (Op.PRED, 3, packed(get={"top": 101}), Errno.EINVAL),
        (Op.PRED, 3, packed(get={"of": [100]}), Errno.EINVAL),
        (Op.PRED, 3, packed(allow=b"\xff"), Errno.EINVAL),
        (Op.PRED, 3, msgpack.packb({"bias": {100: 1.0}}), Errno.EINVAL),
        (Op.PRED, 3, packed(constraint=1), Errno.EBADF),
        (Op.PRED, 3, packed(adapter="x"), Errno.ENOENT),
        (Op.PRED, 3, packed(adapter="t/x"), Errno.EINVAL),
        (Op.GENERATE, 2, packed(adapter="x"), Errno.ENOENT),
        (Op.PRED, 3, packed(unknown=1), Errno.EINVAL),
        (Op.PRED, 3, bytes((1 << 20) + 1), Errno.EFBIG), (Op.PRED, 3, b"\x91" * 2000, Errno.EINVAL),
        (Op.GENERATE, 0, NEW, Errno.EBADF), (Op.GENERATE, 1, b"", Errno.EINVAL),
        (Op.GENERATE, 1, u32(100), Errno.EINVAL), (Op.GENERATE, 1, u32(*[0] * 501), Errno.EFBIG),
        (Op.GENERATE, 2, packed(stop=[100]), Errno.EINVAL),
        (Op.GENERATE, 2, packed(max=0), Errno.EINVAL),
        (Op.GENERATE, 2, packed(ahead=1025), Errno.EINVAL),
        (Op.GENERATE, 2, packed(at=[0]), Errno.EINVAL),
        (Op.GENERATE, 2, packed(allow=b"\xff"), Errno.EINVAL),
        (Op.GENERATE, 2, packed(constraint=1), Errno.EBADF),
        (Op.GENERATE, 2, bytes((1 << 20) + 1), Errno.EFBIG), (Op.TAKEN, 1, 0, Errno.EINVAL),
    ],
)  # fmt: skip
def test_wrong_value_has_its_errno(
    rig: SyscallRig, op: Op, place: int, value: Any, errno: Errno
) -> None:
    given = [*GOOD[op]]
    given[place] = value
    assert rig.call(1, op, *given) == -errno


def test_malformed_call_is_dropped(rig: SyscallRig) -> None:
    seq = 50
    calls: list[Any] = [
        *JUNK, [1], [1, 1], (1, 1, 1, NEW), [True, 1, seq, NEW], ["1", 1, seq, NEW],
        [[1], 1, seq, NEW], [2, 1, seq, NEW], *([1, 1, junk, NEW] for junk in JUNK),
    ]  # fmt: skip
    answered = len(rig.replies)
    rig.syscalls.execute(WORKER, calls)
    assert len(rig.replies) == answered
    assert rig.syscalls.statistics()["dropped"] == len(calls)


@pytest.mark.parametrize("op", [*JUNK, 0, max(Op) + 1, 1.0])
def test_unknown_operation_answers_enosys(rig: SyscallRig, op: Any) -> None:
    rig.syscalls.execute(WORKER, [[1, op, 50, NEW]])
    assert rig.replies[-1] == (1, 50, -Errno.ENOSYS)


def test_result_past_the_bound_is_refused(rig: SyscallRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "PRED_RESULT_BYTES_MAX", 2 * 4 * MODEL.vocab_size)
    options = packed(get="logits", at="all")
    assert rig.call(1, Op.PRED, A, u32(1, 2, 3), None, options) == -Errno.EFBIG
    assert rig.call(1, Op.PRED, A, u32(1, 2), None, options) is None


VALUES = st.recursive(
    st.one_of(
        st.sampled_from([A, WEAK, NEW, 1, 2, 0, 31, "named", "x", TOKEN, u32(0, 2), b"", None]),
        st.sampled_from(JUNK),
        st.integers(-(1 << 63), (1 << 64) - 1),
        st.binary(max_size=8),
        st.text(max_size=4),
    ),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)
CALLS = st.builds(
    lambda op, instance, seq, given: [instance, op, seq, *given],
    st.integers(0, max(Op) + 1),
    st.sampled_from([1, 1, 1, 2, 3, 4]),
    st.integers(0, 6),
    st.lists(VALUES, max_size=4),
)
MUTATED = st.builds(
    lambda op, place, value, seq: [
        1, int(op), seq, *GOOD[op][:place], value, *GOOD[op][place + 1 :]
    ],
    st.sampled_from(list(Op)),
    st.integers(0, 3),
    VALUES,
    st.integers(0, 6),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@drawn(st.lists(st.one_of(CALLS, MUTATED, VALUES, st.just("compute")), max_size=30))
def test_random_calls_break_no_invariant(calls: list[Any]) -> None:
    rig = SyscallRig(pages=8)
    rig.register(2, parent=1)
    rig.register(3, tenant="other")
    rig.register(4, worker="worker-1")
    rig.call(1, Op.KV_CREATE, A)
    for call in calls:
        if call == "compute":
            if rig.scheduler.requests:
                rig.scheduler.compute()
        else:
            rig.syscalls.execute(WORKER, [call])
    rig.processes.check_integrity()
    assert all(instance != 4 for instance, _, _ in rig.replies)
    rig.finish(rig.kvfs.statistics()["names"])


@pytest.mark.parametrize(
    ("op", "given"),
    [(Op.KV_LIST, [""]), (Op.KV_LIST, ["public/"]), (Op.KV_LIST_AFTER, ["", "", 4_096])],
)
def test_listings_of_one_frame_are_bounded(rig: SyscallRig, op: Op, given: list[Any]) -> None:
    """A frame may hold thousands of calls, and nothing else is done until its end."""
    for number in range(300):
        assert rig.call(1, Op.KV_SAVE, A, f"n/{number}", 0) == 0
    rig.syscalls.execute(WORKER, [[1, int(op), 1_000_000 + i, *given] for i in range(4_000)])
    results = [result for _, seq, result in rig.replies if seq >= 1_000_000]
    told = [result for result in results if isinstance(result, bytes)]
    assert 4 < len(told) <= TENANT_LISTED_MAX // 256 + 1
    assert {result for result in results if isinstance(result, int)} == {-Errno.EAGAIN}
    assert isinstance(rig.call(1, op, *given), bytes), "the next frame may again"
