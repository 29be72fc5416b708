"""Reading a streamed completion."""

import json

import pytest

from benchmarks.serving.sse import StreamError, events, read_completion


def event(**chunk: object) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def text(words: str, reason: str | None = None) -> bytes:
    return event(choices=[{"text": words, "finish_reason": reason}])


def test_sse_event_counts_when_its_last_byte_has_come() -> None:
    stream = b"data: a\n\ndata: b\ndata: c\r\n\r\n: a remark\n\nevent: x\ndata:d\n\n"
    whole = list(events([(1.0, stream)]))
    assert whole == [(1.0, "a"), (1.0, "b\nc"), (1.0, "d")]
    bytewise = list(events((float(i), stream[i : i + 1]) for i in range(len(stream))))
    assert [data for _, data in bytewise] == ["a", "b\nc", "d"]
    assert [time for time, _ in bytewise] == [8.0, 27.0, float(len(stream) - 1)]


def test_sse_piece_may_end_inside_a_character() -> None:
    stream = "data: ö\n\n".encode()
    assert list(events([(0.0, stream[:7]), (1.0, stream[7:])])) == [(1.0, "ö")]


def test_sse_completion_has_the_times_of_its_texts_and_its_usage() -> None:
    usage = {
        "prompt_tokens": 5,
        "completion_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 2},
    }
    got = read_completion(
        [
            (0.1, text("a")),
            (0.2, text("")),  # a part of a letter
            (0.3, text("b") + text("c", "length")),
            (0.4, event(choices=[], usage=usage) + b"data: [DONE]\n\n"),
        ]
    )
    assert got.texts == [0.1, 0.3, 0.3]
    assert (got.first, got.finished) == (0.1, 0.3)
    assert (got.prompt_tokens, got.completion_tokens, got.cached_tokens) == (5, 4, 2)


def test_sse_token_without_text_came_at_the_end() -> None:
    got = read_completion([(0.5, text("", "length"))])
    assert got.first == 0.5
    assert got.completion_tokens is None


def test_sse_empty_answer_has_no_times() -> None:
    assert read_completion([]).first is None


@pytest.mark.parametrize("broken", [b"data: {\n\n", event(error={"message": "no room"})])
def test_sse_error_in_a_stream_is_reported(broken: bytes) -> None:
    with pytest.raises(StreamError):
        read_completion([(0.0, text("a")), (0.1, broken)])
