"""Attributes of what a request asks."""

from typing import Any

import pytest
from symphony_runtime.gateway.otlp.answers import asked


@pytest.mark.parametrize(
    ("body", "attributes"),
    [
        ({}, {}),
        ({"max_completion_tokens": 3}, {"gen_ai.request.max_tokens": 3}),
        (
            {"temperature": 0.5, "top_p": 1, "top_k": 4, "seed": 5, "n": 2, "stream": True},
            {"gen_ai.request.temperature": 0.5, "gen_ai.request.top_p": 1,
             "gen_ai.request.top_k": 4, "gen_ai.request.seed": 5, "gen_ai.request.choice.count": 2,
             "gen_ai.request.stream": True},
        ),
        # What a program as model takes is not checked here.
        ({"seed": 1 << 70, "n": True, "max_tokens": "7", "temperature": None, "stream": 1}, {}),
        ({"messages": [{"role": "user", "content": "hush"}], "stop": ["hush"]}, {}),
    ],
)  # fmt: skip
def test_numbers_of_a_body_are_told_and_no_texts(
    body: dict[str, Any], attributes: dict[str, Any]
) -> None:
    assert asked(body) == attributes
