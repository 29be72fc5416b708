"""The Rust examples on the simulated model, where every batch can be counted."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from symphony_runtime.cli.projects import build
from wasmtime import Engine, Module

from tests.support.executor.byte_model import byte_assets
from tests.support.worker.rig import Rig, RunResult

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SIZE_MAX = 140_000
FOLDERS = {
    "attention_sink": EXAMPLES / "attention_sink",
    "code_complete": EXAMPLES / "code_complete",
    "completion": EXAMPLES / "completion",
    "modular_prompt": EXAMPLES / "modular_prompt",
    "parallel_suffixes": EXAMPLES / "parallel_suffixes" / "rust",
    "beam_search": EXAMPLES / "beam_search",
    "chat": EXAMPLES / "chat",
    "rag": EXAMPLES / "rag" / "rust",
    "speculative": EXAMPLES / "speculative",
    "watermark": EXAMPLES / "watermark" / "rust",
    "swarm": EXAMPLES / "swarm",
    "graph_of_thoughts": EXAMPLES / "graph_of_thoughts",
    "tree_of_thoughts": EXAMPLES / "tree_of_thoughts",
    "skeleton": EXAMPLES / "skeleton",
}


class Programs(dict[str, bytes]):
    """Each example's Wasm, compiled when a test first wants it."""

    def __missing__(self, name: str) -> bytes:
        self[name] = build(FOLDERS[name]).read_bytes()
        return self[name]


@pytest.fixture(scope="module")
def programs() -> dict[str, bytes]:
    return Programs()


