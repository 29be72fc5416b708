"""The Rust examples over HTTP, in the real processes, on the tiny model."""

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import jsonschema
import pytest
import torch
from symphony_kernel import tiny_model
from symphony_runtime.cli.projects import new
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.support.server.examples import EXAMPLES, play, scenario
from tests.support.server.server import RunningServer

WEIGHTS = Path(tiny_model.__file__).parent / "weights"


@dataclass
class Peer:
    """transformers on the checkpoint that the server serves."""

    model: PreTrainedModel
    tokenizer: Tokenizer

    def prompt(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def logprobs(self, tokens: list[int]) -> torch.Tensor:
        """Return the [vocab] log-probabilities after these tokens, in float64."""
        with torch.inference_mode():
            logits = self.model(torch.tensor([tokens])).logits[0, -1]
        return torch.log_softmax(logits.double(), -1)

    def greedy(self, prompt: list[int], count: int) -> list[int]:
        """Return up to `count` tokens, without the one that ends the text."""
        tokens = list(prompt)
        for _ in range(count):
            best = int(self.logprobs(tokens).argmax())
            if best in self.ends:
                break
            tokens.append(best)
        return tokens[len(prompt) :]

    def beams(self, prompt: list[int], beams: int, count: int) -> list[tuple[float, list[int]]]:
        """Return (score, tokens) of a beam search that computes every text from its start."""
        live: list[tuple[float, list[int]]] = [(0.0, [])]
        done: list[tuple[float, list[int]]] = []
        for _ in range(count):
            grown = []
            for logprob, tokens in live:
                top = self.logprobs(prompt + tokens).topk(2 * beams)
                more = zip(top.values.tolist(), top.indices.tolist(), strict=True)
                grown += [(logprob + value, [*tokens, token]) for value, token in more]
            grown = sorted(grown, key=lambda found: -found[0])[: 2 * beams]
            done += [found for found in grown[:beams] if found[1][-1] in self.ends]
            live = [found for found in grown if found[1][-1] not in self.ends][:beams]
        scored = [(logprob / len(tokens), tokens) for logprob, tokens in done + live]
        return sorted(scored, key=lambda found: -found[0])[:beams]

    @property
    def ends(self) -> set[int]:
        """The tokens that end a text."""
        end: int | list[int] = self.model.config.eos_token_id
        return set(end) if isinstance(end, list) else {end}


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    # Two processes that compute with spinning threads on two cores slow each other down tenfold.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(WEIGHTS, dtype=torch.float32).eval()
    yield Peer(model, Tokenizer.from_file(str(WEIGHTS / "tokenizer.json")))
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    "name",
    [
        "completion",
        "beam_search",
        "chat",
        "swarm",
        "graph_of_thoughts",
        "tree_of_thoughts",
        "skeleton",
        "json_schema",
        "regex",
    ],
)
def test_each_scenario_comes_out_as_it_says(server: RunningServer, name: str) -> None:
    told = scenario(name)
    result, _ = play(server, EXAMPLES / name, told["input"], *told.get("messages", []))
    wanted = told["expect"]
    assert (result["status"], result["exit_code"]) == (wanted["status"], wanted["exit_code"])
    assert len(result["messages"]) == wanted.get("messages", len(result["messages"])) > 0


def test_completion_is_what_transformers_completes(server: RunningServer, peer: Peer) -> None:
    given = {"prompt": "class Stack:\n    def __init__(self", "max_tokens": 24}
    result, _ = play(server, EXAMPLES / "completion", given)
    expected = peer.greedy(peer.prompt(str(given["prompt"])), 24)
    assert result["output"] == peer.tokenizer.decode(expected)


