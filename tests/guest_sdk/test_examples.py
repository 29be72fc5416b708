"""The examples on the simulated model, where every token and batch can be counted."""

import asyncio
import json
from typing import Any

import pytest
from wasmtime import Engine, Module

from tests.support.examples import EXAMPLES, LANGUAGES, PROGRAMS, built, scenario
from tests.support.executor.byte_model import byte_assets
from tests.support.worker.rig import RunResult, WorkerRig

SIZE_MAX = {"Cargo.toml": 150_000, "asconfig.json": 60_000}
# A program that serves as a model reads the requests of all routes and drives several branches: of
# Rust's 193 KB reading takes 17, its own two tasks 33, and numbers with a fraction as text 20.
MODEL_SIZE_MAX = {"Cargo.toml": 200_000, "asconfig.json": 80_000}
IMPORTED = {"Cargo.toml": {"lip"}, "asconfig.json": {"lip", "env"}}


def wasm_of(program: str) -> bytes:
    return built(EXAMPLES / program).read_bytes()


def run(
    program: str, given: object, *messages: str, times: int = 1
) -> tuple[list[RunResult], dict[str, Any]]:
    """Run a program one time after the other; the results and the kernel's counters."""

    async def main() -> tuple[list[RunResult], dict[str, Any]]:
        results = []
        async with WorkerRig(assets=byte_assets(ends=False)) as rig:
            for _ in range(times):
                data = given if isinstance(given, bytes) else json.dumps(given).encode()
                said = map(str.encode, messages)
                results.append(await rig.run(wasm_of(program), data, messages=said, seconds=30))
            counters = await rig.statistics()
        assert counters["names"] == counters["files"] == 0
        return results, counters

    return asyncio.run(main())


@pytest.mark.parametrize("program", PROGRAMS)
def test_example_module_is_small_and_imports_only_the_abi(program: str) -> None:
    kind = next(kind for kind in SIZE_MAX if (EXAMPLES / program / kind).exists())
    most = MODEL_SIZE_MAX if program.startswith("thinking_model/") else SIZE_MAX
    assert len(wasm_of(program)) < most[kind]
    imported = {wanted.module for wanted in Module(Engine(), wasm_of(program)).imports}
    assert imported <= IMPORTED[kind]


# --- completion ----------------------------------------------------------------------------------


def test_completion_with_max_tokens_sends_as_many() -> None:
    (result,), counters = run("completion", {"prompt": "abc", "max_tokens": 9})
    assert result.usage["completion_tokens"] == 9
    assert counters["tokens_computed"] == 3 + 8
    assert result.logs == [(1, b"9 tokens, ended by Length")]


def test_completion_with_a_seed_repeats_and_accepts_plain_text() -> None:
    given = {"prompt": "abc", "max_tokens": 20, "temperature": 2.0, "top_p": 0.95, "seed": 4}
    (first, second), _ = run("completion", given, times=2)
    (greedy,), _ = run("completion", given | {"temperature": 0})
    assert first.messages == second.messages != greedy.messages
    (plain,), _ = run("completion", b"abc")
    (asked,), _ = run("completion", {"prompt": "abc"})
    assert plain.messages == asked.messages


@pytest.mark.parametrize("name", ["completion", "parallel_suffixes/rust", "beam_search"])
def test_example_without_text_says_what_it_needs(name: str) -> None:
    (result,), _ = run(name, {})
    assert (result.status, result.exit_code) == ("exited", 1)
    assert b"the input needs a p" in result.logs[0][1]


# --- parallel_suffixes ---------------------------------------------------------------------------


@pytest.mark.parametrize("language", LANGUAGES)
def test_parallel_suffixes_compute_the_prefix_once_and_decode_in_batches(language: str) -> None:
    given = scenario("parallel_suffixes")["input"]
    (result,), counters = run(f"parallel_suffixes/{language}", given)
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


