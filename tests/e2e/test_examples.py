"""The examples over HTTP, in the real processes, on the tiny model.

Each program plays its scenario; special assertions compare with transformers, with dense attention,
or with the program's other language. tests/guest_sdk/test_examples.py counts tokens and batches.
"""

import asyncio
import json
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest
import torch
from symphony_kernel import tiny_model
from symphony_runtime.cli.projects import new

from benchmarks.watermark import LEVEL, Detector, tokenizer
from tests.support.examples import (
    EXAMPLES,
    LANGUAGES,
    PROGRAMS,
    answers,
    assert_greedy,
    built,
    play,
    play_scenario,
    scenario,
    tiny_checkpoint,
    tokens_of,
)
from tests.support.executor.peer import Peer, one_thread
from tests.support.gateway.openai_client import connect
from tests.support.kernel.dense_attention import Dense
from tests.support.server.server import RunningServer
from tests.support.usage import used


class SearchPeer(Peer):
    """A peer that decodes."""

    def logprobs(self, tokens: list[int]) -> torch.Tensor:
        """Return the [vocab] log-probabilities after these tokens, in float64."""
        return torch.log_softmax(self.logits(tokens)[-1].double(), -1)

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
        end: int | list[int] = self.model.config.eos_token_id
        return set(end) if isinstance(end, list) else {end}


@pytest.fixture(scope="module")
def peer() -> Iterator[SearchPeer]:
    with one_thread():
        yield SearchPeer.load(tiny_model.path())


@pytest.mark.parametrize("program", PROGRAMS)
def test_example_scenario_ends_as_expected(server: RunningServer, program: str) -> None:
    play_scenario(server, program)


@pytest.mark.parametrize("language", LANGUAGES)
def test_new_project_with_and_without_text_runs(
    server: RunningServer, tmp_path: Path, language: str
) -> None:
    project = new("hello", language, tmp_path)
    result, _ = play(server, project, "def main(")
    assert (result["status"], result["exit_code"]) == ("exited", 0)
    assert len(result["messages"]) > 1
    result, _ = play(server, project, "")
    assert result["output"] == "Give me a text to continue."


def test_completion_greedy_equals_transformers(server: RunningServer, peer: SearchPeer) -> None:
    given = {"prompt": "class Stack:\n    def __init__(self", "max_tokens": 24}
    result, _ = play(server, "completion", given)
    expected = peer.greedy(peer.prompt(str(given["prompt"])), 24)
    assert result["output"] == peer.tokenizer.decode(expected)


@pytest.mark.parametrize("language", LANGUAGES)
def test_parallel_suffixes_share_one_prefix_and_batches(
    server: RunningServer, language: str
) -> None:
    result, grown = play_scenario(server, f"parallel_suffixes/{language}")
    said = answers(result)
    assert [answer["suffix"] for answer in said] == list(range(16))
    assert any(answer["text"].strip() for answer in said)
    # The prefix and the suffixes are computed once, and a token for each step of a branch.
    usage = used(result)
    assert grown["tokens_computed"] == usage["prompt_tokens"] + grown["decode_tokens"]
    prefix = usage["cached_tokens"] // 16
    assert usage["cached_tokens"] == 16 * prefix
    suffixes = scenario("parallel_suffixes")["input"]["suffixes"]
    assert prefix < usage["prompt_tokens"] < 2 * prefix + sum(map(len, suffixes))
    # Sixteen on an idle machine: branches that answer late have other steps.
    assert grown["decode_rows"] / grown["decode_steps"] > 4


def test_parallel_suffixes_both_languages_send_the_same(server: RunningServer) -> None:
    rust, assemblyscript = (
        answers(play_scenario(server, f"parallel_suffixes/{language}")[0]) for language in LANGUAGES
    )
    assert rust == assemblyscript


