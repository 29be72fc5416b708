"""Each syscall's effects and their order; at the end everything must be given back."""

from collections.abc import Iterator
from typing import Any

import pytest
from symphony_kernel.kvfs.tenants import TenantLimits
from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.limits import INSTANCE_CALLS_PENDING_MAX, LIST_ITEMS_MAX
from symphony_kernel.protocol.messages import Op

from tests.support.kernel.syscalls import FIRST, WORKER, SyscallRig, handle, u32

A, B, C, D = (handle(index) for index in range(4))


@pytest.fixture
def rig() -> Iterator[SyscallRig]:
    rig = SyscallRig()
    yield rig
    names = rig.kvfs.statistics()["names"]
    rig.finish(names)


def test_pred_becomes_a_request_and_its_result_a_reply(rig: SyscallRig) -> None:
    assert rig.call(1, Op.KV_CREATE, A) == 0
    seq = rig.pred(1, A, 1, 2, 3)
    (request,) = rig.scheduler.requests
    assert (request.instance, request.root, request.tenant, request.seq) == (1, 1, "t", seq)
    assert request.tokens.tolist() == [1, 2, 3]
    assert request.positions.tolist() == [0, 1, 2]
    assert rig.reply(seq) is None
    rig.scheduler.compute(b"12345678")
    assert rig.reply(seq) == b"12345678"
    assert rig.call(1, Op.KV_LEN, A) == 3
    assert rig.call(1, Op.KV_TOKENS, A, 1, 2) == u32(2, 3)


def test_positions_continue_or_are_given(rig: SyscallRig) -> None:
    rig.filled(A, 5)
    rig.pred(1, A, 9)
    assert rig.scheduler.compute().positions.tolist() == [5]
    rig.send(1, Op.PRED, A, u32(1, 2), u32(40, 7), b"")
    assert rig.scheduler.compute().positions.tolist() == [40, 7]
    assert rig.file(A).positions.tolist() == [0, 1, 2, 3, 4, 5, 40, 7]


def test_tree_positions_are_its_depths(rig: SyscallRig) -> None:
    rig.filled(A, 4)
    rig.pred(1, A, 1, 2, 3, 4, parents=[-1, 0, 0, 2])
    assert rig.scheduler.compute().positions.tolist() == [4, 5, 5, 6]


def test_seed_is_the_programs_or_drawn(rig: SyscallRig) -> None:
    rig.call(1, Op.KV_CREATE, A)
    for sample, seed in (({"seed": 7}, 7), ({}, 4321)):
        rig.pred(1, A, 1, get={"sample": sample})
        assert rig.scheduler.compute().seed == seed


def test_calls_on_a_file_wait_for_the_pred_before_them(rig: SyscallRig) -> None:
    rig.call(1, Op.KV_CREATE, A)
    first = rig.pred(1, A, 1, 2)
    length = rig.send(1, Op.KV_LEN, A)
    rig.send(1, Op.KV_FORK, B, A)
    cut = rig.send(1, Op.KV_TRUNCATE, A, 1)
    second = rig.pred(1, A, 3)
    of_fork = rig.send(1, Op.KV_TOKENS, B, 0, 2)
    assert [rig.reply(seq) for seq in (first, length, cut, second, of_fork)] == [None] * 5
    assert len(rig.scheduler.requests) == 1
    rig.scheduler.compute()
    assert rig.reply(length) == 2
    assert rig.reply(cut) == 0
    assert rig.reply(of_fork) == u32(1, 2)
    rig.scheduler.compute()
    assert rig.call(1, Op.KV_TOKENS, A, 0, 2) == u32(1, 3)


def test_append_waits_for_both_files(rig: SyscallRig) -> None:
    rig.call(1, Op.KV_CREATE, A)
    rig.call(1, Op.KV_CREATE, B)
    rig.pred(1, A, 1, 2)
    rig.pred(1, B, 3, 4)
    appended = rig.send(1, Op.KV_APPEND, A, B, 1, 2)
    other_way = rig.send(1, Op.KV_APPEND, B, A, 0, 3)
    rig.scheduler.compute()
    assert rig.reply(appended) is None
    rig.scheduler.compute()
    assert rig.reply(appended) == 0
    assert rig.reply(other_way) == 0
    assert rig.file(A).tokens.tolist() == [1, 2, 4]
    assert rig.file(B).tokens.tolist() == [3, 4, 1, 2, 4]