def test_parallel_suffixes_alone_gives_the_same_text() -> None:
    given = scenario("parallel_suffixes")["input"]
    (together,), _ = run("parallel_suffixes/assemblyscript", given)
    alone = given | {"suffixes": given["suffixes"][5:6]}
    (result,), _ = run("parallel_suffixes/assemblyscript", alone)
    assert json.loads(result.messages[0])["text"] == json.loads(together.messages[5])["text"]


def test_parallel_suffixes_without_suffixes_sends_nothing() -> None:
    (result,), _ = run("parallel_suffixes/assemblyscript", {"prefix": "a", "suffixes": []})
    assert (result.status, result.exit_code, result.messages) == ("exited", 0, [])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"suffixes": []}, 'there is no "prefix"'),
        ({"prefix": "a", "suffixes": "b"}, "expected an array, found a string"),
        ({"prefix": "", "suffixes": []}, "EINVAL, no tokens: give at least one"),
        ("plain", "expected a"),
    ],
)
def test_parallel_suffixes_with_a_wrong_input_traps_with_the_reason(
    given: object, words: str
) -> None:
    (result,), _ = run("parallel_suffixes/assemblyscript", given)
    assert result.status == "trapped"
    assert words in result.reason


# --- best_of_n -----------------------------------------------------------------------------------


def test_best_of_n_sends_the_best_with_all_scores() -> None:
    given = scenario("best_of_n")["input"]
    (first, second), counters = run("best_of_n", given, times=2)
    answer = json.loads(first.messages[0])
    assert len(answer["scores"]) == given["n"]
    assert len(set(answer["scores"])) > 1, "each seed must give a continuation of its own"
    assert answer["scores"][answer["best"]] == max(answer["scores"])
    assert max(answer["scores"]) < 0
    assert second.messages == first.messages, "the same seeds give the same continuations"

    prompt = len(given["prompt"].encode())
    assert counters["tokens_computed"] == 2 * (prompt - 1 + given["n"] * given["max_tokens"])
    assert counters["decode_rows"] / counters["decode_steps"] >= given["n"] * 0.75


def test_best_of_n_without_a_prompt_fails() -> None:
    (result,), _ = run("best_of_n", {"prompt": ""})
    assert (result.status, result.exit_code) == ("exited", 2)
    assert result.logs == [(3, b"the prompt must not be empty, and n at least 1")]


# --- beam_search ---------------------------------------------------------------------------------


def test_beam_search_one_beam_is_greedy_and_more_are_no_worse() -> None:
    def search(beams: int) -> list[dict[str, Any]]:
        given = {"prompt": "def f", "beams": beams, "max_tokens": 6}
        (result,), counters = run("beam_search", given)
        assert counters["decode_steps"] == 6, "every step is one batch"
        assert counters["prefill_tokens"] == len("def ")
        found: list[dict[str, Any]] = json.loads(result.output)["beams"]
        return found

    (one,), many = search(1), search(6)
    (greedy,), _ = run("completion", {"prompt": "def f", "max_tokens": 6})
    assert one["text"].encode() == greedy.output
    assert len(many) == 6
    assert [beam["score"] for beam in many] == sorted((b["score"] for b in many), reverse=True)
    assert many[0]["logprob"] >= one["logprob"]
    assert len({tuple(beam["tokens"]) for beam in many}) == 6


# --- chat ----------------------------------------------------------------------------------------


def test_chat_second_message_computes_only_new_tokens() -> None:
    (result,), counters = run("chat", {"max_tokens": 7}, "hello", "and more")
    assert result.messages.count(b"") == 2
    assert result.messages[-1] == b""
    known = [int(line.split()[0]) for _, line in result.logs]
    sizes = [int(line.split()[2]) for _, line in result.logs]
    assert known[0] == 0
    assert known[1] >= sizes[0], "what the first answer was made from is not computed again"
    passes = sum(size - there for size, there in zip(sizes, known, strict=True)) + 2 * 6
    assert counters["tokens_computed"] == passes


