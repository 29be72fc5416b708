"""Prompts from modules on the tiny model: what is computed, and that it is masked attention."""

import json
import re
from typing import Any

from tests.support.kernel.dense_attention import Dense
from tests.support.server.examples import (
    EXAMPLES,
    answers,
    as_told,
    assert_greedy,
    play,
    scenario,
    tiny_checkpoint,
    tokens_of,
)
from tests.support.server.server import RunningServer

MODULAR = EXAMPLES / "modular_prompt"
GIVEN: dict[str, Any] = scenario("modular_prompt")["input"]


def pieces(text: str) -> list[tuple[str, str, int]]:
    """Split a module's text into (text before a parameter, its name, its room)."""
    parts = re.split(r"\{(\w+):(\d+)\}", text)
    return [
        (parts[i], *((parts[i + 1], int(parts[i + 2])) if i + 2 < len(parts) else ("", 0)))
        for i in range(0, len(parts), 3)
    ]


def prompt(dense: Dense, question: dict[str, Any]) -> tuple[list[int], int]:
    """Return a prompt's entries, with the modules' mask and positions, and the next position."""
    at = 0
    files: dict[str, list[int]] = {}
    slots: dict[str, list[tuple[str, int]]] = {}
    for name, text in GIVEN["modules"].items():
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


def test_its_scenario_reuses_modules_in_another_order(server: RunningServer) -> None:
    first, second = as_told(server, "modular_prompt", MODULAR)
    size = {
        name: sum(len(tokens_of(fixed)) for fixed, _, _ in pieces(text))
        for name, text in GIVEN["modules"].items()
    }
    own = 2 * len(tokens_of("element")) + len(tokens_of("def test_"))
    assert first["reused"] == size["imports"] + size["stack"]
    assert first["computed"] == first["reused"] + own
    # Of the second prompt's modules only one is new.
    assert second["reused"] == sum(size.values())
    assert second["computed"] == size["queue"] + own
    assert first["text"]


def test_it_is_dense_attention_under_the_modules_mask(server: RunningServer) -> None:
    questions = [
        {"modules": ["queue", "stack", "imports"], "thing": "value", "text": "def test_"},
        {"modules": ["stack"], "thing": "x", "text": "    def pop("},
        {"modules": [], "text": "import "},
    ]
    result, grown = play(server, MODULAR, GIVEN, *map(json.dumps, questions))
    said = answers(result)
    for question, answer in zip(questions, said, strict=True):
        dense = Dense(tiny_checkpoint())
        assert_greedy(dense, *prompt(dense, question), answer["text"])
        assert len(answer["text"]) > 5
    # What was computed is what the answers say, and a token a step.
    decoded = grown["tokens_computed"] - sum(answer["computed"] for answer in said)
    assert 0 < decoded <= len(said) * (GIVEN["max_tokens"] - 1)
