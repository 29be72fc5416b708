"""The process table: registration, limits, and ends that give everything back."""

from collections.abc import Iterator
from typing import Any

import pytest
from symphony_kernel.protocol.errno import Errno, KernelBug, SyscallError
from symphony_kernel.protocol.limits import RUN_CHILD_DEPTH_MAX, RUN_CHILDREN_MAX
from symphony_kernel.protocol.messages import Op

from tests.support.kernel.syscalls import SyscallRig, handle, u32
from tests.support.refusals import refused

A, B, C = (handle(index) for index in range(3))


@pytest.fixture
def rig() -> Iterator[SyscallRig]:
    """A run whose end must give everything back."""
    rig = SyscallRig()
    yield rig
    rig.finish()


def refusal(rig: SyscallRig, instance: int, **given: Any) -> Errno:
    errno = refused(rig.register, instance, **given)
    rig.processes.check_integrity()
    return errno


def test_invalid_registration_is_refused(rig: SyscallRig) -> None:
    assert refusal(rig, 1) is Errno.EEXIST
    assert refusal(rig, 0) is Errno.EINVAL
    assert refusal(rig, 1 << 63) is Errno.EINVAL
    assert refusal(rig, 2, tenant="") is Errno.EINVAL
    assert refusal(rig, 2, parent=9) is Errno.ENOENT
    assert refusal(rig, 2, parent=1, tenant="other") is Errno.EINVAL
    assert refusal(rig, 2, parent=1, worker="worker-1") is Errno.EINVAL
    assert refusal(rig, 2, parent=1, stage=5) is Errno.ENOENT
    assert refusal(rig, 2, stage=5) is Errno.ENOENT


@pytest.mark.parametrize(
    "options",
    [{"x": 1}, {"weight": 0}, {"weight": "1"}, {"weight": float("nan")}, {"kv_tokens": -1},
     {"tokens": 1.5}, {"tokens": True}],
)  # fmt: skip
def test_invalid_options_are_refused(rig: SyscallRig, options: dict[str, Any]) -> None:
    assert refusal(rig, 2, options=options) is Errno.EINVAL


def test_children_are_bounded_in_depth_and_number(rig: SyscallRig) -> None:
    for depth in range(1, RUN_CHILD_DEPTH_MAX + 1):
        assert rig.register(depth + 1, parent=depth).depth == depth
    assert refusal(rig, 100, parent=RUN_CHILD_DEPTH_MAX + 1) is Errno.EDQUOT
    for child in range(RUN_CHILDREN_MAX - RUN_CHILD_DEPTH_MAX):
        rig.register(1000 + child, parent=1)
    assert refusal(rig, 5000, parent=1) is Errno.EDQUOT
    rig.processes.end(1000)
    rig.register(5000, parent=1)


def test_stage_is_taken_once_and_old_ones_are_released(rig: SyscallRig) -> None:
    rig.call(1, Op.KV_CREATE, A)
    rig.call(1, Op.STAGE, 5, [[A, 31, "x"]])
    assert rig.call(1, Op.STAGE, 5, [[A, 31, "x"]]) == -Errno.EEXIST
    rig.register(2, parent=1, stage=5)
    assert refusal(rig, 3, parent=1, stage=5) is Errno.ENOENT
    rig.call(1, Op.STAGE, 6, [[A, 31, "x"]])
    assert refusal(rig, 2, parent=1, stage=6) is Errno.EEXIST
    assert rig.file(A).references == 2
    for stage in range(100, 100 + RUN_CHILDREN_MAX + 10):
        assert rig.call(1, Op.STAGE, stage, [[A, 31, "x"]]) == 0
    assert rig.file(A).references == 2 + RUN_CHILDREN_MAX
    assert refusal(rig, 3, parent=1, stage=100) is Errno.ENOENT


def register_two(rig: SyscallRig, **options: int) -> None:
    """Register instance 7 and its child 8, with a file each."""
    rig.register(7, options=options)
    rig.register(8, parent=7)
    for instance in (7, 8):
        rig.call(instance, Op.KV_CREATE, A)


def test_token_limit_of_a_run_covers_all_its_instances(rig: SyscallRig) -> None:
    register_two(rig, tokens=5)
    rig.computed(7, A, 1, 2, 3)
    assert rig.call(8, Op.PRED, A, u32(1, 2, 3), None, b"") == -Errno.EDQUOT
    assert rig.call(7, Op.PRED, A, u32(1, 2, 3), None, b"") == -Errno.EDQUOT
    assert rig.exceeded == [(7, "the run has used up its 5 tokens")]


def test_entry_limit_of_a_run_covers_its_children(rig: SyscallRig) -> None:
    register_two(rig, kv_tokens=32)
    rig.computed(7, A, *range(32))
    seq = rig.computed(8, A, 1)
    assert rig.reply(seq) == -Errno.EDQUOT
    rig.call(7, Op.KV_TRUNCATE, A, 16)
    seq = rig.pred(8, A, 1)
    rig.scheduler.compute(b"ok")
    assert rig.reply(seq) == b"ok"


