"""Level 2 and the facade: what a step holds, when it is launched, and who waits for pages."""

from collections.abc import Callable
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from symphony_kernel.executor.simulated import CostModel
from symphony_kernel.platform.clock import VirtualClock
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import (
    BATCH_WAIT_MS_MAX,
    BATCH_WAIT_SHARE_MAX,
    PAGE_TOKENS,
    PAGES_PASSED_STEPS_MAX,
    PAGES_WAIT_MS_MAX,
    STEP_ROWS_MAX,
    STEP_TOKENS_MAX,
)
from symphony_kernel.protocol.pred_options import Get, PredOptions
from symphony_kernel.scheduler.batcher import Step, StepLimits
from symphony_kernel.scheduler.scheduler import Scheduler, Wait

from tests.support.kernel.scheduling import (
    VOCAB_SIZE,
    Device,
    LengthFile,
    Pool,
    make_work,
    tokens_of,
)

MS = 1000.0
UNBOUNDED = StepLimits(decode_gap_ms=inf)  # test_fairness has the bound
COSTS = CostModel(fixed_us=10 * MS, prefill_token_us=10, decode_row_us=20)


class Bench:
    """A scheduler and a device on a virtual clock."""

    def __init__(
        self, pages: int = 1 << 20, costs: CostModel = COSTS, limits: StepLimits = UNBOUNDED
    ) -> None:
        self.clock = VirtualClock()
        self.pool = Pool(pages)
        self.scheduler = Scheduler(self.clock, pages, VOCAB_SIZE, limits=limits)
        self.device = Device(self.clock, self.scheduler, costs)
        self.results: list[tuple[int, bytes | int]] = []

    def note(self, root: int) -> Callable[[bytes | int], None]:
        return lambda result: self.results.append((root, result))

    def submit(
        self,
        root: int,
        tokens: int,
        file: LengthFile | None = None,
        tenant: str = "t",
        options: PredOptions | None = None,
    ) -> LengthFile:
        file = file or LengthFile(self.pool)
        self.scheduler.submit(
            make_work(
                root,
                tokens,
                file,
                tenant=tenant,
                options=options or PredOptions(),
                done=self.note(root),
            )
        )
        return file

    def run(self, seconds_max: float = 1e9) -> None:
        self.clock.run(self.device.run_until_idle(seconds_max))

    def decode(self, root: int, times: int, tenant: str = "t") -> LengthFile:
        """Let a LIP decode: each answer is followed at once by the next pred."""
        file = LengthFile(self.pool)
        left = [times]

        def done(result: bytes | int) -> None:
            self.results.append((root, result))
            left[0] -= 1
            if left[0] > 0:
                self.scheduler.submit(make_work(root, 1, file, tenant=tenant, done=done))

        self.scheduler.submit(make_work(root, 1, file, tenant=tenant, done=done))
        return file


# -- What a step holds -------------------------------------------------------------------------
def test_long_prompt_is_chunked_by_the_token_budget() -> None:
    bench = Bench()
    file = bench.submit(1, 2 * STEP_TOKENS_MAX + 5)
    bench.run()
    assert bench.device.steps == [[(1, STEP_TOKENS_MAX)], [(1, STEP_TOKENS_MAX)], [(1, 5)]]
    assert bench.results == [(1, bytes(8))]
    assert file.length == 2 * STEP_TOKENS_MAX + 5


def test_prompt_gets_what_decodes_leave_of_each_step() -> None:
    bench = Bench()
    for root in range(2, 34):
        bench.decode(root, 20)
    bench.submit(1, 8 * STEP_TOKENS_MAX)
    bench.run()
    mixed = [dict(step) for step in bench.device.steps if tokens_of([step], 1)]
    assert all(sum(step.values()) == STEP_TOKENS_MAX for step in mixed[:-1])
    # A newcomer starts level with the others, so its first chunk may come before theirs.
    assert all(len(step) == 33 for step in mixed[1:8])


def test_prompt_is_not_starved_by_more_decodes_than_rows() -> None:
    bench = Bench()
    for root in range(2, 2 + STEP_ROWS_MAX + 100):
        bench.decode(root, 600)
    bench.submit(1, STEP_TOKENS_MAX)
    bench.run(seconds_max=120)
    done = [index for index, (root, _) in enumerate(bench.results) if root == 1]
    assert done, "the prompt was computed"
    assert done[0] < 520 * 356, "before the decodes had all had more service than it"