def test_preds_on_two_files_do_not_wait_for_each_other(rig: SyscallRig) -> None:
    rig.filled(A, 20)
    rig.call(1, Op.KV_FORK, B, A)
    rig.pred(1, A, 1)
    rig.pred(1, B, 2)
    assert len(rig.scheduler.requests) == 2
    rig.scheduler.compute()
    rig.scheduler.compute()
    assert rig.file(A).tokens.tolist()[-1] == 1
    assert rig.file(B).tokens.tolist()[-1] == 2


def test_edit_is_charged_for_copies_and_not_for_sharing(rig: SyscallRig) -> None:
    rig.filled(A, 64)
    assert rig.call(1, Op.KV_EXTRACT, B, A, u32(0, 64)) == 0
    assert rig.scheduler.charged == {}
    assert rig.call(1, Op.KV_EXTRACT, C, A, u32(1, 33)) == 0
    (once,) = rig.scheduler.charged.values()
    assert rig.call(1, Op.KV_APPEND, C, A, 8, 40) == 0
    assert rig.scheduler.charged == {1: 2 * once}


def test_extract_keeps_positions_and_rights(rig: SyscallRig) -> None:
    rig.filled(A, 40)
    assert rig.call(1, Op.KV_EXTRACT, B, A, u32(16, 32, 3, 5)) == 0
    assert rig.file(B).positions.tolist() == [*range(16, 32), 3, 4]
    status = rig.unpack(1, Op.KV_STAT, B)
    assert status == {
        "len": 18, "pages": 2, "shared": 1, "tier": "device", "rights": 31, "path": "",
        "expires_ms": 0, "cached": 0,
    }  # fmt: skip


def test_failed_file_answers_its_error_until_closed(rig: SyscallRig) -> None:
    rig.filled(A, 4)
    assert rig.call(1, Op.KV_EXTRACT, B, A, u32(2, 5)) == -Errno.EINVAL
    for op, *args in ((Op.KV_LEN,), (Op.KV_STAT,), (Op.KV_TRUNCATE, 0), (Op.KV_SAVE, "x", 0)):
        assert rig.call(1, op, B, *args) == -Errno.EINVAL
    assert rig.reply(rig.pred(1, B, 1)) == -Errno.EINVAL
    assert rig.call(1, Op.KV_FORK, C, B) == -Errno.EINVAL
    assert rig.call(1, Op.KV_LEN, C) == -Errno.EINVAL
    assert rig.call(1, Op.KV_APPEND, A, B, 0, 0) == -Errno.EINVAL
    assert rig.call(1, Op.KV_LEN, A) == -Errno.EINVAL
    for number in (A, B, C):
        assert rig.call(1, Op.KV_CLOSE, number) == 0
        assert rig.call(1, Op.KV_LEN, number) == -Errno.EBADF


def test_invalid_append_fails_in_its_turn(rig: SyscallRig) -> None:
    rig.call(1, Op.KV_CREATE, A)
    before = rig.pred(1, A, 1)
    bad = rig.send(1, Op.KV_APPEND, A, D, 0, 1)
    after = rig.pred(1, A, 2)
    assert rig.reply(bad) is None
    rig.scheduler.compute(b"ok")
    assert rig.reply(before) == b"ok"
    assert rig.reply(bad) == -Errno.EBADF
    assert rig.reply(after) == -Errno.EBADF


def test_closed_file_finishes_earlier_calls(rig: SyscallRig) -> None:
    rig.call(1, Op.KV_CREATE, A)
    seq = rig.pred(1, A, 1)
    rig.call(1, Op.KV_CLOSE, A)
    assert rig.call(1, Op.KV_LEN, A) == -Errno.EBADF
    rig.scheduler.compute(b"ok")
    assert rig.reply(seq) == b"ok"
    assert rig.kvfs.statistics()["files"] == 0


