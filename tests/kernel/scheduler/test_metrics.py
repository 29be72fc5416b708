"""What the scheduler counts, on a virtual clock with a device of known speed."""

from typing import Any

import pytest
from symphony_kernel.executor.simulated import CostModel
from symphony_kernel.protocol.pred_options import Get, PredOptions

from tests.support.kernel.scheduling import LengthFile, SchedulerRig

STEP = 0.010  # seconds of every step
COSTS = CostModel(fixed_us=STEP * 1e6, prefill_token_us=0, decode_row_us=0)


class MetricsRig(SchedulerRig):
    def __init__(self) -> None:
        super().__init__(costs=COSTS)
        self.sleep(1.0)

    def pred(self, root: int, file: LengthFile, tokens: int = 1, get: Get = Get.ARGMAX) -> None:
        self.submit(root, tokens, file, options=PredOptions(get=get))
        self.run()

    def seen(self, name: str) -> tuple[int, float]:
        view: dict[str, Any] = self.scheduler.histograms()[name]
        return sum(view["counts"]), view["sum"]


@pytest.fixture
def rig() -> MetricsRig:
    return MetricsRig()


def test_time_to_first_token_counts_once_a_lip(rig: MetricsRig) -> None:
    file = LengthFile(rig.pool)
    rig.pred(1, file, tokens=8, get=Get.NONE)
    assert rig.seen("time_to_first_token_seconds") == (0, 0.0)
    rig.sleep(0.1)
    rig.pred(1, file)
    count, seconds = rig.seen("time_to_first_token_seconds")
    assert count == 1
    assert seconds == pytest.approx(0.1 + 2 * STEP, abs=STEP / 2)
    for _ in range(3):
        rig.pred(1, file)
    rig.pred(2, LengthFile(rig.pool), tokens=8)
    assert rig.seen("time_to_first_token_seconds")[0] == 2
    rig.scheduler.drop_requests(1)
    rig.pred(1, file)  # a LIP that is new
    assert rig.seen("time_to_first_token_seconds")[0] == 3


def test_inter_token_latency_is_of_a_file_without_prompts(rig: MetricsRig) -> None:
    file, other = LengthFile(rig.pool), LengthFile(rig.pool)
    rig.pred(1, file, tokens=8)
    rig.pred(1, other, tokens=8)
    assert rig.seen("inter_token_latency_seconds") == (0, 0.0)
    rig.pred(1, file)
    count, first = rig.seen("inter_token_latency_seconds")
    assert count == 1
    assert first == pytest.approx(2 * STEP, abs=STEP)
    rig.sleep(0.5)  # the program's own time is what a reader waits, too
    rig.pred(1, file)
    count, both = rig.seen("inter_token_latency_seconds")
    assert count == 2
    assert both - first == pytest.approx(0.5 + STEP, abs=STEP)
    rig.sleep(5.0)
    rig.pred(1, file, tokens=8)  # the next turn of a conversation is no token
    assert rig.seen("inter_token_latency_seconds")[0] == 2


def test_steps_are_counted_by_rows_tokens_and_seconds(rig: MetricsRig) -> None:
    for root in range(1, 5):
        rig.submit(root, 10)
    rig.run()
    assert rig.seen("step_rows") == (1, 4.0)
    assert rig.seen("step_tokens") == (1, 40.0)
    count, seconds = rig.seen("step_seconds")
    assert count == 1
    assert seconds == pytest.approx(STEP)
    counted = rig.scheduler.statistics()
    names = ("steps", "rows", "prefill_tokens", "preds")
    assert [counted[name] for name in names] == [1, 4, 40, 4]