def busy(rig: SyscallRig) -> None:
    """Instance 1 with children 2 and 3: files, grants, stages, preds in flight and calls behind."""
    rig.call(1, Op.KV_CREATE, A)
    rig.call(1, Op.STAGE, 5, [[A, 31, "x"]])
    rig.call(1, Op.STAGE, 6, [[A, 31, "x"]])
    rig.register(2, parent=1, stage=5)
    rig.register(3, parent=2)
    rig.call(2, Op.KV_GRANTED, A, "x")
    rig.call(2, Op.KV_GRANT, A, 3, 31, "y")
    rig.call(2, Op.KV_GRANT, A, 1, 31, "unused")
    rig.call(3, Op.KV_GRANTED, A, "y")
    for instance in (1, 2, 3, 2, 1):
        rig.pred(instance, A, *range(20))
        rig.send(instance, Op.KV_LEN, A)
    for index, instance in enumerate((1, 2, 3)):
        rig.send(instance, Op.KV_FORK, B, A)
        rig.pred(instance, B, index)
        rig.send(instance, Op.KV_APPEND, A, B, 0, 5)
    rig.processes.check_integrity()


@pytest.mark.parametrize("computed", [0, 1, 3])
@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (2, 1, 3), (2, 3, 1)])
def test_instances_ended_in_any_order_leave_nothing(order: tuple[int, ...], computed: int) -> None:
    rig = SyscallRig()
    busy(rig)
    for _ in range(computed):
        rig.scheduler.compute()
    for instance in order:
        answered = len(rig.replies)
        rig.processes.end(instance)
        rig.processes.check_integrity()
        assert all(request.instance != instance for request in rig.scheduler.requests)
        assert all(reply[0] != instance for reply in rig.replies[answered:])
    rig.finish()
    assert rig.processes.statistics()["lips"] == 0
    assert rig.kvfs.tenant("t").account.pages == 0


def test_instances_continue_after_another_ended(rig: SyscallRig) -> None:
    busy(rig)
    rig.processes.end(2)
    while rig.scheduler.requests:
        rig.scheduler.compute()
    answers = [result for instance, _, result in rig.replies if instance in (1, 3)]
    assert rig.call(1, Op.KV_LEN, A) == 3 * 20 + 2 * 5
    assert all(isinstance(result, bytes) or result >= 0 for result in answers)


def test_file_of_an_ended_instances_fork_answers_ecanceled(rig: SyscallRig) -> None:
    rig.register(2, parent=1)
    rig.call(2, Op.KV_CREATE, A)
    rig.pred(2, A, 1)
    rig.send(2, Op.KV_FORK, B, A)
    rig.call(2, Op.KV_GRANT, B, 1, 31, "fork")
    rig.processes.end(2)
    rig.call(1, Op.KV_GRANTED, C, "fork")
    assert rig.call(1, Op.KV_LEN, C) == -Errno.ECANCELED


def test_dead_worker_ends_its_own_instances_only(rig: SyscallRig) -> None:
    rig.register(2, worker="worker-1")
    rig.register(3)
    assert sorted(rig.processes.end_worker("worker-0")) == [1, 3]
    assert rig.processes.get(2) is not None
    assert refused(rig.processes.end, 4) is Errno.ENOENT


def test_usage_of_a_dead_workers_instances_is_told_once() -> None:
    rig = SyscallRig()
    rig.call(1, Op.KV_CREATE, A)
    rig.computed(1, A, *range(40))
    rig.processes.end_worker("worker-0")
    assert rig.processes.end(1)["prompt_tokens"] == 40
    with pytest.raises(SyscallError):
        rig.processes.end(1)
    rig.register(2)
    rig.processes.end_worker()  # the gateway has gone, so its usage is not kept
    with pytest.raises(SyscallError):
        rig.processes.end(2)


def test_tenants_usage_is_counted_after_its_programs_end() -> None:
    rig = SyscallRig()
    rig.register(2, tenant="other")
    for run in (1, 2):
        rig.call(run, Op.KV_CREATE, A)
        rig.computed(run, A, *range(20 * run))
    rig.call(2, Op.KV_SAVE, A, "kept", 0)
    live = rig.processes.tenants()
    assert (live["t"]["prompt_tokens"], live["t"]["lips"], live["t"]["pages"]) == (20, 1, 2)
    assert (live["other"]["prompt_tokens"], live["other"]["lips"]) == (40, 1)
    rig.processes.end(2)
    after = rig.processes.tenants()
    assert after["t"] == live["t"]
    assert after["other"] == {**live["other"], "lips": 0, "handles": 0, "files": 1}
    rig.finish(names=1)


def test_pages_of_an_ended_instance_are_charged_to_its_run(rig: SyscallRig) -> None:
    rig.register(2, parent=1)
    rig.call(2, Op.KV_CREATE, A)
    rig.computed(2, A, *range(40))
    rig.call(2, Op.KV_GRANT, A, 1, 31, "a")
    rig.processes.end(2)
    rig.processes.check_integrity()
    run = rig.processes.get(1)
    assert run is not None
    assert run.run.account.own == 3
    rig.call(1, Op.KV_GRANTED, A, "a")
    rig.computed(1, A, *range(40))
    rig.processes.check_integrity()
    assert run.run.account.pages == 5


def test_audit_finds_wrong_references_and_counts(rig: SyscallRig) -> None:
    rig.call(1, Op.KV_CREATE, A)
    rig.file(A).references += 1
    with pytest.raises(KernelBug, match="references"):
        rig.processes.check_integrity()
    rig.file(A).references -= 1
    tenant = rig.kvfs.tenant("t")
    tenant.handles += 1
    with pytest.raises(KernelBug, match="handles"):
        rig.processes.check_integrity()
    tenant.handles -= 1
    tenant.files += 1
    with pytest.raises(KernelBug, match="files"):
        rig.processes.check_integrity()
    tenant.files -= 1
    tenant.account.pages += 1
    with pytest.raises(KernelBug, match="pay"):
        rig.processes.check_integrity()
    tenant.account.pages -= 1