def test_beam_search_equals_a_search_without_a_cache(
    server: RunningServer, peer: SearchPeer
) -> None:
    prompt = "import os\n\ndef read_lines(path):\n"
    given = {"prompt": prompt, "beams": 4, "max_tokens": 8}
    result, grown = play(server, "beam_search", given)
    found = json.loads(result["output"])["beams"]
    expected = peer.beams(peer.prompt(prompt), 4, 8)
    assert [beam["tokens"] for beam in found] == [tokens for _, tokens in expected]
    for beam, (score, _) in zip(found, expected, strict=True):
        assert beam["score"] == pytest.approx(score, abs=1e-3)
    # A step is one batch, unless one beam's token arrives so late that it is computed alone.
    assert grown["decode_steps"] <= 16


def test_swarm_equals_transformers_on_the_same_tokens(
    server: RunningServer, peer: SearchPeer
) -> None:
    words = {
        "prompt": "import os\n\n",
        "role": "\n# Part {agent}.\ndef",
        "heard": "\n# Then{text}\n",
        "conclusion": "\n\ndef main():",
    }
    given = {**words, "agents": 2, "tokens": 8, "conclusion_tokens": 6}
    result, _ = play(server, "swarm", given)
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


def test_graph_of_thoughts_scores_and_concludes_as_transformers(
    server: RunningServer, peer: SearchPeer
) -> None:
    words = {
        "prompt": "import os\n",
        "thought": "\ndef",
        "judge": "\n# Fine:",
        "conclusion": "\n\n",
    }
    given = words | {"branches": 1, "keep": 1, "levels": 1, "tokens": 8, "conclusion_tokens": 6}
    result, _ = play(server, "graph_of_thoughts", given)
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


def test_skeleton_equals_transformers_point_by_point(
    server: RunningServer, peer: SearchPeer
) -> None:
    words = {"prompt": "# Functions:\n", "point": "# {number}:", "body": "\n\n# {number}\ndef"}
    given = {**words, "points": 3, "point_tokens": 5, "tokens": 8, "ignore_eos": True}
    result, grown = play(server, "skeleton", given)
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


# --- Constraints ---------------------------------------------------------------------------------


def test_json_schema_every_answer_is_valid(server: RunningServer) -> None:
    given = scenario("json_schema")["input"] | {"n": 6, "seed": 40}
    result, grown = play(server, "json_schema", given)
    said = answers(result)
    assert len(said) == 6
    for instance in said:
        jsonschema.validate(instance["value"], given["schema"])
    assert [each["logprob"] for each in said] == sorted((s["logprob"] for s in said), reverse=True)
    # The prompt is computed once, and all answers are decoded in common batches.
    assert grown["prefill_tokens"] <= len(given["prompt"])
    assert grown["decode_rows"] / grown["decode_steps"] > 2


def test_json_schema_invalid_schema_is_explained_in_the_log(server: RunningServer) -> None:
    wrong = {"type": "object", "properties": {"age": {"type": "intger"}}}
    result, _ = play(server, "json_schema", {"prompt": "x", "schema": wrong})
    assert (result["status"], result["exit_code"]) == ("exited", 1)

    async def log() -> list[str]:
        async with server.client() as client:
            events = client.runs.events(result["id"])
            return [event.data["text"] async for event in events if event.kind == "log"]

    assert any("#/properties/age: Invalid type: intger" in line for line in asyncio.run(log()))


def test_regex_every_gap_matches(server: RunningServer) -> None:
    result, _ = play_scenario(server, "regex")
    form, said = scenario("regex")["input"]["form"], json.loads(result["output"])
    patterns = [part["match"] for part in form if isinstance(part, dict)]
    for pattern, gap in zip(patterns, said["gaps"], strict=True):
        assert re.fullmatch(pattern, gap), gap
    gaps = iter(said["gaps"])
    whole = [part if isinstance(part, str) else next(gaps) for part in form]
    assert said["text"] == "".join(whole)


# --- Documents and tools -------------------------------------------------------------------------


