"""Answers with drafts and without, of two real servers, are the same; drafts are counted."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import pytest

from tests.support.gateway.openai_client import (
    chat,
    complete,
    connect,
    joined,
    logprobs_of,
    respond,
    streamed,
    text,
    used,
)
from tests.support.server.late import Late
from tests.support.server.server import RunningServer, running_server

# What the model says after it recurs in the text; after the second it repeats itself at once.
EDITED = (
    "def area(width, height):\n    return width * height\n\n"
    "def volume(width, height, depth):\n    return area(width, height) * depth\n\n"
) * 3
REPEATING = "The king of"
# At this temperature hardly any three tokens come twice.
PLAIN: dict[str, Any] = {"temperature": 1.5, "seed": 11}
TOKENS = 96
_COUNTERS = re.compile(r"^symphony:draft_tokens(_accepted)?_total(?:\{[^}]*\})? (\S+)$", re.M)


@dataclass
class Side:
    """A server, with a client of it."""

    server: RunningServer
    client: openai.OpenAI

    def drafts(self) -> tuple[int, int]:
        """The tokens drafted so far, and those of them that were right."""
        page = httpx.get(
            f"{self.server.url}/metrics", headers={"Authorization": f"Bearer {self.server.key}"}
        ).text
        found = {bool(right): int(float(count)) for right, count in _COUNTERS.findall(page)}
        return found[False], found[True]


def _serve(folder: Any, late: Late, tokens: int) -> Iterator[Side]:
    options = ("--draft-tokens", str(tokens))
    with (
        running_server(folder, *options, executor="torch", environment=late.environment) as server,
        connect(server) as client,
    ):
        yield Side(server, client)


@pytest.fixture(scope="module")
def drafted(tmp_path_factory: pytest.TempPathFactory, late: Late) -> Iterator[Side]:
    yield from _serve(tmp_path_factory.mktemp("drafted"), late, 13)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, late: Late) -> Iterator[Side]:
    yield from _serve(tmp_path_factory.mktemp("plain"), late, 0)


def _answer(side: Side, prompt: Any, **fields: Any) -> dict[str, Any]:
    """An answer's choices and usage."""
    answer = complete(side.client, prompt, **{"max_tokens": TOKENS, **fields})
    return {
        "choices": [choice.model_dump() for choice in answer.choices],
        "completion": used(answer).completion_tokens,
        "prompt": used(answer).prompt_tokens,
    }


@pytest.mark.parametrize("prompt", [EDITED, REPEATING], ids=["edited", "repeating"])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 0.4, "seed": 5},
        {"temperature": 0.4, "seed": 6, "top_p": 0.9},
        {"logit_bias": {"50": 3}},
        {"extra_body": {"ignore_eos": True, "return_token_ids": True}},
        {"extra_body": {"min_tokens": 40}},
        {"max_tokens": 7},
    ],
    ids=lambda fields: "-".join(fields) or "greedy",
)
def test_answer_with_drafts_is_the_one_without(
    drafted: Side, plain: Side, prompt: str, fields: dict[str, Any]
) -> None:
    assert _answer(drafted, prompt, **fields) == _answer(plain, prompt, **fields)


@pytest.mark.parametrize("fields", [{}, {"temperature": 0.4, "seed": 6}], ids=["best", "drawn"])
def test_log_probabilities_with_drafts_are_those_without(
    drafted: Side, plain: Side, fields: dict[str, Any]
) -> None:
    before = drafted.drafts()[1]
    first, second = (
        complete(side.client, REPEATING, max_tokens=TOKENS, logprobs=3, **fields).choices[0]
        for side in (drafted, plain)
    )
    ours, theirs = logprobs_of(first), logprobs_of(second)
    assert (ours.tokens, ours.text_offset) == (theirs.tokens, theirs.text_offset)
    # The native kernels give the same bits; torch's sums depend on how many rows a pass has.
    assert ours.token_logprobs == pytest.approx(theirs.token_logprobs, abs=1e-3)
    for our, their in zip(ours.top_logprobs, theirs.top_logprobs, strict=True):
        assert our == pytest.approx(their, abs=1e-3)
    assert fields or drafted.drafts()[1] > before


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2, **PLAIN},
        {"presence_penalty": 1.0},
        {"extra_body": {"repetition_penalty": 1.3}},
        {"extra_body": {"guided_regex": "(ab ){20}"}},
        {"max_tokens": 1},
    ],
    ids=["n", "presence", "repetition", "constraint", "one"],
)
def test_answer_that_cannot_be_drafted_has_no_drafts(
    drafted: Side, plain: Side, fields: dict[str, Any]
) -> None:
    before = drafted.drafts()
    assert _answer(drafted, EDITED, **fields) == _answer(plain, EDITED, **fields)
    assert drafted.drafts() == before


def test_accepted_drafts_are_counted(drafted: Side, plain: Side) -> None:
    before = drafted.drafts()
    answer = _answer(drafted, REPEATING, extra_body={"ignore_eos": True})
    drafts, accepted = (now - old for now, old in zip(drafted.drafts(), before, strict=True))
    assert drafts >= accepted >= TOKENS // 3
    assert answer["completion"] == TOKENS  # drafts are in no client's usage
    _answer(plain, REPEATING)
    assert plain.drafts() == (0, 0)


def test_text_without_repetition_has_few_drafts(drafted: Side, plain: Side) -> None:
    before, prompt = drafted.drafts()[0], "Once upon a time"
    assert _answer(drafted, prompt, **PLAIN) == _answer(plain, prompt, **PLAIN)
    assert drafted.drafts()[0] - before <= TOKENS // 10


def test_streamed_answer_is_the_whole_one(drafted: Side, plain: Side) -> None:
    for prompt in (EDITED, REPEATING):
        before = drafted.drafts()[1]
        chunks = streamed(drafted.client, prompt, max_tokens=TOKENS)
        assert joined(chunks) == text(plain.client, prompt, max_tokens=TOKENS)
        assert drafted.drafts()[1] > before


def test_text_to_stop_at_is_found_within_a_draft(drafted: Side, plain: Side) -> None:
    whole = text(plain.client, REPEATING, max_tokens=TOKENS)
    # Deep in the repetition, where drafts are as long as they may be.
    stop = whole[-40:-30]
    fields = {"stop": [stop], "max_tokens": TOKENS, "extra_body": {"min_tokens": TOKENS // 2}}
    first = complete(plain.client, REPEATING, **fields).choices[0]
    assert first.finish_reason == "stop"
    before = drafted.drafts()[1]
    answer = complete(drafted.client, REPEATING, **fields).choices[0]
    assert (answer.text, answer.finish_reason) == (first.text, "stop")
    assert joined(streamed(drafted.client, REPEATING, **fields)) == first.text
    assert drafted.drafts()[1] > before


def test_chat_and_responses_are_drafted(drafted: Side, plain: Side) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    messages = [{"role": "user", "content": EDITED}]
    for tools in ([], [tool]):
        asked: dict[str, Any] = {"max_tokens": TOKENS, "tools": tools}
        sides = [chat(side.client, messages, **asked) for side in (drafted, plain)]
        assert len({side.choices[0].model_dump_json() for side in sides}) == 1
    said = [
        respond(side.client, REPEATING, max_output_tokens=TOKENS).output_text
        for side in (drafted, plain)
    ]
    assert said[0] == said[1]


def test_draft_tokens_out_of_bounds_are_refused(tmp_path: Any, late: Late) -> None:
    with pytest.raises(AssertionError, match="draft_tokens must be an integer from 0 to 64"):
        next(_serve(tmp_path, late, 65))
