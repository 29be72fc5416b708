"""What `python -m tools.walks` counts, on a real server."""

import pytest

from tools.walks import report, walks


@pytest.mark.slow
def test_walks_count_what_a_pred_a_token_and_a_run_pass_through() -> None:
    found = {each.title: each for each in walks()}
    pred, token, run = (found[f"one {unit}"] for unit in ("pred", "generated token", "HTTP run"))
    named = {name.partition(":")[2]: number for (_, name), number in pred.calls.items()}
    assert named["Syscalls._pred"] == pytest.approx(1.0, abs=0.1)
    assert {role for role, _ in pred.calls} >= {"kernel", "worker"}
    assert "symphony_kernel/scheduler/batcher.py" in pred.files & token.files
    assert {role for role, _ in run.calls} == {"kernel", "worker", "gateway"}
    assert pred.order[0][0] == "worker"
    assert "one pred: " in report([pred], with_calls=True)