def test_tokens_left_when_rows_run_out_go_to_prompts() -> None:
    bench = Bench()
    bench.submit(1, 2000, tenant="prompt")
    for root in range(2, 2 + STEP_ROWS_MAX):
        bench.submit(root, 1, tenant=f"decodes {root % 4}")
    step = bench.scheduler.poll()
    assert isinstance(step, Step)
    assert len(step.chunks) == STEP_ROWS_MAX
    assert step.tokens == STEP_TOKENS_MAX
    assert tokens_of([[(p.request.root, p.count) for p in step.chunks]], 1) > PAGE_TOKENS
    for part, row in zip(step.chunks, step.batch.rows, strict=True):
        assert part.count == len(row.tokens) == len(row.positions)


def test_tree_runs_whole_or_waits_for_the_next_step() -> None:
    bench = Bench()
    tree = PredOptions(parents=tuple(range(-1, 199)), at="all")
    for root in (1, 2, 3):
        bench.submit(root, 200, options=tree)
    bench.run()
    assert bench.device.steps == [[(1, 200), (2, 200)], [(3, 200)]]
    assert bench.results == [(root, bytes(200 * 8)) for root in (1, 2, 3)]


def test_trees_larger_than_any_step_before_are_run() -> None:
    bench = Bench()
    tree = PredOptions(parents=tuple(range(-1, 99)), at="all")
    for size, options in ((1, PredOptions()), (100, tree)):
        for root, tenant in ((1, "a"), (2, "b")):
            bench.submit(root, size, tenant=tenant, options=options)
        bench.run()
    assert sorted(bench.results)[1::2] == [(root, bytes(100 * 8)) for root in (1, 2)]


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
def test_chunked_result_has_the_size_asked_for(options: PredOptions, places: int) -> None:
    bench = Bench()
    bench.submit(1, 1200, options=options)
    bench.run()
    assert bench.results == [(1, bytes(8 * places))]


def test_pred_without_keep_leaves_the_file_unchanged() -> None:
    bench = Bench()
    file = LengthFile(bench.pool, 20)
    free = bench.pool.free
    bench.submit(1, 700, file, options=PredOptions(keep=False))
    bench.run()
    assert (file.length, bench.pool.free) == (20, free)
    assert bench.results == [(1, bytes(8))]


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
def test_random_preds_are_computed_once_within_the_limits(
    preds: list[tuple[int, int, float, bool]],
) -> None:
    bench = Bench()
    expected: dict[int, int] = {}

    async def arrive() -> None:
        for root, tokens, at, tree in sorted(preds, key=lambda pred: pred[2]):
            count = min(tokens, 256) if tree else tokens
            expected[root] = expected.get(root, 0) + count
            while bench.clock.now() < at:
                await bench.clock.sleep(at - bench.clock.now())
            options = PredOptions(parents=(-1,) * count) if tree else PredOptions()
            bench.submit(root, count, tenant=f"t{root % 4}", options=options)
            await bench.device.run_until_idle(seconds_max=1e-9)
        await bench.device.run_until_idle()

    bench.clock.run(arrive())
    assert len(bench.results) == len(preds)
    assert all(isinstance(result, bytes) for _, result in bench.results)
    for step in bench.device.steps:
        assert len(step) <= STEP_ROWS_MAX
        assert sum(count for _, count in step) <= STEP_TOKENS_MAX
    for root, tokens in expected.items():
        assert tokens_of(bench.device.steps, root) == tokens


def test_thousand_branches_of_one_lip_do_not_delay_another() -> None:
    bench = Bench()
    for _ in range(1000):
        bench.submit(1, 1)
    bench.decode(2, 5)
    bench.run()
    for step in bench.device.steps[:4]:
        assert 2 in dict(step), "the small LIP is in every step"


