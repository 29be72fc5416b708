"""Steps: what they hold, when they are launched, and which requests wait for pages."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import (
    BATCH_WAIT_MS_MAX,
    BATCH_WAIT_SHARE_MAX,
    PAGE_TOKENS,
    PAGES_WAIT_MS_MAX,
    STEP_ROWS_MAX,
    STEP_TOKENS_MAX,
)
from symphony_kernel.protocol.pred_options import Get, PredOptions
from symphony_kernel.scheduler.batcher import Step
from symphony_kernel.scheduler.scheduler import Wait

from tests.support.kernel.scheduling import LengthFile, SchedulerRig, make_work, tokens_of

MS = 1000.0


@pytest.fixture
def rig() -> SchedulerRig:
    return SchedulerRig()


# -- What a step holds -------------------------------------------------------------------------
def test_long_prompt_is_chunked_by_the_token_budget(rig: SchedulerRig) -> None:
    file = rig.submit(1, 2 * STEP_TOKENS_MAX + 5)
    rig.run()
    assert rig.device.steps == [[(1, STEP_TOKENS_MAX)], [(1, STEP_TOKENS_MAX)], [(1, 5)]]
    assert rig.results == [(1, bytes(8))]
    assert file.length == 2 * STEP_TOKENS_MAX + 5


def test_prompt_gets_what_decodes_leave_of_each_step(rig: SchedulerRig) -> None:
    for root in range(2, 34):
        rig.decode(root, 20)
    rig.submit(1, 8 * STEP_TOKENS_MAX)
    rig.run()
    mixed = [dict(step) for step in rig.device.steps if tokens_of([step], 1)]
    assert all(sum(step.values()) == STEP_TOKENS_MAX for step in mixed[:-1])
    # A newcomer starts level with the others, so its first chunk may come before theirs.
    assert all(len(step) == 33 for step in mixed[1:8])


def test_prompt_is_not_starved_by_more_decodes_than_rows(rig: SchedulerRig) -> None:
    for root in range(2, 2 + STEP_ROWS_MAX + 100):
        rig.decode(root, 600)
    rig.submit(1, STEP_TOKENS_MAX)
    rig.run(seconds_max=120)
    done = [index for index, (root, _) in enumerate(rig.results) if root == 1]
    assert done, "the prompt was computed"
    assert done[0] < 520 * 356, "before the decodes had all had more service than it"


def test_tokens_left_when_rows_run_out_go_to_prompts(rig: SchedulerRig) -> None:
    rig.submit(1, 2000, tenant="prompt")
    for root in range(2, 2 + STEP_ROWS_MAX):
        rig.submit(root, 1, tenant=f"decodes {root % 4}")
    step = rig.step()
    assert len(step.chunks) == STEP_ROWS_MAX
    assert step.tokens == STEP_TOKENS_MAX
    assert tokens_of([[(p.request.root, p.count) for p in step.chunks]], 1) > PAGE_TOKENS
    for part, row in zip(step.chunks, step.batch.rows, strict=True):
        assert part.count == len(row.tokens) == len(row.positions)


def test_tree_runs_whole_or_waits_for_the_next_step(rig: SchedulerRig) -> None:
    tree = PredOptions(parents=tuple(range(-1, 199)), at="all")
    for root in (1, 2, 3):
        rig.submit(root, 200, options=tree)
    rig.run()
    assert rig.device.steps == [[(1, 200), (2, 200)], [(3, 200)]]
    assert rig.results == [(root, bytes(200 * 8)) for root in (1, 2, 3)]


def test_trees_larger_than_any_step_before_are_run(rig: SchedulerRig) -> None:
    tree = PredOptions(parents=tuple(range(-1, 99)), at="all")
    for size, options in ((1, PredOptions()), (100, tree)):
        for root, tenant in ((1, "a"), (2, "b")):
            rig.submit(root, size, tenant=tenant, options=options)
        rig.run()
    assert sorted(rig.results)[1::2] == [(root, bytes(100 * 8)) for root in (1, 2)]


@pytest.mark.parametrize(
    ("options", "places"),
    [
        (PredOptions(at="last"), 1),
        (PredOptions(at="all"), 1200),
        (PredOptions(at=(1199, 0, 600, 0)), 4),
        (PredOptions(at=()), 0),
        (PredOptions(get=Get.NONE), 0),
        (PredOptions(at=(700,), get=Get.TOP, top=3), 3),
    ],
)
def test_chunked_result_has_the_size_asked_for(
    rig: SchedulerRig, options: PredOptions, places: int
) -> None:
    rig.submit(1, 1200, options=options)
    rig.run()
    assert rig.results == [(1, bytes(8 * places))]


def test_pred_without_keep_leaves_the_file_unchanged(rig: SchedulerRig) -> None:
    file = LengthFile(rig.pool, 20)
    free = rig.pool.free
    rig.submit(1, 700, file, options=PredOptions(keep=False))
    rig.run()
    assert (file.length, rig.pool.free) == (20, free)
    assert rig.results == [(1, bytes(8))]


@settings(max_examples=60, deadline=None)
@given(
    preds=st.lists(
        st.tuples(
            st.integers(1, 12),  # root
            st.integers(1, 900),  # tokens
            st.floats(0, 0.2),  # when
            st.booleans(),  # a tree
        ),
        min_size=1,
        max_size=60,
    )
)
def test_random_preds_are_computed_once_in_limits(
    preds: list[tuple[int, int, float, bool]],
) -> None:
    rig = SchedulerRig()
    expected: dict[int, int] = {}

    async def arrive() -> None:
        for root, tokens, at, tree in sorted(preds, key=lambda pred: pred[2]):
            count = min(tokens, 256) if tree else tokens
            expected[root] = expected.get(root, 0) + count
            while rig.clock.now() < at:
                await rig.clock.sleep(at - rig.clock.now())
            options = PredOptions(parents=(-1,) * count) if tree else PredOptions()
            rig.submit(root, count, tenant=f"t{root % 4}", options=options)
            await rig.device.run_until_idle(seconds_max=1e-9)
        await rig.device.run_until_idle()

    rig.clock.run(arrive())
    assert len(rig.results) == len(preds)
    assert all(isinstance(result, bytes) for _, result in rig.results)
    for step in rig.device.steps:
        assert len(step) <= STEP_ROWS_MAX
        assert sum(count for _, count in step) <= STEP_TOKENS_MAX
    for root, tokens in expected.items():
        assert tokens_of(rig.device.steps, root) == tokens


# -- When a step is launched -------------------------------------------------------------------
def warm_up(rig: SchedulerRig, roots: list[int], answer_ms: float) -> None:
    """Run steps with all LIPs, so that their pasts are known; leave them replied to."""
    for number in range(7):
        if number:
            rig.sleep(answer_ms / MS)
        for root in roots:
            rig.submit(root)
        rig.run()


def test_launch_waits_a_little_for_lips_of_the_last_step(rig: SchedulerRig) -> None:
    warm_up(rig, [1, 2], answer_ms=0.3)
    rig.submit(1, 1)
    wait = rig.scheduler.poll()
    assert isinstance(wait, Wait)
    bound = min(BATCH_WAIT_SHARE_MAX * 10.04, BATCH_WAIT_MS_MAX) / MS
    assert 0 < wait.seconds <= bound + 1e-9
    rig.submit(2, 1)
    step = rig.step()
    assert len(step.chunks) == 2


def test_branches_answered_one_by_one_are_launched_together(rig: SchedulerRig) -> None:
    warm_up(rig, [1, 1, 1, 1], answer_ms=0.2)
    for _ in range(3):
        rig.submit(1, 1)
        assert isinstance(rig.scheduler.poll(), Wait)
    rig.submit(1, 1)
    step = rig.step()
    assert len(step.chunks) == 4


def test_ended_branches_are_waited_for_briefly(rig: SchedulerRig) -> None:
    warm_up(rig, [1, 1, 1, 1], answer_ms=0.2)
    rig.submit(1, 1)
    wait = rig.scheduler.poll()
    assert isinstance(wait, Wait)
    assert wait.seconds < 0.0005 < BATCH_WAIT_SHARE_MAX * 10.08 / MS


def test_lip_with_its_next_pred_queued_is_not_waited_for(rig: SchedulerRig) -> None:
    rig.decode(1, 3)
    step = rig.step()
    rig.scheduler.complete(step, [bytes(8)])  # the next one comes with the answer
    assert isinstance(rig.scheduler.poll(), Step)


def test_silent_lip_is_left_behind_at_the_bound(rig: SchedulerRig) -> None:
    warm_up(rig, [1, 2], answer_ms=0.3)
    before = rig.clock.now()
    rig.submit(1, 1)
    rig.run()
    assert len(rig.device.steps[-1]) == 1
    waited = rig.clock.now() - before - 0.01002
    assert waited <= min(BATCH_WAIT_SHARE_MAX * 10.04, BATCH_WAIT_MS_MAX) / MS + 1e-6


def test_slow_lip_is_not_waited_for(rig: SchedulerRig) -> None:
    warm_up(rig, [1, 2], answer_ms=8)
    rig.submit(1, 1)
    assert isinstance(rig.scheduler.poll(), Step)


def test_full_step_is_launched_behind_the_one_computing(rig: SchedulerRig) -> None:
    rig.submit(1, 3 * STEP_TOKENS_MAX)
    rig.step()
    second = rig.step()
    assert rig.scheduler.poll() is None, "one computes, one waits, no more"
    row = second.batch.rows[0]
    assert (row.start, len(row.tokens)) == (STEP_TOKENS_MAX, STEP_TOKENS_MAX)


@pytest.mark.parametrize("branches", [False, True])
def test_second_step_waits_for_an_expected_answer(rig: SchedulerRig, branches: bool) -> None:
    for _ in range(4 * STEP_ROWS_MAX if branches else 4):
        rig.submit(1, 1 if branches else STEP_TOKENS_MAX)
    rig.submit(2, 1)
    step = rig.step()
    assert 2 in {part.request.root for part in step.chunks}
    assert rig.scheduler.poll() is None, "LIP 2 will have a better claim than LIP 1"
    rig.sleep(10 / MS)
    rig.scheduler.complete(step, [bytes(8) for _ in step.chunks])
    assert isinstance(rig.scheduler.poll(), Wait), "its answer is waited for"
    rig.submit(2, 1)
    step = rig.step()
    assert 2 in {part.request.root for part in step.chunks}


def test_step_that_is_not_full_waits_for_the_device(rig: SchedulerRig) -> None:
    rig.submit(1, 5)
    assert isinstance(rig.scheduler.poll(), Step)
    rig.submit(2, 5)
    assert rig.scheduler.poll() is None


# -- Failures, cancels, ends -------------------------------------------------------------------
def test_failed_step_fails_its_requests_alone(rig: SchedulerRig) -> None:
    failed, queued = rig.submit(1, 100), LengthFile(rig.pool)
    step = rig.step()
    rig.submit(2, 1, queued)
    rig.scheduler.fail(step)
    assert rig.results == [(1, -Errno.EIO)]
    rig.run()
    assert rig.results[1:] == [(2, bytes(8))]
    assert (failed.length, failed.pages) == (0, 0)


def test_row_without_an_answer_fails_alone(rig: SchedulerRig) -> None:
    files = [rig.submit(root, 3) for root in (1, 2)]
    step = rig.step()
    rig.scheduler.complete(step, [SyscallError(Errno.EINVAL), bytes(8)])
    assert sorted(rig.results) == [(1, -Errno.EINVAL), (2, bytes(8))]
    assert [file.length for file in files] == [0, 3]


def test_pred_on_a_file_lost_meanwhile_answers_its_error(rig: SchedulerRig) -> None:
    file = rig.submit(1, 3)
    step = rig.step()
    file.error = Errno.EIO
    rig.scheduler.complete(step, [bytes(8)])
    assert rig.results == [(1, -Errno.EIO)]
    assert file.length == 0


@pytest.mark.parametrize("when", ["queued", "computing", "between chunks"])
def test_cancelled_pred_leaves_its_file_unchanged(rig: SchedulerRig, when: str) -> None:
    file = LengthFile(rig.pool, 3)
    free = rig.pool.free
    request = make_work(1, 2000, file, done=rig.note(1))
    rig.scheduler.submit(request)
    steps = [rig.step() for _ in range(0 if when == "queued" else 2)]
    if when == "between chunks":
        rig.scheduler.complete(steps.pop(0), [b""])
    rig.scheduler.cancel(request)
    rig.scheduler.cancel(request)
    for step in steps:
        rig.scheduler.complete(step, [b""])
    rig.run()
    assert rig.results == [(1, -Errno.ECANCELED)]
    assert (file.length, rig.pool.free) == (3, free)
    assert rig.scheduler.statistics()["waiting"] == 0


def test_dropped_requests_are_not_answered(rig: SchedulerRig) -> None:
    for instance in (1, 10):
        for _ in range(3):
            request = make_work(
                1, 600, LengthFile(rig.pool), instance=instance, done=rig.note(instance)
            )
            rig.scheduler.submit(request)
    step = rig.step()
    rig.scheduler.drop_requests(1, 10)
    rig.scheduler.complete(step, [b""] * len(step.chunks))
    rig.run()
    assert [root for root, _ in rig.results] == [1, 1, 1]
    rig.submit(1, 5)
    rig.scheduler.drop_requests(1)
    rig.run()
    assert len(rig.results) == 3
    statistics = rig.scheduler.statistics()
    assert [statistics[name] for name in ("waiting", "waiting_tokens", "lips_waiting")] == [0, 0, 0]


# -- Waiting for pages -------------------------------------------------------------------------
def test_pred_without_pages_runs_when_they_are_free() -> None:
    rig = SchedulerRig(frames=10)
    held = rig.kvfs.pool.take_scratch_frames(8)
    rig.submit_new(1, 5 * PAGE_TOKENS)
    assert isinstance(rig.scheduler.poll(), Wait)
    assert rig.scheduler.statistics()["waiting_for_pages"] == 1
    rig.kvfs.pool.free_scratch_frames(held)
    rig.run()
    assert rig.results == [(1, bytes(8))]


def test_pred_that_can_never_fit_fails_at_once() -> None:
    rig = SchedulerRig(frames=10)
    rig.submit_new(1, 11 * PAGE_TOKENS)
    rig.run()
    assert rig.results == [(1, -Errno.ENOMEM)]
    assert rig.clock.now() == 0


def test_most_served_lip_fails_when_no_pages_come_free() -> None:
    rig = SchedulerRig(frames=20)
    for root, tokens in ((1, 100), (2, 20)):
        rig.submit_new(root, tokens, PredOptions(keep=False))
    rig.run()
    held = rig.kvfs.pool.take_scratch_frames(20)
    rig.results.clear()
    for root in (1, 2):
        rig.submit_new(root, 5 * PAGE_TOKENS)
    before = rig.clock.now()
    rig.run(seconds_max=(PAGES_WAIT_MS_MAX + 1) / MS)
    assert rig.results == [(1, -Errno.ENOMEM)]
    assert rig.clock.now() - before >= PAGES_WAIT_MS_MAX / MS - 1e-6
    assert rig.scheduler.statistics()["preds_starved"] == 1
    rig.kvfs.pool.free_scratch_frames(held)
    rig.run()
    assert rig.results[1:] == [(2, bytes(8))]


def test_thousands_waiting_for_pages_do_not_hold_up_the_last() -> None:
    rig = SchedulerRig(frames=20)
    rig.submit_new(2, 20, PredOptions(keep=False))
    rig.run()
    rig.results.clear()
    rig.kvfs.pool.take_scratch_frames(20)  # held for ever
    for _ in range(1000):
        rig.submit_new(2, PAGE_TOKENS)
    rig.submit_new(1, PAGE_TOKENS)
    rig.run(seconds_max=11 * PAGES_WAIT_MS_MAX / MS)
    assert (1, -Errno.ENOMEM) in rig.results
    assert rig.results[:15] == [(2, -Errno.ENOMEM)] * 15


def test_statistics_count_rows_and_tokens(rig: SchedulerRig) -> None:
    rig.submit(1, 600)
    for root in (2, 3):
        rig.decode(root, 3)
    rig.run()
    statistics = rig.scheduler.statistics()
    assert (statistics["prefill_tokens"], statistics["decode_tokens"]) == (600, 6)
    assert statistics["tokens_computed"] == 606
    assert statistics["preds"] == 7
    assert statistics["steps"] == len(rig.device.steps)
    assert statistics["rows"] == sum(map(len, rig.device.steps))
    assert statistics["decode_rows"] == 6
    assert statistics["decode_steps"] == sum(
        1 for step in rig.device.steps if any(root != 1 for root, _ in step)
    )
    computing = 10 * len(rig.device.steps) + 0.01 * 600 + 0.02 * 6
    assert statistics["step_ms"] == pytest.approx(computing), (
        "waiting for answers is no part of a step"
    )


def test_step_reported_late_teaches_no_negative_time(rig: SchedulerRig) -> None:
    for root in range(1, 40):
        rig.submit(root, 1)
        step = rig.step()
        rig.scheduler.complete(step, [bytes(8)], ended=rig.clock.now() - 1.0)
    assert 0.0 <= rig.scheduler._costs.base(1) <= 1e-6
    assert rig.scheduler.statistics()["step_ms"] == 0.0