def test_cancel_drops_a_running_or_waiting_pred(rig: SyscallRig) -> None:
    rig.call(1, Op.KV_CREATE, A)
    running, waiting, last = rig.pred(1, A, 1), rig.pred(1, A, 2), rig.pred(1, A, 3)
    length = rig.send(1, Op.KV_LEN, A)
    assert rig.call(1, Op.CANCEL, waiting) == 0
    assert rig.reply(waiting) == -Errno.ECANCELED
    assert rig.call(1, Op.CANCEL, running) == 0
    assert rig.reply(running) == -Errno.ECANCELED
    rig.scheduler.compute(b"ok")
    assert rig.reply(last) == b"ok"
    assert rig.reply(length) == 1
    for gone in (last, length, 0, 10_000):
        assert rig.call(1, Op.CANCEL, gone) == 0
    assert rig.file(A).tokens.tolist() == [3]


def test_pred_past_the_context_is_refused(rig: SyscallRig) -> None:
    rig.filled(A, 499)
    assert rig.reply(rig.pred(1, A, 1, 2)) == -Errno.EFBIG
    assert rig.call(1, Op.KV_APPEND, A, A, 0, 2) == -Errno.EFBIG


def test_saved_file_is_opened_as_it_was(rig: SyscallRig) -> None:
    rig.filled(A, 20)
    assert rig.call(1, Op.KV_SAVE, A, "/notes/a", 0) == 0
    rig.computed(1, A, 7)
    assert rig.call(1, Op.KV_OPEN, B, b"notes/a", 3) == 3
    assert rig.call(1, Op.KV_LEN, B) == 20
    assert rig.unpack(1, Op.KV_STAT, B)["path"] == "notes/a"
    assert rig.call(1, Op.KV_TRUNCATE, B, 0) == -Errno.EACCES
    assert rig.call(1, Op.KV_SAVE, A, "notes/a", 0) == -Errno.EEXIST
    assert rig.call(1, Op.KV_SAVE, A, "notes/a", 1) == 0
    assert rig.call(1, Op.KV_LEN, B) == 20
    listed = {"path": "notes/a", "len": 21, "pages": 2, "tier": "device"}
    listed |= {"durable": False, "public": False, "expires_ms": 0}
    assert rig.unpack(1, Op.KV_LIST, "notes/") == [listed]
    assert rig.unpack(1, Op.KV_LIST, "other") == []
    assert rig.syscalls.named.kv_list("t", "") == [listed]
    tiers = {"device": 2, "host": 0, "disk": 0, "tokens": 0}
    more = {"shared": 2, "tiers": tiers, "disk_bytes": 0}
    assert rig.syscalls.named.kv_stat("t", "notes/a") == listed | more
    assert rig.call(1, Op.KV_REMOVE, "notes/a") == 0
    assert rig.call(1, Op.KV_REMOVE, "notes/a") == -Errno.ENOENT
    assert rig.call(1, Op.KV_LEN, B) == 20


def test_listing_past_the_largest_size_is_refused(rig: SyscallRig) -> None:
    rig.call(1, Op.KV_CREATE, A)
    for number in range(LIST_ITEMS_MAX + 1):
        rig.call(1, Op.KV_SAVE, A, f"{number:06}", 0)
    assert rig.call(1, Op.KV_LIST, "") == -Errno.EFBIG
    assert len(rig.unpack(1, Op.KV_LIST, "0000")) == 100
    first = rig.syscalls.named.kv_list("t")
    assert len(first) == LIST_ITEMS_MAX
    (last,) = rig.syscalls.named.kv_list("t", after=first[-1]["path"])
    assert last["path"] == f"{LIST_ITEMS_MAX:06}"
    some = rig.unpack(1, Op.KV_LIST_AFTER, "0000", "000041", 3)
    assert [item["path"] for item in some] == ["000042", "000043", "000044"]
    for limit in (0, -1, LIST_ITEMS_MAX + 1, "3", None):
        assert rig.call(1, Op.KV_LIST_AFTER, "", "", limit) == -Errno.EINVAL


