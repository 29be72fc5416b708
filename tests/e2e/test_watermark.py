"""The watermark: both languages on the tiny model, and the detector on texts that nobody marked."""

import sysconfig
from pathlib import Path

import pytest

from benchmarks.watermark import LEVEL, Detector, tokenizer
from tests.support.server.examples import EXAMPLES, answers, as_told, play
from tests.support.server.server import RunningServer

WATERMARK = EXAMPLES / "watermark"
TOKENS = 200


@pytest.mark.parametrize("language", ["rust", "assemblyscript"])
def test_it_is_detected_in_200_tokens_and_only_where_it_is(
    server: RunningServer, language: str
) -> None:
    marked, plain = as_told(server, "watermark", WATERMARK / language)
    assert marked["p"] < LEVEL < plain["p"]
    bpe = tokenizer()
    for said in (marked, plain):
        tokens = bpe.encode(said["text"], add_special_tokens=False).ids
        assert len(tokens) <= TOKENS + 10  # the text is cut into tokens anew
        found = Detector("only we know this").look_at(tokens)
        assert (found.counted, found.green) == (said["counted"], said["green"])
        assert (found.z, found.p) == pytest.approx((said["z"], said["p"]), rel=1e-4)
    stranger = Detector("a guess").look_at(bpe.encode(marked["text"]).ids)
    assert stranger.p > LEVEL

    # Whoever has the text, and the secret, needs no model.
    given = {"secret": "only we know this", "text": marked["text"]}
    result, grown = play(server, WATERMARK / language, given)
    assert answers(result) == [{k: marked[k] for k in ("counted", "green", "z", "p")}]
    assert grown["tokens_computed"] == 0


def test_both_languages_write_the_same(server: RunningServer) -> None:
    given = {"prompt": "import os\n\n", "secret": "schlüssel", "max_tokens": 40, "seed": 5}
    ours, grown = play(server, WATERMARK / "assemblyscript", given)
    theirs, _ = play(server, WATERMARK / "rust", given)
    (one,), (other,) = answers(ours), answers(theirs)
    assert one.pop("text") == other.pop("text")
    assert one == pytest.approx(other, rel=1e-4)
    assert grown["decode_steps"] <= 40


def test_a_thousand_texts_without_the_mark_raise_few_alarms() -> None:
    bpe = tokenizer()
    texts: list[list[int]] = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        tokens = bpe.encode(path.read_text(errors="replace")[:40_000], add_special_tokens=False).ids
        texts += [tokens[i : i + TOKENS] for i in range(0, len(tokens) - TOKENS + 1, TOKENS)]
        if len(texts) >= 1000:
            break
    detector = Detector("only we know this")
    assert len(texts) >= 1000
    assert sum(detector.look_at(tokens).alarms for tokens in texts[:1000]) <= 5
