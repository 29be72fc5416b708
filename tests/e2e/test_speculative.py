"""Speculative decoding on the tiny model: other passes, the same tokens."""

import pytest

from tests.support.server.examples import EXAMPLES, answers, as_told, play
from tests.support.server.server import RunningServer

SPECULATIVE = EXAMPLES / "speculative"
REPETITIVE = "".join(f"    def get_{name}(self):\n        return self.{name}\n\n" for name in "xyz")


def test_its_scenario_takes_fewer_passes_than_tokens(server: RunningServer) -> None:
    (told,) = as_told(server, "speculative", SPECULATIVE)
    assert told["same"] is True
    assert told["tokens"] == 64
    assert told["tokens_per_pass"] == pytest.approx(64 / told["passes"], abs=1e-5)
    assert told["passes"] <= 48
    assert min(told["tokens_per_second"], told["plain_tokens_per_second"]) > 0


@pytest.mark.parametrize("prompt", [REPETITIVE, "import os\n\ndef read_lines(path):\n"])
@pytest.mark.parametrize("shape", [(1, 8), (8, 24)])
def test_its_tokens_are_those_of_greedy_decoding(
    server: RunningServer, prompt: str, shape: tuple[int, int]
) -> None:
    branches, depth = shape
    given = {"prompt": prompt, "max_tokens": 48, "branches": branches, "depth": depth}
    result, grown = play(server, SPECULATIVE, given)
    (told,) = answers(result)
    plain, _ = play(server, EXAMPLES / "completion", {"prompt": prompt, "max_tokens": 48})
    assert told["text"] == plain["output"]
    # What a pass computes beside the text's own tokens are guesses.
    assert told["passes"] <= told["tokens"] <= grown["tokens_computed"]
