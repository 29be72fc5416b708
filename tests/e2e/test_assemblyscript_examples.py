"""The AssemblyScript examples over HTTP, in the real processes."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from symphony_runtime.cli.projects import build, new

from tests.support.assemblyscript import ROOT, built
from tests.support.server.server import RunningServer

EXAMPLES = ROOT / "examples"
PARALLEL = EXAMPLES / "parallel_suffixes"
COUNTERS = ("tokens_computed", "decode_tokens", "decode_rows", "decode_steps")


def scenario(folder: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((EXAMPLES / folder / "scenario.json").read_text())
    return loaded


def play(server: RunningServer, wasm: Path, given: object) -> tuple[dict[str, Any], dict[str, int]]:
    """Upload a program and run it over HTTP; its result, and by how much the counters grew."""

    module = wasm.read_bytes()

    async def main() -> tuple[dict[str, Any], dict[str, int]]:
        before = await server.wait_until_idle()
        async with server.client() as client:
            uploaded = await client.upload(module, name=wasm.stem)
            result = await client.run(uploaded["id"], input=given)
        after = await server.wait_until_idle()
        assert after["pages_free"] == before["pages_free"]
        grown = {name: after[name] - before[name] for name in COUNTERS}
        return result, grown

    return asyncio.run(main())


def expected(result: dict[str, Any], told: dict[str, Any]) -> list[Any]:
    """The messages of a result that is as the scenario expects it."""
    wanted = told["expect"]
    assert (result["status"], result["exit_code"]) == (wanted["status"], wanted["exit_code"]), (
        result
    )
    assert len(result["messages"]) == wanted["messages"]
    return [json.loads(message) for message in result["messages"]]


def test_parallel_suffixes_are_one_prefix_and_full_batches(server: RunningServer) -> None:
    told = scenario("parallel_suffixes")
    result, grown = play(server, built(PARALLEL / "assemblyscript"), told["input"])
    said = expected(result, told)
    assert [answer["suffix"] for answer in said] == list(range(16))
    assert any(answer["text"].strip() for answer in said)

    # What was computed is the prefix and the suffixes once, and a token for each step of a branch.
    usage = result["usage"]
    assert grown["tokens_computed"] == usage["prompt_tokens"] + grown["decode_tokens"]
    prefix = usage["cached_tokens"] // 16
    assert usage["cached_tokens"] == 16 * prefix
    assert prefix < usage["prompt_tokens"] < 2 * prefix + sum(map(len, told["input"]["suffixes"]))
    # Sixteen where nothing else wants the processors: branches that answer late have other steps.
    assert grown["decode_rows"] / grown["decode_steps"] > 4


def test_both_languages_say_the_same(server: RunningServer) -> None:
    told = scenario("parallel_suffixes")
    ours, _ = play(server, built(PARALLEL / "assemblyscript"), told["input"])
    theirs, _ = play(server, built(PARALLEL / "rust"), told["input"])
    assert expected(ours, told) == expected(theirs, told)


def test_best_of_n_sends_the_likeliest(server: RunningServer) -> None:
    told = scenario("best_of_n")
    result, _ = play(server, built(EXAMPLES / "best_of_n"), told["input"])
    (answer,) = expected(result, told)
    assert len(answer["scores"]) == told["input"]["n"]
    assert answer["scores"][answer["best"]] == max(s for s in answer["scores"] if s is not None)
    again, _ = play(server, built(EXAMPLES / "best_of_n"), told["input"])
    assert again["messages"] == result["messages"]


@pytest.mark.parametrize(
    ("given", "said"), [("def main(", None), ("", "Give me a text to continue.")]
)
def test_a_new_project_runs(
    server: RunningServer, tmp_path: Path, given: str, said: str | None
) -> None:
    result, _ = play(server, build(new("hello", "assemblyscript", tmp_path)), given)
    assert (result["status"], result["exit_code"]) == ("exited", 0)
    assert result["output"] == said if said else len(result["messages"]) > 1