def test_name_outlives_its_run_and_is_its_tenants_only(rig: SyscallRig) -> None:
    rig.filled(A, 20)
    rig.call(1, Op.KV_SAVE, A, "a", 0)
    rig.processes.end(1)
    rig.processes.check_integrity()
    assert rig.kvfs.pool.free == rig.kvfs.pool.pages - 2
    rig.register(2, tenant="other")
    assert rig.call(2, Op.KV_OPEN, A, "a", 31) == -Errno.ENOENT
    assert rig.unpack(2, Op.KV_LIST, "") == []
    assert rig.call(2, Op.KV_REMOVE, "a") == -Errno.ENOENT
    rig.register(3)
    assert rig.call(3, Op.KV_OPEN, A, "a", 31) == 31
    assert rig.call(3, Op.KV_REMOVE, "a") == 0


def test_unsupported_save_and_open_are_refused(rig: SyscallRig) -> None:
    rig.filled(A, 1)
    for flags in (2, 3):  # this kernel has no directory
        assert rig.call(1, Op.KV_SAVE, A, "a", flags) == -Errno.ENOSYS
    for flags in (4, 6, 7):  # and its operator does not allow publishing
        assert rig.call(1, Op.KV_SAVE, A, "a", flags) == -Errno.EACCES
    assert rig.call(1, Op.KV_OPEN, B, "/public/t/a", 1) == -Errno.ENOENT
    assert rig.call(1, Op.KV_SAVE, A, "public/t/a", 0) == -Errno.EACCES
    assert rig.call(1, 99) == -Errno.ENOSYS


def test_usage_counts_prompt_cached_and_completion_tokens(rig: SyscallRig) -> None:
    rig.filled(A, 20)
    rig.time.seconds = 2.0
    rig.call(1, Op.KV_FORK, B, A)
    rig.call(1, Op.KV_EXTRACT, C, A, u32(0, 4))
    rig.call(1, Op.KV_APPEND, C, A, 0, 3)
    wanted: list[dict[str, Any]] = [{}, {"get": {"sample": {}}}, {"get": "logits"}, {"get": "none"}]
    for options in wanted:
        rig.computed(1, B, 1, **options)
    rig.pred(1, B, 1)
    rig.call(1, Op.CANCEL, rig._seq)
    usage = rig.processes.end(1)
    assert usage["prompt_tokens"] == 20
    assert usage["cached_tokens"] == 20 + 4 + 3
    # The prompt's one place, and two single tokens with a choice.
    assert usage["completion_tokens"] == 3
    assert usage["kv_token_ms"] == 2 * 16 * 2000


def test_grants_go_to_a_child_and_back(rig: SyscallRig) -> None:
    rig.filled(A, 5)
    assert rig.call(1, Op.STAGE, 9, [[A, 17, "prefix"], [A, 1, "again"]]) == 0
    rig.register(2, parent=1, stage=9)
    assert rig.call(2, Op.KV_GRANTED, A, "prefix") == 17
    assert rig.call(2, Op.KV_GRANTED, B, "prefix") == -Errno.ENOENT
    assert rig.call(2, Op.KV_LEN, A) == 5
    assert rig.reply(rig.pred(2, A, 1)) == -Errno.EACCES
    assert rig.call(2, Op.KV_CREATE, C) == 0
    assert rig.call(2, Op.KV_GRANT, C, 1, 3, "result") == 0
    assert rig.call(2, Op.KV_GRANT, C, 1, 3, "result") == -Errno.EEXIST
    assert rig.call(2, Op.KV_GRANT, A, 1, 31, "shrunk") == 0
    assert rig.call(1, Op.KV_GRANTED, B, "shrunk") == 17
    rig.processes.end(2)
    assert rig.call(1, Op.KV_GRANTED, C, "result") == 3
    rig.computed(1, C, 1)
    assert rig.call(1, Op.KV_LEN, C) == 1


