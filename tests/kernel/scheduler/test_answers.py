"""How long a launch waits for the LIPs of the last step."""

import pytest
from symphony_kernel.protocol.limits import BATCH_WAIT_MS_MAX, BATCH_WAIT_SHARE_MAX
from symphony_kernel.scheduler.answers import Answers

STEP = 0.010  # seconds


def stepped(replies: dict[int, int], step_seconds: float = STEP) -> Answers:
    answers = Answers()
    answers.stepped(replies, 1.0, step_seconds)
    return answers


def test_two_groups_of_one_lip_come_together_again() -> None:
    answers = stepped({7: 8})
    # Its other eight branches are ready; the answers to these take a fifth of a step.
    assert answers.wait_seconds(1.0, 8) == pytest.approx(STEP * BATCH_WAIT_SHARE_MAX)
    assert answers.wait_seconds(1.0 + STEP / 6, 8) > 0
    for _ in range(8):
        answers.heard(7, 1.0 + STEP / 5)
    assert answers.wait_seconds(1.0 + STEP / 5, 16) == 0


def test_many_wait_for_one_only_as_long_as_it_pays() -> None:
    answers = stepped({7: 1})
    assert answers.wait_seconds(1.0, 63) == pytest.approx(STEP / 64)
    assert answers.wait_seconds(1.0 + STEP / 60, 63) == 0


def test_a_long_step_is_no_reason_to_wait_long() -> None:
    assert stepped({7: 8}, 1.0).wait_seconds(1.0, 8) == pytest.approx(BATCH_WAIT_MS_MAX / 1000)


def test_who_has_ended_is_not_waited_for() -> None:
    answers = stepped({7: 8, 8: 1})
    answers.forget(7)
    assert answers.wait_seconds(1.0, 9) == pytest.approx(STEP / 10)
    answers.forget(8)
    assert answers.wait_seconds(1.0, 9) == 0
