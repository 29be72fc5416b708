"""Documents as KV files, in both languages, on the simulated model: what is computed and stays."""

import asyncio
import json
from typing import Any

import pytest

from tests.support.executor.byte_model import byte_assets
from tests.support.server.examples import EXAMPLES, built, scenario
from tests.support.worker.rig import Rig, RunResult

LANGUAGES = ("rust", "assemblyscript")


def run(language: str, given: object, messages: list[str]) -> tuple[RunResult, dict[str, Any]]:
    """Run the program; its result, and the kernel's counters."""

    async def main() -> tuple[RunResult, dict[str, Any]]:
        async with Rig(assets=byte_assets(ends=False)) as rig:
            program = built(EXAMPLES / "rag" / language).read_bytes()
            live = await rig.start(program, json.dumps(given).encode())
            for message in messages:
                live.deliver(message.encode())
            live.close_input()
            return await asyncio.wait_for(live.ended, 30), await rig.statistics()

    return asyncio.run(main())


def ask(language: str, policy: str, keep_tokens: int, *wanted: list[int], parallel: int = 1) -> Any:
    """Ask about some of three documents of 32 tokens, one question after the other."""
    texts = [f"document {n} says this and that." for n in range(3)]
    given = {"documents": texts, "keep_tokens": keep_tokens, "max_tokens": 4,
             "parallel": parallel, "policy": policy}  # fmt: skip
    messages = [
        json.dumps({"id": n, "documents": each, "question": "why"}) for n, each in enumerate(wanted)
    ]
    result, counters = run(language, given, messages)
    assert (result.status, result.exit_code) == ("exited", 0), (result.reason, result.logs)
    assert counters["names"] == counters["files"] == 0
    return result, counters


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_is_asked_for_often_stays(language: str) -> None:
    wanted = [[0], [0], [1], [0], [2], [0]]
    result, counters = ask(language, "own", 32, *wanted)
    assert counters["prefill_tokens"] == 3 * 32 + 6 * len("why")
    assert [line for _, line in result.logs] == [b"3 documents computed, 3 found"]
    answers = [json.loads(message)["text"] for message in result.messages]
    assert len({answers[n] for n in (0, 1, 3, 5)}) == 1, "from a file or computed: the same"


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_servers_cache_gives_the_same(language: str) -> None:
    wanted = [[0], [1], [0], [2], [1]]
    own, _ = ask(language, "own", 96, *wanted)
    automatic, counters = ask(language, "automatic", 0, *wanted)
    assert automatic.messages == own.messages
    assert counters["prefill_tokens"] == 3 * 32 + 5 * len("why")


@pytest.mark.parametrize("language", LANGUAGES)
def test_documents_are_composed_in_any_order(language: str) -> None:
    wanted = [[0, 1, 2], [2, 0, 1], [1, 2]]
    _, own = ask(language, "own", 96, *wanted)
    assert own["prefill_tokens"] == 3 * 32 + 3 * len("why")
    _, automatic = ask(language, "automatic", 0, *wanted)
    assert automatic["prefill_tokens"] == 8 * 32 + 3 * len("why")


def test_both_languages_say_the_same_side_by_side() -> None:
    wanted = [[n % 3, (n * 2 + 1) % 3] for n in range(12)]

    def told(language: str) -> tuple[dict[int, str], Any]:
        result, counters = ask(language, "own", 64, *wanted, parallel=4)
        said = [json.loads(message) for message in result.messages]
        return {each["id"]: each["text"] for each in said}, counters["prefill_tokens"]

    (rust, _), (other, _) = told("rust"), told("assemblyscript")
    assert sorted(rust) == list(range(12))
    assert other == rust


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_document_that_is_not_there_is_told_so(language: str) -> None:
    message = json.dumps({"id": 0, "documents": [1], "question": "why"})
    result, _ = run(language, {"documents": ["a"]}, [message])
    told = result.reason + " ".join(line.decode() for _, line in result.logs)
    assert (result.status, result.exit_code) != ("exited", 0)
    assert "a document that is not there" in told


def test_its_scenario_comes_out_as_it_says() -> None:
    told = scenario("rag")
    for language in LANGUAGES:
        result, _ = run(language, told["input"], told["messages"])
        assert (result.status, result.exit_code) == ("exited", 0)
        assert len(result.messages) == told["expect"]["messages"]
