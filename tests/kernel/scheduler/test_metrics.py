"""What the scheduler counts, on a virtual clock with a device of known speed."""

from typing import Any

import pytest
from symphony_kernel.executor.simulated import CostModel
from symphony_kernel.platform.clock import VirtualClock
from symphony_kernel.protocol.pred_options import DEFAULT, Get, PredOptions
from symphony_kernel.scheduler.scheduler import Scheduler

from tests.support.kernel.scheduling import VOCAB_SIZE, Device, LengthFile, Pool, make_work

STEP = 0.010  # seconds of every step
COSTS = CostModel(fixed_us=STEP * 1e6, prefill_token_us=0, decode_row_us=0)


class Bench:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.pool = Pool(1 << 16)
        self.scheduler = Scheduler(self.clock, 1 << 16, VOCAB_SIZE)
        self.device = Device(self.clock, self.scheduler, COSTS)

    def pred(self, root: int, file: LengthFile, tokens: int = 1, get: Get | None = None) -> None:
        options = DEFAULT if get is None else PredOptions(get=get)
        self.scheduler.submit(make_work(root, tokens, file, options=options))
        self.clock.run(self.device.run_until_idle())

    def sleep(self, seconds: float) -> None:
        self.clock.run(self.clock.sleep(seconds))

    def seen(self, name: str) -> tuple[int, float]:
        view: dict[str, Any] = self.scheduler.histograms()[name]
        return sum(view["counts"]), view["sum"]


def test_time_to_first_token_counts_once_a_lip() -> None:
    bench = Bench()
    bench.sleep(1.0)
    file = LengthFile(bench.pool)
    bench.pred(1, file, tokens=8, get=Get.NONE)
    assert bench.seen("time_to_first_token_seconds") == (0, 0.0)
    bench.sleep(0.1)
    bench.pred(1, file)
    count, seconds = bench.seen("time_to_first_token_seconds")
    assert count == 1
    assert seconds == pytest.approx(0.1 + 2 * STEP, abs=STEP / 2)
    for _ in range(3):
        bench.pred(1, file)
    bench.pred(2, LengthFile(bench.pool), tokens=8)
    assert bench.seen("time_to_first_token_seconds")[0] == 2
    bench.scheduler.drop_requests(1)
    bench.pred(1, file)  # a LIP that is new
    assert bench.seen("time_to_first_token_seconds")[0] == 3


def test_inter_token_latency_is_of_a_file_without_prompts() -> None:
    bench = Bench()
    bench.sleep(1.0)
    file, other = LengthFile(bench.pool), LengthFile(bench.pool)
    bench.pred(1, file, tokens=8)
    bench.pred(1, other, tokens=8)
    assert bench.seen("inter_token_latency_seconds") == (0, 0.0)
    bench.pred(1, file)
    count, first = bench.seen("inter_token_latency_seconds")
    assert count == 1
    assert first == pytest.approx(2 * STEP, abs=STEP)
    bench.sleep(0.5)  # the program's own time is what a reader waits, too
    bench.pred(1, file)
    count, both = bench.seen("inter_token_latency_seconds")
    assert count == 2
    assert both - first == pytest.approx(0.5 + STEP, abs=STEP)
    bench.sleep(5.0)
    bench.pred(1, file, tokens=8)  # the next turn of a conversation is no token
    assert bench.seen("inter_token_latency_seconds")[0] == 2


def test_steps_are_counted_by_rows_tokens_and_seconds() -> None:
    bench = Bench()
    bench.sleep(1.0)
    for root in range(1, 5):
        bench.scheduler.submit(make_work(root, 10, LengthFile(bench.pool)))
    bench.clock.run(bench.device.run_until_idle())
    assert bench.seen("step_rows") == (1, 4.0)
    assert bench.seen("step_tokens") == (1, 40.0)
    count, seconds = bench.seen("step_seconds")
    assert count == 1
    assert seconds == pytest.approx(STEP)
    counted = bench.scheduler.statistics()
    assert (counted.steps, counted.rows, counted.prefill_tokens, counted.preds) == (1, 4, 40, 4)


def test_pred_without_pages_is_counted_as_starved() -> None:
    bench = Bench()
    bench.pool.free = 1
    files = [LengthFile(bench.pool) for _ in range(2)]
    for root, file in enumerate(files, 1):
        bench.scheduler.submit(make_work(root, 16, file))
    bench.clock.run(bench.device.run_until_idle())
    assert bench.scheduler.statistics().preds_starved == 1
