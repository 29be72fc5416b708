"""The AssemblyScript examples on the simulated model, where every batch can be counted."""

import asyncio
import json
from typing import Any

import pytest

from tests.support.assemblyscript import ROOT, built
from tests.support.executor.byte_model import byte_assets
from tests.support.worker.rig import Rig, RunResult

PARALLEL = ROOT / "examples" / "parallel_suffixes"
BEST = ROOT / "examples" / "best_of_n"


def scenario(folder: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((ROOT / "examples" / folder / "scenario.json").read_text())
    return loaded


def run(program: bytes, given: object, times: int = 1) -> tuple[list[RunResult], dict[str, Any]]:
    """Run a program one time after the other; the results and the kernel's counters."""

    async def main() -> tuple[list[RunResult], dict[str, Any]]:
        async with Rig(assets=byte_assets(ends=False)) as rig:
            data = json.dumps(given).encode()
            results = [await rig.run(program, data) for _ in range(times)]
            return results, await rig.statistics()

    return asyncio.run(main())


@pytest.fixture(scope="module")
def parallel_suffixes() -> bytes:
    return built(PARALLEL / "assemblyscript").read_bytes()


@pytest.fixture(scope="module")
def best_of_n() -> bytes:
    return built(BEST).read_bytes()


def test_the_prefix_is_computed_once_and_the_suffixes_in_batches(parallel_suffixes: bytes) -> None:
    given = scenario("parallel_suffixes")["input"]
    (result,), counters = run(parallel_suffixes, given)
    assert (result.status, result.exit_code, result.reason) == ("exited", 0, "")
    said = [json.loads(message) for message in result.messages]
    assert [answer["suffix"] for answer in said] == list(range(16))

    prefix = len(given["prefix"].encode())
    suffixes = sum(len(suffix.encode()) for suffix in given["suffixes"])
    decoded = 16 * (given["max_tokens"] - 1)  # the first token of each comes with its suffix
    assert counters["tokens_computed"] == prefix + suffixes + decoded
    assert result.usage["cached_tokens"] == 16 * prefix
    assert counters["decode_tokens"] == decoded
    assert counters["decode_rows"] / counters["decode_steps"] >= 12
    assert counters["names"] == 0


def test_a_branch_says_what_it_says_alone(parallel_suffixes: bytes) -> None:
    given = scenario("parallel_suffixes")["input"]
    (together,), _ = run(parallel_suffixes, given)
    (alone,), _ = run(parallel_suffixes, given | {"suffixes": given["suffixes"][5:6]})
    assert json.loads(alone.messages[0])["text"] == json.loads(together.messages[5])["text"]


def test_no_suffixes_are_no_messages(parallel_suffixes: bytes) -> None:
    (result,), counters = run(parallel_suffixes, {"prefix": "a", "suffixes": []})
    assert (result.status, result.exit_code, result.messages) == ("exited", 0, [])
    assert counters["names"] == 0


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"suffixes": []}, 'there is no "prefix"'),
        ({"prefix": "a", "suffixes": "b"}, "expected an array, found a string"),
        ({"prefix": "", "suffixes": []}, "the prefix: EINVAL"),
        ("plain", "expected a"),
    ],
)
def test_a_wrong_input_is_said_in_words(
    parallel_suffixes: bytes, given: object, words: str
) -> None:
    (result,), _ = run(parallel_suffixes, given)
    assert result.status == "trapped"
    assert words in result.reason


def test_the_best_of_n_is_sent_with_all_scores(best_of_n: bytes) -> None:
    given = scenario("best_of_n")["input"]
    (first, second), counters = run(best_of_n, given, times=2)
    answer = json.loads(first.messages[0])
    assert len(answer["scores"]) == given["n"]
    assert len(set(answer["scores"])) > 1, "each seed must give a continuation of its own"
    assert answer["scores"][answer["best"]] == max(answer["scores"])
    assert max(answer["scores"]) < 0
    assert second.messages == first.messages, "the same seeds give the same continuations"

    prompt = len(given["prompt"].encode())
    assert counters["tokens_computed"] == 2 * (prompt - 1 + given["n"] * given["max_tokens"])
    assert counters["decode_rows"] / counters["decode_steps"] >= given["n"] * 0.75


def test_best_of_n_wants_a_prompt(best_of_n: bytes) -> None:
    (result,), _ = run(best_of_n, {"prompt": ""})
    assert (result.status, result.exit_code) == ("exited", 2)
    assert result.logs == [(3, b"the prompt must not be empty, and n at least 1")]