def test_rag_both_languages_compute_and_answer_the_same(server: RunningServer) -> None:
    told = scenario("rag")
    played = [
        play(server, f"rag/{language}", told["input"] | {"parallel": 1}, *told["messages"])
        for language in LANGUAGES
    ]
    rust, other = ({each["id"]: each["text"] for each in answers(result)} for result, _ in played)
    assert rust == other
    assert sorted(rust) == [1, 2, 3, 4]
    assert rust[1] == rust[4], "a kept document answers as when it was computed"
    assert played[0][1]["prefill_tokens"] == played[1][1]["prefill_tokens"] > 0


RISES = "The Lys rises in Lisbourg and is 202 km long."
CITY = "Ghent is a city in Flanders, where the Lys meets the Scheldt."


def test_react_computes_each_token_once(server: RunningServer) -> None:
    result, grown = play_scenario(server, "react/rust")
    *steps, end = answers(result)
    assert [step["observation"] for step in steps] == [RISES, CITY, RISES]
    assert all(step["ok"] and step["thought"] for step in steps)
    assert end["answer"]
    # The last token of each text is chosen and not computed.
    assert grown["tokens_computed"] == end["prefilled"] + end["generated"] - 4
    assert grown["tokens_computed"] == end["tokens"] - 1


def test_react_both_languages_send_the_same(server: RunningServer) -> None:
    given = {
        "question": "Where does the Lys rise?", "queries": ["lys rises"], "steps": 2,
        "thought_tokens": 9, "answer_tokens": 7, "ignore_eos": True, "temperature": 0.9, "seed": 5,
    }  # fmt: skip
    told = []
    for language in LANGUAGES:
        result, grown = play(server, f"react/{language}", given)
        told.append(answers(result))
        assert told[-1][-1]["generated"] == 2 * 9 + 7
        assert grown["tokens_computed"] == told[-1][-1]["tokens"] - 1
    assert told[0] == told[1]


def test_react_without_its_tool_fails(server: RunningServer) -> None:
    given = {"question": "?", "tool": "example.none", "steps": 1, "queries": ["x"]}
    result, _ = play(server, "react/rust", given)
    assert (result["status"], result["exit_code"]) == ("exited", 1)
    assert result["messages"] == []  # the log says why


def test_read_api_continues_behind_what_it_read(server: RunningServer) -> None:
    result, grown = play_scenario(server, "read_api")
    *messages, end = answers(result)
    found = [message["found"] for message in messages if "found" in message]
    assert found[0].startswith("json.dumps(obj, *, skipkeys=False")
    assert found[1] == "os.replace(src, dst, *, src_dir_fd=None, dst_dir_fd=None)"
    # A text that ends at a tag, or at its number of tokens, has one token that is not computed.
    assert grown["tokens_computed"] == end["tokens"] - 1


# --- A program as a model ------------------------------------------------------------------------
PLACE = {"type": "object", "properties": {"city": {"enum": ["Lille", "Ghent"]}},
        "required": ["city"], "additionalProperties": False}  # fmt: skip
TOOLS: Any = [{"type": "function", "function": {"name": "get_weather", "parameters": PLACE}}]


@pytest.mark.parametrize("language", LANGUAGES)
def test_thinking_model_reasons_answers_and_calls_tools(
    server: RunningServer, language: str
) -> None:
    wasm = built(EXAMPLES / f"thinking_model/{language}").read_bytes()
    name = f"thinker-{language}"

    async def upload() -> None:
        async with server.client() as client:
            await client.programs.upload(wasm, name=name)

    asyncio.run(upload())
    fields: Any = {"model": name, "temperature": 1, "seed": 3, "extra_body": {"thinking_tokens": 9}}
    asked: Any = [{"role": "user", "content": "Is it warm?"}]
    with connect(server) as client:
        ask = client.chat.completions.create
        whole = ask(messages=asked, max_tokens=8, n=4, **fields)
        said = [(each.finish_reason, each.message.to_dict()) for each in whole.choices]
        assert len(said) == 4
        assert {finish for finish, _ in said} <= {"length", "stop"}
        assert all(message["content"] for _, message in said)
        assert any(message.get("reasoning_content") for _, message in said)
        assert whole.usage.completion_tokens > 4 * 8
        answer = ask(messages=asked, max_tokens=64, tools=TOOLS, **fields).choices[0]
        assert (answer.finish_reason, answer.message.content) == ("tool_calls", None)
        (call,) = answer.message.tool_calls
        assert json.loads(call.function.arguments)["city"] in ("Lille", "Ghent")
        result = {"role": "tool", "tool_call_id": call.id, "content": "18"}
        told = [*asked, answer.message.to_dict(), result]
        after = ask(messages=told, max_tokens=8, tools=TOOLS, **fields).choices[0]
        assert after.message.content
        assert not after.message.tool_calls
        with pytest.raises(openai.BadRequestError) as refused:
            ask(messages=[], **fields)
        assert refused.value.param == "messages"


