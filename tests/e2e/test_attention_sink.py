"""Endless writing on the tiny model: bounded, past the context, and plain while nothing is gone."""

from tests.support.kernel.dense_attention import Dense
from tests.support.server.examples import (
    EXAMPLES,
    answers,
    as_told,
    assert_greedy,
    play,
    tiny_checkpoint,
    tokens_of,
)
from tests.support.server.server import RunningServer

SINK = EXAMPLES / "attention_sink"
PROMPT = "import os\n\n\ndef read_lines(path):\n"
PAGE = 16


def test_its_file_stays_as_small_as_it_says(server: RunningServer) -> None:
    said = as_told(server, "attention_sink", SINK)
    assert [each["tokens"] for each in said] == [128, 256, 384, 512]
    assert all(each["entries"] <= 4 + 60 + 32 for each in said)
    # A window that begins within a page touches one more.
    assert all(each["pages"] <= -(-(4 + 60 + 32) // PAGE) + 1 for each in said)
    assert said[-1]["position"] > 512


def test_it_writes_past_the_context(server: RunningServer) -> None:
    # A prompt that nearly fills it is read in blocks.
    given = {"prompt": PROMPT * 170, "window": 28, "block": 256, "max_tokens": 400, "report": 100,
             "temperature": 0.7, "seed": 1}  # fmt: skip
    result, grown = play(server, SINK, given)
    said = answers(result)
    assert (said[-1]["tokens"], said[-1]["rebuilt"]) == (400, 1)
    assert said[-1]["position"] < 2048 < grown["tokens_computed"]
    assert max(each["entries"] for each in said) <= 4 + 28 + 256


def test_with_room_for_all_it_is_plain_decoding(server: RunningServer) -> None:
    given = {"prompt": PROMPT, "max_tokens": 40}
    result, _ = play(server, SINK, given)
    plain, _ = play(server, EXAMPLES / "completion", given)
    (said,) = answers(result)
    # Plain decoding ends with the text, this goes on.
    assert said["text"].startswith(plain["output"])
    assert said["entries"] >= 40


def test_the_sinks_stand_before_the_window_and_the_rest_is_as_it_was(server: RunningServer) -> None:
    # The prompt's last block comes when the first window is left, and the answer behind it.
    sinks, window, block, more = 4, 16, 40, 10
    text = PROMPT * 7
    prompt = tokens_of(text)
    assert len(prompt) == 2 * block - 10
    given = {"prompt": text, "sinks": sinks, "window": window, "block": block, "max_tokens": more}
    result, _ = play(server, SINK, given)
    (said,) = answers(result)
    dense = Dense(tiny_checkpoint())
    first: list[int] = []
    for position, token in enumerate(prompt[:block]):
        first.append(dense.add(token, position, tuple(first)))
    seen: list[int] = []
    for i, token in enumerate(prompt[:sinks]):
        seen.append(dense.add(token, block - window - sinks + i, tuple(seen)))
    seen += first[-window:]
    for position, token in enumerate(prompt[block:], start=block):
        seen.append(dense.add(token, position, tuple(seen)))
    assert said["entries"] == sinks + window + 30 + more - 1
    assert_greedy(dense, seen, len(prompt), said["text"])
