"""Result lines, and the frontier that tells what has a result."""

import json

from hypothesis import given
from hypothesis import strategies as st
from symphony_runtime.gateway.batches.inner_requests import InnerAnswer
from symphony_runtime.gateway.batches.lines import Line
from symphony_runtime.gateway.batches.records import Progress, Tokens
from symphony_runtime.gateway.batches.results import (
    EXPIRED,
    WINDOW_LINES,
    Frontier,
    Result,
    answered,
    not_run,
)
from symphony_runtime.gateway.openai.program_messages import Usage

BATCH = "batch_0123"
LINE = Line(7, 100, 200, b"")


def test_answered_line_is_openais_and_one_line() -> None:
    found = InnerAnswer(200, b'{\n "id": "x"\n}', "run_1", None, usage=Usage(5, 4, 3, 2))
    result = answered(BATCH, LINE, 'a"é\n', found)
    assert (result.number, result.failed, result.usage) == (7, False, Tokens(5, 4, 3, 2))
    assert result.data.count(b"\n") == 1
    assert json.loads(result.data) == {
        "id": "batch_req_012300007",
        "custom_id": 'a"é\n',
        "response": {"status_code": 200, "request_id": "run_1", "body": {"id": "x"}},
        "error": None,
    }
    assert answered(BATCH, LINE, "a", InnerAnswer(400, b"{}", "", None)).failed


def test_line_that_was_not_run_says_why() -> None:
    result = not_run(BATCH, LINE, "a", EXPIRED)
    document = json.loads(result.data)
    assert (document["response"], document["error"]["code"]) == (None, "batch_expired")
    assert result.failed


@given(st.permutations(list(range(1, 9))), st.integers(0, 8))
def test_frontier_resumed_after_any_results_begins_with_the_first_missing(
    order: list[int], stored: int
) -> None:
    """Lines 1 to 8, each of 10 bytes, but 3 is blank and is not begun."""
    lines = [Line(number, 10 * number - 10, 10 * number, b"") for number in range(1, 9)]
    lines = [line for line in lines if line.number != 3]
    frontier, has = Frontier(Progress()), {number for number in order[:stored] if number != 3}
    for line in lines:
        frontier.begin(line)
    for number in has:
        frontier.add([Result(number, b"", 200 if number % 2 else 400, Tokens(number, 0, 1, 0))])
    # As the next owner reads it: lines from `start` on, without those in `done`.
    progress = frontier.progress
    resumed = Frontier(progress)
    rest = [line for line in lines if line.start >= progress.start]
    missing = [line.number for line in rest if not resumed.has_result(line.number)]
    assert missing == [line.number for line in lines if line.number not in has]
    assert progress.completed + progress.failed == len(has)
    assert progress.usage == Tokens(sum(has), 0, len(has), 0)
    for line in rest:
        resumed.begin(line)
    resumed.add([Result(number, b"", 200) for number in missing])
    assert (resumed.progress.done, resumed.progress.start) == ((), 80)


def test_frontier_bounds_the_lines_behind_a_slow_one() -> None:
    frontier = Frontier(Progress())
    for number in range(1, WINDOW_LINES + 1):
        assert not frontier.is_full(number)
        frontier.begin(Line(number, number, number + 1, b""))
    assert frontier.is_full(WINDOW_LINES + 1)
    frontier.add([Result(number, b"", 200) for number in range(2, WINDOW_LINES)])
    assert frontier.is_full(WINDOW_LINES + 1)
    assert len(frontier.progress.done) == WINDOW_LINES - 2
    frontier.add([Result(1, b"", 200)])
    assert not frontier.is_full(WINDOW_LINES + 1)
    assert (frontier.progress.line, frontier.progress.done) == (WINDOW_LINES, ())


def test_expired_lines_count_neither_as_completed_nor_as_failed() -> None:
    frontier = Frontier(Progress(completed=2, failed=1))
    progress = frontier.add([not_run(BATCH, LINE, "a", EXPIRED)])
    assert (progress.completed, progress.failed) == (2, 1)