# --- The watermark -------------------------------------------------------------------------------
TOKENS = 200


@pytest.mark.parametrize("language", LANGUAGES)
def test_watermark_is_detected_only_with_its_secret(server: RunningServer, language: str) -> None:
    marked, plain = answers(play_scenario(server, f"watermark/{language}")[0])
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

    # Detection needs the text and the secret, and no model.
    given = {"secret": "only we know this", "text": marked["text"]}
    result, grown = play(server, f"watermark/{language}", given)
    assert answers(result) == [{k: marked[k] for k in ("counted", "green", "z", "p")}]
    assert grown["tokens_computed"] == 0


def test_watermark_both_languages_write_the_same(server: RunningServer) -> None:
    given = {"prompt": "import os\n\n", "secret": "schlüssel", "max_tokens": 40, "seed": 5}
    ours, grown = play(server, "watermark/assemblyscript", given)
    theirs, _ = play(server, "watermark/rust", given)
    (one,), (other,) = answers(ours), answers(theirs)
    assert one.pop("text") == other.pop("text")
    assert one == pytest.approx(other, rel=1e-4)
    assert grown["decode_steps"] <= 40


def test_watermark_detector_on_a_thousand_plain_texts_raises_few_alarms() -> None:
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


# --- Speculative decoding ------------------------------------------------------------------------
REPETITIVE = "".join(f"    def get_{name}(self):\n        return self.{name}\n\n" for name in "xyz")


def test_speculative_scenario_needs_fewer_passes_than_tokens(server: RunningServer) -> None:
    (told,) = answers(play_scenario(server, "speculative")[0])
    assert told["same"] is True
    assert told["tokens"] == 64
    assert told["tokens_per_pass"] == pytest.approx(64 / told["passes"], abs=1e-5)
    assert told["passes"] <= 48
    assert min(told["tokens_per_second"], told["plain_tokens_per_second"]) > 0


@pytest.mark.parametrize("prompt", [REPETITIVE, "import os\n\ndef read_lines(path):\n"])
@pytest.mark.parametrize(("branches", "depth"), [(1, 8), (8, 24)])
def test_speculative_tokens_equal_greedy_decoding(
    server: RunningServer, prompt: str, branches: int, depth: int
) -> None:
    given = {"prompt": prompt, "max_tokens": 48, "branches": branches, "depth": depth}
    result, grown = play(server, "speculative", given)
    (told,) = answers(result)
    plain, _ = play(server, "completion", {"prompt": prompt, "max_tokens": 48})
    assert told["text"] == plain["output"]
    # The rest of what a pass computes are rejected proposals.
    assert told["passes"] <= told["tokens"] <= grown["tokens_computed"]


# --- Attention sinks -----------------------------------------------------------------------------
SINK_PROMPT = "import os\n\n\ndef read_lines(path):\n"
PAGE = 16