def test_parallel_suffixes_are_one_prefix_and_full_batches(server: RunningServer) -> None:
    told = scenario("parallel_suffixes")
    result, grown = play(server, EXAMPLES / "parallel_suffixes" / "rust", told["input"])
    assert (result["status"], result["exit_code"]) == ("exited", 0)
    said = [json.loads(message) for message in result["messages"]]
    assert [answer["suffix"] for answer in said] == list(range(16))

    # What was computed is the prefix and the suffixes once, and a token for each step of a branch.
    usage = result["usage"]
    assert grown["tokens_computed"] == usage["prompt_tokens"] + grown["decode_tokens"]
    assert usage["cached_tokens"] % 16 == 0
    # Sixteen where nothing else wants the processors: branches that answer late have other steps.
    assert grown["decode_rows"] / grown["decode_steps"] > 4


def test_beam_search_finds_what_the_plain_search_finds(server: RunningServer, peer: Peer) -> None:
    prompt = "import os\n\ndef read_lines(path):\n"
    given = {"prompt": prompt, "beams": 4, "max_tokens": 8}
    result, grown = play(server, EXAMPLES / "beam_search", given)
    found = json.loads(result["output"])["beams"]
    expected = peer.beams(peer.prompt(prompt), 4, 8)
    assert [beam["tokens"] for beam in found] == [tokens for _, tokens in expected]
    for beam, (score, _) in zip(found, expected, strict=True):
        assert beam["score"] == pytest.approx(score, abs=1e-3)
    # A step is one batch, unless a busy machine tells of one beam so late that it comes by itself.
    assert grown["decode_steps"] <= 16


def test_chat_computes_only_what_is_new(server: RunningServer) -> None:
    messages = ("def add(a, b):", "class Stack:")
    result, grown = play(server, EXAMPLES / "chat", {"max_tokens": 8}, *messages)
    assert result["messages"].count("") == 2

    async def log() -> list[str]:
        async with server.client() as client:
            events = client.events(result["id"])
            return [event.data["text"] async for event in events if event.kind == "log"]

    amounts = [[int(n) for n in re.findall(r"\d+", line)] for line in asyncio.run(log())]
    assert amounts[0][0] == 0
    assert amounts[1][0] >= amounts[0][1]
    new_tokens = sum(size - known for known, size in amounts)
    assert new_tokens <= grown["tokens_computed"] <= new_tokens + 2 * 8


def test_a_swarm_writes_what_transformers_writes_from_the_same_tokens(
    server: RunningServer, peer: Peer
) -> None:
    words = {
        "prompt": "import os\n\n",
        "role": "\n# Part {agent}.\ndef",
        "heard": "\n# Then{text}\n",
    }
    words["conclusion"] = "\n\ndef main():"
    given = {**words, "agents": 2, "tokens": 8, "conclusion_tokens": 6}
    result, grown = play(server, EXAMPLES / "swarm", given)
    said = json.loads(result["output"])

    heard = [peer.prompt(part) for part in words["heard"].split("{text}")]
    roles = [peer.prompt(words["role"].replace("{agent}", number)) for number in "12"]
    context = peer.prompt(words["prompt"])
    texts = [context + role for role in roles]
    first = [peer.greedy(text, 8) for text in texts]
    texts = [texts[i] + first[i] + heard[0] + first[1 - i] + heard[1] for i in range(2)]
    second = [peer.greedy(text, 8) for text in texts]
    assert [agent["tokens"] for agent in said["agents"]] == second
    for role, text in zip(roles, second, strict=True):
        context += role + text
    expected = peer.greedy(context + peer.prompt(words["conclusion"]), 6)
    assert said["text"] == peer.tokenizer.decode(expected)
    assert said["prefilled"] < grown["tokens_computed"] < said["prefilled"] + said["generated"]