def scenario(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((EXAMPLES / name / "scenario.json").read_text())
    return loaded


def run(
    program: bytes, given: object, *messages: str, times: int = 1
) -> tuple[list[RunResult], dict[str, Any]]:
    """Run a program one time after the other; the results and the kernel's counters."""

    async def main() -> tuple[list[RunResult], dict[str, Any]]:
        results = []
        async with Rig(assets=byte_assets(ends=False)) as rig:
            for _ in range(times):
                data = given if isinstance(given, bytes) else json.dumps(given).encode()
                live = await rig.start(program, data)
                for message in messages:
                    live.deliver(message.encode())
                live.close_input()
                results.append(await asyncio.wait_for(live.ended, 30))
            return results, await rig.statistics()

    return asyncio.run(main())


@pytest.mark.parametrize("name", FOLDERS)
def test_examples_are_small_and_ask_for_nothing_else(name: str, programs: dict[str, bytes]) -> None:
    assert len(programs[name]) < SIZE_MAX
    assert {wanted.module for wanted in Module(Engine(), programs[name]).imports} == {"lip"}


@pytest.mark.parametrize("name", FOLDERS)
def test_each_scenario_comes_out_as_it_says(name: str, programs: dict[str, bytes]) -> None:
    told = scenario(name)
    (result,), counters = run(programs[name], told["input"], *told.get("messages", []))
    expected = told["expect"]
    assert (result.status, result.exit_code) == (expected["status"], expected["exit_code"]), (
        result.reason,
        result.logs,
    )
    assert len(result.messages) == expected.get("messages", len(result.messages)) > 0
    assert counters["names"] == 0


# --- completion ----------------------------------------------------------------------------------


def test_completion_streams_as_many_tokens_as_asked(programs: dict[str, bytes]) -> None:
    (result,), counters = run(programs["completion"], {"prompt": "abc", "max_tokens": 9})
    assert result.usage["completion_tokens"] == 9
    assert counters["tokens_computed"] == 3 + 8
    assert result.logs == [(1, b"9 tokens, ended by Length")]


def test_completion_repeats_with_a_seed_and_takes_plain_text(programs: dict[str, bytes]) -> None:
    given = {"prompt": "abc", "max_tokens": 20, "temperature": 2.0, "top_p": 0.95, "seed": 4}
    (first, second), _ = run(programs["completion"], given, times=2)
    (greedy,), _ = run(programs["completion"], given | {"temperature": 0})
    assert first.messages == second.messages != greedy.messages
    (plain,), _ = run(programs["completion"], b"abc")
    (asked,), _ = run(programs["completion"], {"prompt": "abc"})
    assert plain.messages == asked.messages


@pytest.mark.parametrize("name", ["completion", "parallel_suffixes", "beam_search"])
def test_an_input_without_text_is_told_so(name: str, programs: dict[str, bytes]) -> None:
    (result,), _ = run(programs[name], {})
    assert (result.status, result.exit_code) == ("exited", 1)
    assert b"the input needs a p" in result.logs[0][1]


# --- parallel_suffixes ---------------------------------------------------------------------------


def test_the_prefix_is_computed_once_and_the_suffixes_in_batches(
    programs: dict[str, bytes],
) -> None:
    given = scenario("parallel_suffixes")["input"]
    (result,), counters = run(programs["parallel_suffixes"], given)
    said = [json.loads(message) for message in result.messages]
    assert [answer["suffix"] for answer in said] == list(range(16))

    prefix = len(given["prefix"].encode())
    suffixes = sum(len(suffix.encode()) for suffix in given["suffixes"])
    decoded = 16 * (given["max_tokens"] - 1)  # the first token of each comes with its suffix
    assert counters["tokens_computed"] == prefix + suffixes + decoded
    assert result.usage["cached_tokens"] == 16 * prefix
    assert counters["decode_tokens"] == decoded
    assert counters["decode_rows"] / counters["decode_steps"] >= 12


def test_both_languages_say_the_same(programs: dict[str, bytes]) -> None:
    given = scenario("parallel_suffixes")["input"]
    (rust,), _ = run(programs["parallel_suffixes"], given)
    other = build(EXAMPLES / "parallel_suffixes" / "assemblyscript").read_bytes()
    (assemblyscript,), _ = run(other, given)
    assert [json.loads(m) for m in rust.messages] == [
        json.loads(m) for m in assemblyscript.messages
    ]


# --- beam_search ---------------------------------------------------------------------------------


def test_one_beam_is_greedy_and_more_beams_are_no_worse(programs: dict[str, bytes]) -> None:
    def search(beams: int) -> list[dict[str, Any]]:
        given = {"prompt": "def f", "beams": beams, "max_tokens": 6}
        (result,), counters = run(programs["beam_search"], given)
        assert counters["decode_steps"] == 6, "every step is one batch"
        assert counters["prefill_tokens"] == len("def ")
        found: list[dict[str, Any]] = json.loads(result.output)["beams"]
        return found

    (one,), many = search(1), search(6)
    (greedy,), _ = run(programs["completion"], {"prompt": "def f", "max_tokens": 6})
    assert one["text"].encode() == greedy.output
    assert len(many) == 6
    assert [beam["score"] for beam in many] == sorted((b["score"] for b in many), reverse=True)
    assert many[0]["logprob"] >= one["logprob"]
    assert len({tuple(beam["tokens"]) for beam in many}) == 6


# --- chat ----------------------------------------------------------------------------------------


def test_chat_keeps_its_kv_between_messages(programs: dict[str, bytes]) -> None:
    (result,), counters = run(programs["chat"], {"max_tokens": 7}, "hello", "and more")
    assert result.messages.count(b"") == 2
    assert result.messages[-1] == b""
    known = [int(line.split()[0]) for _, line in result.logs]
    sizes = [int(line.split()[2]) for _, line in result.logs]
    assert known[0] == 0
    assert known[1] >= sizes[0], "what the first answer was made from is not computed again"
    passes = sum(size - there for size, there in zip(sizes, known, strict=True)) + 2 * 6
    assert counters["tokens_computed"] == passes


def test_chat_waits_for_the_user(programs: dict[str, bytes]) -> None:
    async def main() -> None:
        async with Rig(assets=byte_assets(ends=False)) as rig:
            live = await rig.start(programs["chat"], b'{"max_tokens": 3}')
            for answers in range(1, 4):
                live.deliver(f"message {answers}".encode())
                while live.messages.count(b"") < answers:
                    await live.wait_messages(len(live.messages) + 1)
                assert not live.ended.done()
            live.close_input()
            result = await asyncio.wait_for(live.ended, 20)
            assert (result.status, result.exit_code) == ("exited", 0)

    asyncio.run(main())


# --- swarm ---------------------------------------------------------------------------------------

SWARM = {"prompt": "abc", "role": "<{agent}>", "heard": "[{text}]", "conclusion": "!", "agents": 3,
         "rounds": 2, "tokens": 5, "conclusion_tokens": 4}  # fmt: skip


def test_agents_compute_their_own_words_and_what_they_hear(programs: dict[str, bytes]) -> None:
    (result,), counters = run(programs["swarm"], SWARM)
    said = json.loads(result.output)
    own = len("<1>") + 1 + len("[]") + 5  # its role, its first text's last token, what it hears
    assert [agent["prefilled"] for agent in said["agents"]] == [own] * 3
    assert [agent["generated"] for agent in said["agents"]] == [2 * 5] * 3
    assert said["prefilled"] == len("abc") + 3 * own + 3 * (len("<1>") + 5) + len("!")
    assert said["generated"] == 3 * 2 * 5 + 4
    assert counters["prefill_tokens"] + counters["decode_tokens"] == counters["tokens_computed"]
    # A generation's last token is chosen and not computed.
    assert counters["tokens_computed"] == said["prefilled"] + said["generated"] - 3 * 2 - 1
    assert counters["files"] == counters["names"] == 0


def test_agents_write_apart_and_repeat_with_a_seed(programs: dict[str, bytes]) -> None:
    def tokens(**changes: object) -> list[list[int]]:
        (result,), _ = run(programs["swarm"], SWARM | changes)
        return [agent["tokens"] for agent in json.loads(result.output)["agents"]]

    alone = tokens(rounds=1)
    assert len({tuple(each) for each in alone}) == 3, "each has a role of its own"
    assert tokens() != alone, "what is heard counts"
    drawn = {"temperature": 1.0, "seed": 3}
    assert tokens(**drawn) == tokens(**drawn) != tokens(**drawn | {"seed": 4})


def test_an_agent_that_fails_ends_the_swarm(programs: dict[str, bytes]) -> None:
    (result,), counters = run(programs["swarm"], SWARM | {"rounds": 65})
    assert (result.status, result.exit_code) == ("exited", 1)
    assert "agent 0 failed" in result.logs[-1][1].decode()
    assert counters["files"] == 0


# --- graph_of_thoughts ---------------------------------------------------------------------------

GRAPH = {"prompt": "abc", "thought": "<{number}>", "judge": "?", "good": "y", "bad": "n",
         "conclusion": "!", "branches": 8, "keep": 3, "levels": 2, "tokens": 6}  # fmt: skip


def test_a_graph_merges_the_thoughts_that_the_model_likes_best(programs: dict[str, bytes]) -> None:
    (result,), counters = run(programs["graph_of_thoughts"], GRAPH | {"conclusion_tokens": 4})
    said = json.loads(result.output)
    for level in range(2):
        thoughts = [thought for thought in said["thoughts"] if thought["level"] == level]
        scores = [thought["score"] for thought in thoughts]
        assert scores == sorted(scores, reverse=True)
        assert [thought["kept"] for thought in thoughts] == [True] * 3 + [False] * 5
        assert sorted(thought["number"] for thought in thoughts) == list(range(8))
    assert said["generated"] == 2 * 8 * 6 + 4
    judged = 8 * (1 + len("?yn"))
    first, second = 8 * (1 + len("<1>")) + judged, 8 * len("<1>") + judged
    assert said["prefilled"] == 2 + first + 3 + second + 3 + len("!")
    assert counters["decode_rows"] / counters["decode_steps"] > 4
    assert counters["files"] == 0


def test_thoughts_repeat_with_a_seed(programs: dict[str, bytes]) -> None:
    given = GRAPH | {"temperature": 1.0, "seed": 2}
    (first, second), _ = run(programs["graph_of_thoughts"], given, times=2)
    (other,), _ = run(programs["graph_of_thoughts"], given | {"seed": 3})
    assert first.messages == second.messages != other.messages


# --- tree_of_thoughts and skeleton ---------------------------------------------------------------


def test_a_tree_is_as_wide_as_asked_and_computed_level_by_level(programs: dict[str, bytes]) -> None:
    given = {"prompt": "abc", "step": "<", "judge": "?", "good": "y", "bad": "n", "tokens": 5,
             "conclusion": ">", "conclusion_tokens": 3, "temperature": 1.0, "seed": 1,
             "levels": 3, "branches": 4, "breadth": 2}  # fmt: skip
    (result,), counters = run(programs["tree_of_thoughts"], given)
    said = json.loads(result.output)
    scores = [[way["score"] for way in level] for level in said["levels"]]
    assert [len(level) for level in scores] == [4, 8, 8]
    assert said["score"] == max(scores[-1]) == scores[-1][0]
    assert said["generated"] == (4 + 8 + 8) * 5 + 3
    assert len(said["steps"]) == 3
    assert counters["decode_rows"] / counters["decode_steps"] > 4
    assert counters["files"] == 0


def test_the_bodies_of_a_skeleton_share_its_outline(programs: dict[str, bytes]) -> None:
    given = {"prompt": "abc", "point": "{number}", "body": "<{number}", "points": 8,
             "point_tokens": 3, "tokens": 6, "ignore_eos": True}  # fmt: skip
    (result,), counters = run(programs["skeleton"], given)
    said = json.loads(result.output)
    assert said["text"] == "".join(
        f"<{number + 1}{point['text']}" for number, point in enumerate(said["points"])
    )
    # A point: its number, the last token of its line (chosen, not computed), and a line's end.
    outline = 3 + 8 * (1 + 1 + 1) - 1
    assert said["prefilled"] == outline + 8 * (1 + len("<1"))
    assert said["generated"] == 8 * 3 + 8 * 6
    assert result.usage["cached_tokens"] >= 8 * outline // 16 * 16 - 8 * 16
    assert counters["decode_rows"] / counters["decode_steps"] > 2