def test_attention_sink_file_stays_within_its_bound(server: RunningServer) -> None:
    said = answers(play_scenario(server, "attention_sink")[0])
    assert [each["tokens"] for each in said] == [128, 256, 384, 512]
    assert all(each["entries"] <= 4 + 60 + 32 for each in said)
    # A window that begins within a page touches one more.
    assert all(each["pages"] <= -(-(4 + 60 + 32) // PAGE) + 1 for each in said)
    assert said[-1]["position"] > 512


def test_attention_sink_writes_past_the_context(server: RunningServer) -> None:
    # A prompt that nearly fills the context is read in blocks.
    given = {"prompt": SINK_PROMPT * 170, "window": 28, "block": 256, "max_tokens": 400,
             "report": 100, "temperature": 0.7, "seed": 1}  # fmt: skip
    result, grown = play(server, "attention_sink", given)
    said = answers(result)
    assert (said[-1]["tokens"], said[-1]["rebuilt"]) == (400, 1)
    assert said[-1]["position"] < 2048 < grown["tokens_computed"]
    assert max(each["entries"] for each in said) <= 4 + 28 + 256


def test_attention_sink_within_its_window_is_plain_decoding(server: RunningServer) -> None:
    given = {"prompt": SINK_PROMPT, "max_tokens": 40}
    result, _ = play(server, "attention_sink", given)
    plain, _ = play(server, "completion", given)
    (said,) = answers(result)
    # Plain decoding ends with the text, this does not.
    assert said["text"].startswith(plain["output"])
    assert said["entries"] >= 40


def test_attention_sink_equals_dense_attention_on_sinks_and_window(server: RunningServer) -> None:
    # The prompt's last block comes when the first window is left, and the answer behind it.
    sinks, window, block, more = 4, 16, 40, 10
    text = SINK_PROMPT * 7
    prompt = tokens_of(text)
    assert len(prompt) == 2 * block - 10
    given = {"prompt": text, "sinks": sinks, "window": window, "block": block, "max_tokens": more}
    (said,) = answers(play(server, "attention_sink", given)[0])
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


# --- Modular prompts -----------------------------------------------------------------------------
MODULAR: dict[str, Any] = scenario("modular_prompt")["input"]


def pieces(text: str) -> list[tuple[str, str, int]]:
    """Split a module's text into (text before a parameter, its name, its room)."""
    parts = re.split(r"\{(\w+):(\d+)\}", text)
    return [
        (parts[i], *((parts[i + 1], int(parts[i + 2])) if i + 2 < len(parts) else ("", 0)))
        for i in range(0, len(parts), 3)
    ]


def modular_prompt(dense: Dense, question: dict[str, Any]) -> tuple[list[int], int]:
    """Return a prompt's entries, with the modules' mask and positions, and the next position."""
    at = 0
    files: dict[str, list[int]] = {}
    slots: dict[str, list[tuple[str, int]]] = {}
    for name, text in MODULAR["modules"].items():
        files[name], slots[name] = [], []
        for fixed, parameter, room in pieces(text):
            for token in tokens_of(fixed):
                files[name].append(dense.add(token, at, tuple(files[name])))
                at += 1
            if parameter:
                slots[name].append((parameter, at))
                at += room
    seen = [entry for name in question["modules"] for entry in files[name]]
    for name in question["modules"]:
        for parameter, position in slots[name]:
            for i, token in enumerate(tokens_of(question[parameter])):
                seen.append(dense.add(token, position + i, tuple(seen)))
    for token in tokens_of(question["text"]):
        seen.append(dense.add(token, at, tuple(seen)))
        at += 1
    return seen, at


def test_modular_prompt_scenario_reuses_modules_in_another_order(server: RunningServer) -> None:
    first, second = answers(play_scenario(server, "modular_prompt")[0])
    size = {
        name: sum(len(tokens_of(fixed)) for fixed, _, _ in pieces(text))
        for name, text in MODULAR["modules"].items()
    }
    own = 2 * len(tokens_of("element")) + len(tokens_of("def test_"))
    assert first["reused"] == size["imports"] + size["stack"]
    assert first["computed"] == first["reused"] + own
    # Of the second prompt's modules only one is new.
    assert second["reused"] == sum(size.values())
    assert second["computed"] == size["queue"] + own
    assert first["text"]


def test_modular_prompt_equals_dense_attention_under_its_mask(server: RunningServer) -> None:
    questions = [
        {"modules": ["queue", "stack", "imports"], "thing": "value", "text": "def test_"},
        {"modules": ["stack"], "thing": "x", "text": "    def pop("},
        {"modules": [], "text": "import "},
    ]
    result, grown = play(server, "modular_prompt", MODULAR, *map(json.dumps, questions))
    said = answers(result)
    for question, answer in zip(questions, said, strict=True):
        dense = Dense(tiny_checkpoint())
        assert_greedy(dense, *modular_prompt(dense, question), answer["text"])
        assert len(answer["text"]) > 5
    # The answers' counts and a token a step are all that is computed.
    decoded = grown["tokens_computed"] - sum(answer["computed"] for answer in said)
    assert 0 < decoded <= len(said) * (MODULAR["max_tokens"] - 1)


# --- The editor's session ------------------------------------------------------------------------


def common_prefix(one: str, other: str) -> int:
    """Return how many tokens two texts begin with alike."""
    pairs = list(zip(tokens_of(one), tokens_of(other), strict=False))
    return next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))