def test_a_thought_is_scored_and_followed_as_transformers_would(
    server: RunningServer, peer: Peer
) -> None:
    words = {
        "prompt": "import os\n",
        "thought": "\ndef",
        "judge": "\n# Fine:",
        "conclusion": "\n\n",
    }
    given = words | {"branches": 1, "keep": 1, "levels": 1, "tokens": 8, "conclusion_tokens": 6}
    result, _ = play(server, EXAMPLES / "graph_of_thoughts", given)
    said = json.loads(result["output"])
    text = peer.prompt(words["prompt"]) + peer.prompt(words["thought"])
    text += peer.greedy(text, 8)

    def logprob(answer: str) -> float:
        asked, total = text + peer.prompt(words["judge"]), 0.0
        for token in peer.prompt(answer):
            total += float(peer.logprobs(asked)[token])
            asked.append(token)
        return total

    (thought,) = said["thoughts"]
    assert thought["score"] == pytest.approx(logprob(" True") - logprob(" False"), abs=1e-3)
    answer = peer.greedy(text + peer.prompt(words["conclusion"]), 6)
    assert said["text"] == peer.tokenizer.decode(answer)


def test_a_skeleton_is_what_transformers_writes_point_by_point(
    server: RunningServer, peer: Peer
) -> None:
    words = {"prompt": "# Functions:\n", "point": "# {number}:", "body": "\n\n# {number}\ndef"}
    given = {**words, "points": 3, "point_tokens": 5, "tokens": 8, "ignore_eos": True}
    result, grown = play(server, EXAMPLES / "skeleton", given)
    said = json.loads(result["output"])

    outline = peer.prompt(words["prompt"])
    for number, point in enumerate(said["points"]):
        outline += peer.prompt(words["point"].replace("{number}", str(number + 1)))
        line = peer.greedy(outline, 5)
        assert point["title"] == peer.tokenizer.decode(line)
        outline += line + peer.prompt("\n")
    for number, point in enumerate(said["points"]):
        body = peer.prompt(words["body"].replace("{number}", str(number + 1)))
        assert point["text"] == peer.tokenizer.decode(peer.greedy(outline + body, 8))
    assert grown["tokens_computed"] == said["prefilled"] + said["generated"] - 2 * 3


def test_a_new_project_runs(server: RunningServer, tmp_path: Path) -> None:
    project = new("hello", "rust", tmp_path)
    result, _ = play(server, project, "def main(")
    assert (result["status"], result["exit_code"]) == ("exited", 0)
    assert len(result["messages"]) > 1
    result, _ = play(server, project, "")
    assert result["output"] == "Give me a text to continue."


def test_what_json_schema_writes_is_its_schemas(server: RunningServer) -> None:
    given = scenario("json_schema")["input"] | {"n": 6, "seed": 40}
    result, grown = play(server, EXAMPLES / "json_schema", given)
    said = [json.loads(message) for message in result["messages"]]
    assert len(said) == 6
    for instance in said:
        jsonschema.validate(instance["value"], given["schema"])
    assert [each["logprob"] for each in said] == sorted((s["logprob"] for s in said), reverse=True)
    # The prompt is computed once, and all go on side by side.
    assert grown["prefill_tokens"] <= len(given["prompt"])
    assert grown["decode_rows"] / grown["decode_steps"] > 2


def test_a_schema_that_is_wrong_ends_a_run_in_words(server: RunningServer) -> None:
    wrong = {"type": "object", "properties": {"age": {"type": "intger"}}}
    given = {"prompt": "x", "schema": wrong}
    result, _ = play(server, EXAMPLES / "json_schema", given)
    assert (result["status"], result["exit_code"]) == ("exited", 1)

    async def log() -> list[str]:
        async with server.client() as client:
            events = client.events(result["id"])
            return [event.data["text"] async for event in events if event.kind == "log"]

    assert any("#/properties/age: Invalid type: intger" in line for line in asyncio.run(log()))


def test_each_gap_of_a_form_matches(server: RunningServer) -> None:
    given = scenario("regex")["input"]
    result, _ = play(server, EXAMPLES / "regex", given)
    said = json.loads(result["output"])
    patterns = [part["match"] for part in given["form"] if isinstance(part, dict)]
    for pattern, gap in zip(patterns, said["gaps"], strict=True):
        assert re.fullmatch(pattern, gap), gap
    gaps = iter(said["gaps"])
    whole = [part if isinstance(part, str) else next(gaps) for part in given["form"]]
    assert said["text"] == "".join(whole)
