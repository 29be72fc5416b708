"""Whole answers: the bytes that are kept until they are complete are counted and bounded."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from symphony_runtime.gateway.errors import Problem
from symphony_runtime.gateway.openai.completions import CompletionShape
from symphony_runtime.gateway.openai.program_messages import Piece, Record, TokenLogprob, Usage
from symphony_runtime.gateway.openai.serving import answer_whole


async def pieces(count: int, text: str) -> AsyncIterator[list[Record]]:
    for number in range(count):
        told = [TokenLogprob(b"x", -1.0, [(b"y", -2.0)])]
        yield [Piece(0, text, "stop" if number == count - 1 else None, told)]
    yield [Usage()]


def test_whole_answer_joins_its_pieces_and_counts_their_bytes() -> None:
    held: list[int] = []
    shape = CompletionShape("run_1", "m", 1, include_usage=False)
    body, _ = asyncio.run(answer_whole(pieces(3, "ab\U0001f600"), shape, 1, held.append))
    (choice,) = json.loads(body)["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("ab\U0001f600" * 3, "stop")
    assert choice["logprobs"]["token_logprobs"] == [-1.0] * 3
    assert len(held) == 3
    assert min(held) > 3 * 4 + 2 * 100  # wide characters, a token and its alternative


def test_whole_answer_that_grows_too_large_is_refused() -> None:
    room = 10_000

    def hold(size: int) -> None:
        nonlocal room
        room -= size
        if room < 0:
            raise Problem(429, "too-many-bytes", "too much")

    shape = CompletionShape("run_1", "m", 1, include_usage=False)
    with pytest.raises(Problem, match="too much"):
        asyncio.run(answer_whole(pieces(1_000, "x" * 1_000), shape, 1, hold))
    assert room > -2_000