async def test_chat_after_an_answer_waits_for_the_user() -> None:
    async with WorkerRig(assets=byte_assets(ends=False)) as rig:
        live = await rig.start(wasm_of("chat"), b'{"max_tokens": 3}')
        for answers in range(1, 4):
            live.deliver(f"message {answers}".encode())
            while live.messages.count(b"") < answers:
                await live.wait_messages(len(live.messages) + 1)
            assert not live.ended.done()
        live.close_input()
        result = await asyncio.wait_for(live.ended, 20)
        assert (result.status, result.exit_code) == ("exited", 0)


# --- swarm ---------------------------------------------------------------------------------------

SWARM = {"prompt": "abc", "role": "<{agent}>", "heard": "[{text}]", "conclusion": "!", "agents": 3,
         "rounds": 2, "tokens": 5, "conclusion_tokens": 4}  # fmt: skip


def test_swarm_agents_compute_only_their_own_and_received_tokens() -> None:
    (result,), counters = run("swarm", SWARM)
    said = json.loads(result.output)
    own = len("<1>") + 1 + len("[]") + 5  # its role, its first text's last token, what it receives
    assert [agent["prefilled"] for agent in said["agents"]] == [own] * 3
    assert [agent["generated"] for agent in said["agents"]] == [2 * 5] * 3
    assert said["prefilled"] == len("abc") + 3 * own + 3 * (len("<1>") + 5) + len("!")
    assert said["generated"] == 3 * 2 * 5 + 4
    assert counters["prefill_tokens"] + counters["decode_tokens"] == counters["tokens_computed"]
    # A generation's last token is chosen and not computed.
    assert counters["tokens_computed"] == said["prefilled"] + said["generated"] - 3 * 2 - 1


def test_swarm_agents_differ_and_repeat_with_a_seed() -> None:
    def tokens(**changes: object) -> list[list[int]]:
        (result,), _ = run("swarm", SWARM | changes)
        return [agent["tokens"] for agent in json.loads(result.output)["agents"]]

    alone = tokens(rounds=1)
    assert len({tuple(each) for each in alone}) == 3, "each has a role of its own"
    assert tokens() != alone, "what is heard counts"
    drawn = {"temperature": 1.0, "seed": 3}
    assert tokens(**drawn) == tokens(**drawn) != tokens(**drawn | {"seed": 4})


def test_swarm_with_a_failing_agent_fails() -> None:
    (result,), _ = run("swarm", SWARM | {"rounds": 65})
    assert (result.status, result.exit_code) == ("exited", 1)
    assert "agent 0 failed" in result.logs[-1][1].decode()


# --- graph_of_thoughts ---------------------------------------------------------------------------

GRAPH = {"prompt": "abc", "thought": "<{number}>", "judge": "?", "good": "y", "bad": "n",
         "conclusion": "!", "branches": 8, "keep": 3, "levels": 2, "tokens": 6}  # fmt: skip


def test_graph_of_thoughts_merges_the_thoughts_with_the_best_scores() -> None:
    (result,), counters = run("graph_of_thoughts", GRAPH | {"conclusion_tokens": 4})
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


def test_graph_of_thoughts_with_a_seed_repeats() -> None:
    given = GRAPH | {"temperature": 1.0, "seed": 2}
    (first, second), _ = run("graph_of_thoughts", given, times=2)
    (other,), _ = run("graph_of_thoughts", given | {"seed": 3})
    assert first.messages == second.messages != other.messages


# --- tree_of_thoughts and skeleton ---------------------------------------------------------------


def test_tree_of_thoughts_has_the_width_asked_for_at_each_level() -> None:
    given = {"prompt": "abc", "step": "<", "judge": "?", "good": "y", "bad": "n", "tokens": 5,
             "conclusion": ">", "conclusion_tokens": 3, "temperature": 1.0, "seed": 1,
             "levels": 3, "branches": 4, "breadth": 2}  # fmt: skip
    (result,), counters = run("tree_of_thoughts", given)
    said = json.loads(result.output)
    scores = [[way["score"] for way in level] for level in said["levels"]]
    assert [len(level) for level in scores] == [4, 8, 8]
    assert said["score"] == max(scores[-1]) == scores[-1][0]
    assert said["generated"] == (4 + 8 + 8) * 5 + 3
    assert len(said["steps"]) == 3
    assert counters["decode_rows"] / counters["decode_steps"] > 4


