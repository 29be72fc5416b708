"""How long a launch waits for the LIPs of the last step."""

import pytest
from symphony_kernel.fairness.fair_queue import FairQueue
from symphony_kernel.protocol.limits import BATCH_WAIT_MS_MAX, BATCH_WAIT_SHARE_MAX, DECODING_MS_MAX
from symphony_kernel.scheduler.anticipation import Anticipation

from tests.support.kernel.scheduling import LengthFile, Pool, make_work

STEP = 0.010  # seconds


def ready(*roots: int) -> FairQueue:
    """Return a queue with one request for each of these runs."""
    queue, pool = FairQueue(), Pool()
    for root in roots:
        queue.push(make_work(root, 1, LengthFile(pool)))
    return queue


def stepped(replies: dict[int, int], step_seconds: float = STEP) -> Anticipation:
    answers = Anticipation()
    answers.step_ended(replies, 1.0, step_seconds)
    return answers


def test_two_groups_of_one_lip_are_joined_by_a_wait() -> None:
    answers = stepped({7: 8})
    # Its other eight branches are ready; the answers to these take a fifth of a step.
    assert answers.wait_seconds(1.0, ready(*[7] * 8)) == pytest.approx(STEP * BATCH_WAIT_SHARE_MAX)
    assert answers.wait_seconds(1.0 + STEP / 6, ready(*[7] * 8)) > 0
    for _ in range(8):
        answers.request_arrived(7, 1.0 + STEP / 5)
    assert answers.wait_seconds(1.0 + STEP / 5, ready(*[7] * 16)) == 0


def test_wait_of_many_for_one_is_short() -> None:
    answers = stepped({7: 1})
    assert answers.wait_seconds(1.0, ready(*range(8, 71))) == pytest.approx(STEP / 64)
    assert answers.wait_seconds(1.0 + STEP / 60, ready(*range(8, 71))) == 0


def test_wait_after_a_long_step_is_bounded() -> None:
    assert stepped({7: 8}, 1.0).wait_seconds(1.0, ready(*[7] * 8)) == pytest.approx(
        BATCH_WAIT_MS_MAX / 1000
    )


def test_run_that_ended_is_not_waited_for() -> None:
    answers = stepped({7: 8, 8: 1})
    answers.forget_run(7)
    assert answers.wait_seconds(1.0, ready(*range(9, 18))) == pytest.approx(STEP / 10)
    answers.forget_run(8)
    assert answers.wait_seconds(1.0, ready(*range(9, 18))) == 0


def test_thousand_branches_wait_for_a_stream() -> None:
    answers = stepped({7: 1})
    wait = answers.wait_seconds(1.0, ready(*[8] * 1000))
    assert wait == pytest.approx(STEP * BATCH_WAIT_SHARE_MAX)


def test_run_with_a_recent_result_is_decoding() -> None:
    answers = stepped({7: 1, 8: 0})
    soon, later = 1.0 + DECODING_MS_MAX / 2000, 1.0 + DECODING_MS_MAX / 500
    assert answers.any_decoding(soon, besides=7)
    assert not answers.any_decoding(later)
    answers.step_ended({7: 1}, soon, STEP)
    assert answers.any_decoding(soon, besides=7), "LIP 8 has not been forgotten"
    answers.forget_run(8)
    assert not answers.any_decoding(soon, besides=7)
    assert answers.any_decoding(soon)


def learned(seconds: list[float]) -> Anticipation:
    answers = Anticipation()
    for number, taken in enumerate(seconds, 1):
        answers.step_ended({7: 1}, float(number), STEP)
        answers.request_arrived(7, number + taken)
    answers.step_ended({7: 1}, 100.0, STEP)
    return answers


def test_run_that_rarely_thinks_long_is_waited_for() -> None:
    answers = learned([STEP / 20] * 7 + [0.05] + [STEP / 20] * 2)
    assert answers.wait_seconds(100.0, ready(8)) > STEP / 20


def test_run_that_always_thinks_long_is_not_waited_for() -> None:
    assert learned([0.05] * 10).wait_seconds(100.0, ready(8)) == 0


def test_last_of_many_is_waited_for_when_about_to_answer() -> None:
    answers = learned([STEP / 20, STEP / 10] * 5)
    crowd = ready(*range(8, 71))
    assert answers.wait_seconds(100.0, crowd) == 0, "too long a wait for one of 64"
    assert answers.wait_seconds(100.0 + STEP * 0.095, crowd) > 0, "most of it is over"


def test_run_that_answers_late_is_not_expected_soon() -> None:
    answers = stepped({7: 1})
    assert answers.answers_soon(7)
    assert answers.answers_soon(8), "nothing is known of it"
    for number in range(4):
        answers.request_arrived(7, 2.0 + number)
        answers.step_ended({7: 1}, 2.5 + number, STEP)
    assert not answers.answers_soon(7)


def test_reply_outside_a_step_is_waited_for_too() -> None:
    answers = stepped({7: 1})
    answers.request_arrived(7, 1.0001)
    assert answers.wait_seconds(1.0002, ready(8)) == 0
    answers.replied(7, 1.0002)
    assert answers.wait_seconds(1.0002, ready(8)) > 0