def test_grant_to_another_than_parent_or_child_is_refused(rig: SyscallRig) -> None:
    rig.filled(A, 1)
    rig.register(2, parent=1)
    rig.register(3, parent=2)
    rig.register(4, tenant="other")
    for stranger in (0, 1, 3, 4, 99):
        assert rig.call(1, Op.KV_GRANT, A, stranger, 1, "x") == -Errno.ENOENT
    rig.call(3, Op.KV_CREATE, A)
    assert rig.call(3, Op.KV_GRANT, A, 1, 1, "x") == -Errno.ENOENT


def test_call_past_a_quota_is_refused_and_its_file_answers_it() -> None:
    rig = SyscallRig(limits=TenantLimits(pages=2, files=2, handles=3))
    rig.call(1, Op.KV_CREATE, A)
    rig.call(1, Op.KV_CREATE, B)
    assert rig.call(1, Op.KV_CREATE, C) == -Errno.EDQUOT
    assert rig.call(1, Op.KV_LEN, C) == -Errno.EDQUOT
    rig.call(1, Op.KV_CLOSE, B)
    assert rig.call(1, Op.KV_FORK, B, A) == 0
    assert rig.call(1, Op.KV_FORK, D, A) == -Errno.EDQUOT
    seq = rig.computed(1, A, *range(33))
    assert rig.reply(seq) == -Errno.EDQUOT
    assert rig.call(1, Op.KV_LEN, A) == 0
    assert rig.call(1, Op.KV_SAVE, A, "a", 0) == -Errno.EDQUOT
    rig.finish()


def test_calls_past_the_pending_bound_get_eagain(rig: SyscallRig) -> None:
    rig.call(1, Op.KV_CREATE, A)
    for _ in range(INSTANCE_CALLS_PENDING_MAX):
        rig.pred(1, A, 1)
    assert rig.reply(rig.pred(1, A, 1)) == -Errno.EAGAIN
    assert rig.call(1, Op.KV_LEN, A) == -Errno.EAGAIN
    assert rig.call(1, Op.KV_FORK, B, A) == -Errno.EAGAIN
    assert rig.call(1, Op.KV_CLOSE, B) == 0


def test_calls_from_another_worker_are_dropped(rig: SyscallRig) -> None:
    dropped = rig.syscalls.statistics()["dropped"]
    rig.syscalls.execute("worker-1", [[1, int(Op.KV_CREATE), 5, FIRST]])
    rig.syscalls.execute(WORKER, [[2, int(Op.KV_CREATE), 5, FIRST]])
    assert rig.replies == []
    assert rig.syscalls.statistics()["dropped"] == dropped + 2


def test_call_without_seq_is_not_answered(rig: SyscallRig) -> None:
    rig.syscalls.execute(
        WORKER, [[1, int(Op.KV_CREATE), 0, A], [1, int(Op.PRED), 0, A, u32(1), None, b""]]
    )
    rig.scheduler.compute()
    rig.syscalls.execute(WORKER, [[1, int(Op.KV_LEN), 0, B]])
    assert rig.replies == []
    assert rig.syscalls.statistics()["failed"] == 1


def test_seq_in_use_is_refused(rig: SyscallRig) -> None:
    rig.call(1, Op.KV_CREATE, A)
    rig.syscalls.execute(WORKER, 2 * [[1, int(Op.PRED), 77, A, u32(1), None, b""]])
    assert rig.replies[-1] == (1, 77, -Errno.EINVAL)
    assert len(rig.scheduler.requests) == 1


def test_copies_lost_in_a_failed_step_fail_the_file(rig: SyscallRig) -> None:
    rig.filled(A, 5)
    rig.call(1, Op.KV_FORK, B, A)
    rig.computed(1, B, 1)
    (batch,) = rig.kvfs.take_transfers()
    rig.kvfs.fail_transfers(batch)
    assert rig.call(1, Op.KV_LEN, B) == -Errno.EIO
    assert rig.call(1, Op.KV_LEN, A) == 5