# -- When a step is launched -------------------------------------------------------------------
def warm_up(bench: Bench, roots: list[int], answer_ms: float) -> None:
    """Two steps with all LIPs, so that their pasts are known; leaves them replied to."""

    async def rounds() -> None:
        for _ in range(6):
            for root in roots:
                bench.submit(root, 1)
            await bench.device.run_until_idle()
            await bench.clock.sleep(answer_ms / MS)

    bench.clock.run(rounds())
    for root in roots:
        bench.submit(root, 1)
    bench.run()


def test_launch_without_expected_answers_is_at_once() -> None:
    bench = Bench()
    bench.submit(1, 1)
    assert isinstance(bench.scheduler.poll(), Step)


def test_launch_waits_a_little_for_lips_of_the_last_step() -> None:
    bench = Bench()
    warm_up(bench, [1, 2], answer_ms=0.3)
    bench.submit(1, 1)
    wait = bench.scheduler.poll()
    assert isinstance(wait, Wait)
    bound = min(BATCH_WAIT_SHARE_MAX * 10.04, BATCH_WAIT_MS_MAX) / MS
    assert 0 < wait.seconds <= bound + 1e-9
    bench.submit(2, 1)
    step = bench.scheduler.poll()
    assert isinstance(step, Step)
    assert len(step.chunks) == 2


def test_branches_answered_one_by_one_are_launched_together() -> None:
    bench = Bench()
    warm_up(bench, [1, 1, 1, 1], answer_ms=0.2)
    for _ in range(3):
        bench.submit(1, 1)
        assert isinstance(bench.scheduler.poll(), Wait)
    bench.submit(1, 1)
    step = bench.scheduler.poll()
    assert isinstance(step, Step)
    assert len(step.chunks) == 4


def test_ended_branches_are_waited_for_briefly() -> None:
    bench = Bench()
    warm_up(bench, [1, 1, 1, 1], answer_ms=0.2)
    bench.submit(1, 1)
    wait = bench.scheduler.poll()
    assert isinstance(wait, Wait)
    assert wait.seconds < 0.0005 < BATCH_WAIT_SHARE_MAX * 10.08 / MS


def test_lip_with_its_next_pred_queued_is_not_waited_for() -> None:
    bench = Bench()
    bench.decode(1, 3)
    step = bench.scheduler.poll()
    assert isinstance(step, Step)
    bench.scheduler.complete(step, [bytes(8)])  # the next one comes with the answer
    assert isinstance(bench.scheduler.poll(), Step)


def test_silent_lip_is_left_behind_at_the_bound() -> None:
    bench = Bench()
    warm_up(bench, [1, 2], answer_ms=0.3)
    before = bench.clock.now()
    bench.submit(1, 1)
    bench.run()
    assert len(bench.device.steps[-1]) == 1
    waited = bench.clock.now() - before - 0.01002
    assert waited <= min(BATCH_WAIT_SHARE_MAX * 10.04, BATCH_WAIT_MS_MAX) / MS + 1e-6


def test_slow_lip_is_not_waited_for() -> None:
    bench = Bench()
    warm_up(bench, [1, 2], answer_ms=8)
    bench.submit(1, 1)
    assert isinstance(bench.scheduler.poll(), Step)


def test_full_step_is_launched_behind_the_one_computing() -> None:
    bench = Bench()
    bench.submit(1, 3 * STEP_TOKENS_MAX)
    first, second = bench.scheduler.poll(), bench.scheduler.poll()
    assert isinstance(first, Step)
    assert isinstance(second, Step)
    assert bench.scheduler.poll() is None, "one computes, one waits, no more"
    row = second.batch.rows[0]
    assert (row.start, len(row.tokens)) == (STEP_TOKENS_MAX, STEP_TOKENS_MAX)


@pytest.mark.parametrize("branches", [False, True])
def test_second_step_is_not_launched_before_an_expected_answer(branches: bool) -> None:
    bench = Bench()
    for _ in range(4 * STEP_ROWS_MAX if branches else 4):
        bench.submit(1, 1 if branches else STEP_TOKENS_MAX)
    bench.submit(2, 1)
    step = bench.scheduler.poll()
    assert isinstance(step, Step)
    assert 2 in {part.request.root for part in step.chunks}
    assert bench.scheduler.poll() is None, "LIP 2 will have a better claim than LIP 1"
    bench.clock.run(bench.clock.sleep(10 / MS))
    bench.scheduler.complete(step, [bytes(8) for _ in step.chunks])
    assert isinstance(bench.scheduler.poll(), Wait), "its answer is waited for"
    bench.submit(2, 1)
    step = bench.scheduler.poll()
    assert isinstance(step, Step)
    assert 2 in {part.request.root for part in step.chunks}