def test_code_complete_each_message_costs_what_changed(server: RunningServer) -> None:
    said = answers(play_scenario(server, "code_complete")[0])
    opened, first, edited, second, undone, closed = said
    messages = [json.loads(message) for message in scenario("code_complete")["messages"]]
    before = messages[0]["text"]
    after = before[:94] + messages[2]["insert"] + before[94:]
    assert opened["computed"] == len(tokens_of(before)) - 1
    assert edited["tokens"] == len(tokens_of(after))
    # All of the new text but its last token, from where it differs.
    assert edited["computed"] == len(tokens_of(after)) - 1 - common_prefix(before, after)
    assert first["computed"] <= 2
    assert second["computed"] == 1
    assert (undone["computed"], undone["tokens"]) == (0, opened["tokens"])
    assert [each["versions"] for each in (opened, edited, undone)] == [1, 2, 1]
    assert closed == {"file": "stack.py", "open": 0}


def test_code_complete_equals_completion_of_the_text_before_the_cursor(
    server: RunningServer,
) -> None:
    text = "import os\n\ndef read_lines(path):\n    with open(path) as file:\n        return "
    messages = [
        {"open": "a", "text": "import os\n\ndef write_lines(path):\n    pass\n"},
        {"edit": "a", "at": 0, "delete": 1000, "insert": text + "nothing\n"},
        {"edit": "a", "at": 11, "delete": 3, "insert": "def"},
        {"complete": "a", "at": len(text)},
        {"undo": "a"},
        {"complete": "a", "at": len(text)},
    ]
    result, _ = play(server, "code_complete", {"max_tokens": 16}, *map(json.dumps, messages))
    said = answers(result)
    plain, _ = play(server, "completion", {"prompt": text, "max_tokens": 16})
    assert said[3]["completion"] == said[5]["completion"] == plain["output"]


async def test_code_complete_closed_file_frees_its_pages_during_the_session(
    server: RunningServer,
) -> None:
    before = (await server.wait_until_idle())["pages_free"]
    async with server.client() as client:
        wasm = built(EXAMPLES / "code_complete").read_bytes()
        program = await client.programs.upload(wasm, name="code_complete")
        run = await client.start(program["id"], input={})
        events = client.runs.events(run)
        held = []
        for message in (
            {"open": "a", "text": "x = 1\n" * 100},
            {"edit": "a", "at": 300, "insert": "y = 2\n"},
            {"close": "a"},
        ):
            await client.runs.send(run, json.dumps(message).encode())
            async for event in events:
                if event.kind == "message":
                    break
            held.append(before - (await server.counters())["pages_free"])
        await client.runs.send(run, b"", close=True)
        async for _ in events:
            pass
    assert held[1] >= held[0] >= 400 // 16
    assert held[2] == 0
