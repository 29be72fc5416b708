"""The stream of a kept response continues behind any of its events."""

import json

import pytest
from symphony_runtime.gateway.openai.program_messages import (
    CallArguments,
    CallBegin,
    Part,
    Piece,
    Reasoning,
    Usage,
)
from symphony_runtime.gateway.openai.responses import ResponseShape
from symphony_runtime.gateway.openai.stored.handlers import Resumed

PARTS: list[Part] = [Reasoning(0, "hm"), CallBegin(0, 0, "f"), CallArguments(0, 0, "{}")]


def streamed(answer: Resumed | ResponseShape) -> list[bytes]:
    told = [answer.begin(None), answer.part(PARTS[0]), answer.chunk(Piece(0, "a\n\nb", None))]
    told += [answer.part(part) for part in PARTS[1:]]
    told += [answer.chunk(Piece(0, "", "tool_calls")), answer.end(Usage(1, 0, 1))]
    return b"".join(told).split(b"\n\n")[:-1]


def shape() -> ResponseShape:
    return ResponseShape(f"run_{'0' * 24}", "m", 1, {})


@pytest.mark.parametrize("after", [-1, 0, 1, 2, 5, 9, 100])
def test_stream_behind_an_event_has_the_rest_of_them(after: int) -> None:
    every = streamed(shape())
    numbers = [json.loads(event.split(b"data: ")[1])["sequence_number"] for event in every]
    assert numbers == list(range(len(every)))
    assert streamed(Resumed(shape(), after)) == every[after + 1 :]