def test_step_that_is_not_full_waits_for_the_device() -> None:
    bench = Bench()
    bench.submit(1, 5)
    assert isinstance(bench.scheduler.poll(), Step)
    bench.submit(2, 5)
    assert bench.scheduler.poll() is None


# -- Failures, cancels, ends -------------------------------------------------------------------
def test_failed_step_fails_its_requests_alone() -> None:
    bench = Bench()
    failed, queued = bench.submit(1, 100), LengthFile(bench.pool)
    step = bench.scheduler.poll()
    bench.submit(2, 1, queued)
    assert isinstance(step, Step)
    bench.scheduler.fail(step)
    assert bench.results == [(1, -Errno.EIO)]
    bench.run()
    assert bench.results[1:] == [(2, bytes(8))]
    assert (failed.length, failed.pages) == (0, 0)


def test_row_without_an_answer_fails_alone() -> None:
    bench = Bench()
    files = [bench.submit(root, 3) for root in (1, 2)]
    step = bench.scheduler.poll()
    assert isinstance(step, Step)
    bench.scheduler.complete(step, [SyscallError(Errno.EINVAL), bytes(8)])
    assert sorted(bench.results) == [(1, -Errno.EINVAL), (2, bytes(8))]
    assert [file.length for file in files] == [0, 3]


def test_pred_on_a_file_lost_meanwhile_answers_its_error() -> None:
    bench = Bench()
    file = bench.submit(1, 3)
    step = bench.scheduler.poll()
    assert isinstance(step, Step)
    file.error = Errno.EIO
    bench.scheduler.complete(step, [bytes(8)])
    assert bench.results == [(1, -Errno.EIO)]
    assert file.length == 0


@pytest.mark.parametrize("when", ["queued", "computing", "between chunks"])
def test_cancelled_pred_leaves_its_file_unchanged(when: str) -> None:
    bench = Bench()
    file = LengthFile(bench.pool, 3)
    free = bench.pool.free
    request = make_work(1, 2000, file, done=bench.note(1))
    bench.scheduler.submit(request)
    steps = [bench.scheduler.poll() for _ in range(0 if when == "queued" else 2)]
    if when == "between chunks":
        first = steps.pop(0)
        assert isinstance(first, Step)
        bench.scheduler.complete(first, [b""])
    bench.scheduler.cancel(request)
    bench.scheduler.cancel(request)
    for step in steps:
        assert isinstance(step, Step)
        bench.scheduler.complete(step, [b""])
    bench.run()
    assert bench.results == [(1, -Errno.ECANCELED)]
    assert (file.length, bench.pool.free) == (3, free)
    assert bench.scheduler.statistics().queue.requests == 0


def test_dropped_requests_are_not_answered() -> None:
    bench = Bench()
    for instance in (1, 10):
        for _ in range(3):
            request = make_work(
                1, 600, LengthFile(bench.pool), instance=instance, done=bench.note(instance)
            )
            bench.scheduler.submit(request)
    step = bench.scheduler.poll()
    assert isinstance(step, Step)
    bench.scheduler.drop_requests(1, 10)
    bench.scheduler.complete(step, [b""] * len(step.chunks))
    bench.run()
    assert [root for root, _ in bench.results] == [1, 1, 1]
    bench.submit(1, 5)
    bench.scheduler.drop_requests(1)
    bench.run()
    assert len(bench.results) == 3
    statistics = bench.scheduler.statistics()
    assert (statistics.queue.requests, statistics.queue.tokens, statistics.queue.lips) == (0, 0, 0)


# -- Waiting for pages -------------------------------------------------------------------------
def test_pred_without_pages_runs_when_they_are_free() -> None:
    bench = Bench(pages=10)
    holder = LengthFile(bench.pool, 8 * PAGE_TOKENS)
    bench.submit(1, 5 * PAGE_TOKENS)
    assert isinstance(bench.scheduler.poll(), Wait)
    assert bench.scheduler.statistics().waiting_for_pages == 1
    holder.close()
    bench.run()
    assert bench.results == [(1, bytes(8))]