def test_skeleton_bodies_share_the_outline() -> None:
    given = {"prompt": "abc", "point": "{number}", "body": "<{number}", "points": 8,
             "point_tokens": 3, "tokens": 6, "ignore_eos": True}  # fmt: skip
    (result,), counters = run("skeleton", given)
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


# --- rag -----------------------------------------------------------------------------------------


def ask(language: str, policy: str, keep_tokens: int, *wanted: list[int], parallel: int = 1) -> Any:
    """Ask about some of three documents of 32 tokens, one question after the other."""
    texts = [f"document {n} says this and that." for n in range(3)]
    given = {"documents": texts, "keep_tokens": keep_tokens, "max_tokens": 4,
             "parallel": parallel, "policy": policy}  # fmt: skip
    messages = [
        json.dumps({"id": n, "documents": each, "question": "why"}) for n, each in enumerate(wanted)
    ]
    (result,), counters = run(f"rag/{language}", given, *messages)
    assert (result.status, result.exit_code) == ("exited", 0), (result.reason, result.logs)
    return result, counters


@pytest.mark.parametrize("language", LANGUAGES)
def test_rag_keeps_the_document_that_is_asked_for_most(language: str) -> None:
    wanted = [[0], [0], [1], [0], [2], [0]]
    result, counters = ask(language, "own", 32, *wanted)
    assert counters["prefill_tokens"] == 3 * 32 + 6 * len("why")
    assert [line for _, line in result.logs] == [b"3 documents computed, 3 found"]
    answers = [json.loads(message)["text"] for message in result.messages]
    assert len({answers[n] for n in (0, 1, 3, 5)}) == 1, "from a file or computed: the same"


@pytest.mark.parametrize("language", LANGUAGES)
def test_rag_with_the_servers_cache_answers_the_same(language: str) -> None:
    wanted = [[0], [1], [0], [2], [1]]
    own, _ = ask(language, "own", 96, *wanted)
    automatic, counters = ask(language, "automatic", 0, *wanted)
    assert automatic.messages == own.messages
    assert counters["prefill_tokens"] == 3 * 32 + 5 * len("why")


@pytest.mark.parametrize("language", LANGUAGES)
def test_rag_composes_documents_in_any_order(language: str) -> None:
    wanted = [[0, 1, 2], [2, 0, 1], [1, 2]]
    _, own = ask(language, "own", 96, *wanted)
    assert own["prefill_tokens"] == 3 * 32 + 3 * len("why")
    _, automatic = ask(language, "automatic", 0, *wanted)
    assert automatic["prefill_tokens"] == 8 * 32 + 3 * len("why")


def test_rag_with_parallel_questions_both_languages_answer_the_same() -> None:
    wanted = [[n % 3, (n * 2 + 1) % 3] for n in range(12)]

    def told(language: str) -> dict[int, str]:
        result, _ = ask(language, "own", 64, *wanted, parallel=4)
        said = [json.loads(message) for message in result.messages]
        return {each["id"]: each["text"] for each in said}

    rust, other = map(told, LANGUAGES)
    assert sorted(rust) == list(range(12))
    assert other == rust


@pytest.mark.parametrize("language", LANGUAGES)
def test_rag_with_an_unknown_document_fails(language: str) -> None:
    message = json.dumps({"id": 0, "documents": [1], "question": "why"})
    (result,), _ = run(f"rag/{language}", {"documents": ["a"]}, message)
    told = result.reason + " ".join(line.decode() for _, line in result.logs)
    assert (result.status, result.exit_code) != ("exited", 0)
    assert "a document that is not there" in told