def test_pred_that_can_never_fit_fails_at_once() -> None:
    bench = Bench(pages=10)
    bench.submit(1, 11 * PAGE_TOKENS)
    bench.run()
    assert bench.results == [(1, -Errno.ENOMEM)]
    assert bench.clock.now() == 0


def test_most_served_lip_fails_when_no_pages_come_free() -> None:
    bench = Bench(pages=20)
    files = {root: bench.submit(root, tokens) for root, tokens in ((1, 100), (2, 20))}
    bench.run()
    holder = LengthFile(bench.pool, bench.pool.free * PAGE_TOKENS)
    bench.results.clear()
    for root, file in files.items():
        bench.submit(root, 5 * PAGE_TOKENS, file)
    before = bench.clock.now()
    bench.run(seconds_max=(PAGES_WAIT_MS_MAX + 1) / MS)
    assert bench.results == [(1, -Errno.ENOMEM)]
    assert bench.clock.now() - before >= PAGES_WAIT_MS_MAX / MS - 1e-6
    holder.close()
    bench.run()
    assert bench.results[1:] == [(2, bytes(8))]


def test_thousands_waiting_for_pages_do_not_hold_up_the_last() -> None:
    bench = Bench(pages=20)
    bench.submit(2, 20)
    bench.run()
    bench.results.clear()
    LengthFile(bench.pool, bench.pool.free * PAGE_TOKENS)  # held for ever
    for _ in range(1000):
        bench.submit(2, PAGE_TOKENS)
    bench.submit(1, PAGE_TOKENS)
    bench.run(seconds_max=10 * PAGES_WAIT_MS_MAX / MS)
    assert (1, -Errno.ENOMEM) in bench.results
    assert bench.results[:15] == [(2, -Errno.ENOMEM)] * 15


def test_small_preds_pass_a_waiting_one_for_a_while_only() -> None:
    bench = Bench(pages=100)
    holder = LengthFile(bench.pool, 95 * PAGE_TOKENS)
    bench.submit(1, 20 * PAGE_TOKENS)  # waits for more than is free
    free = bench.pool.free

    async def others() -> None:
        for turn in range(3 * PAGES_PASSED_STEPS_MAX):
            file = bench.submit(2 + turn, 1)
            await bench.device.run_until_idle(seconds_max=0.005)
            file.close()
            if turn == PAGES_PASSED_STEPS_MAX + 10:
                holder.close()

    bench.clock.run(others())
    assert free == 5
    order = [root for root, _ in bench.results]
    assert 1 in order
    assert order.index(1) > PAGES_PASSED_STEPS_MAX / 2


def test_statistics_count_rows_and_tokens() -> None:
    bench = Bench()
    bench.submit(1, 600)
    for root in (2, 3):
        bench.decode(root, 3)
    bench.run()
    statistics = bench.scheduler.statistics()
    assert (statistics.prefill_tokens, statistics.decode_tokens) == (600, 6)
    assert statistics.tokens_computed == 606
    assert statistics.preds == 7
    assert statistics.steps == len(bench.device.steps)
    assert statistics.rows == sum(map(len, bench.device.steps))
    assert statistics.decode_rows == 6
    assert statistics.decode_steps == sum(
        1 for step in bench.device.steps if any(root != 1 for root, _ in step)
    )
    computing = 10 * len(bench.device.steps) + 0.01 * 600 + 0.02 * 6
    assert statistics.step_ms == pytest.approx(computing), (
        "waiting for answers is no part of a step"
    )


def test_step_reported_late_teaches_no_negative_time() -> None:
    bench = Bench()
    for root in range(1, 40):
        bench.submit(root, 1)
        step = bench.scheduler.poll()
        assert isinstance(step, Step)
        bench.scheduler.complete(step, [bytes(8)], ended=bench.clock.now() - 1.0)
    assert 0.0 <= bench.scheduler._costs.base(1) <= 1e-6
    assert bench.scheduler.statistics().step_ms == 0.0
