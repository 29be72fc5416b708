"""Programs that reach the outside, over HTTP, in the real processes, on the tiny model."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from symphony_runtime.config import read_options

from tests.e2e.test_rust_examples import EXAMPLES, play, scenario
from tests.support.server import RunningServer

RISES = "The Lys rises in Lisbourg and is 202 km long."
CITY = "Ghent is a city in Flanders, where the Lys meets the Scheldt."


@pytest.mark.parametrize("language", ["rust", "assemblyscript"])
def test_react_computes_each_token_once(server: RunningServer, language: str) -> None:
    told = scenario("react")
    result, grown = play(server, EXAMPLES / "react" / language, told["input"])
    assert (result["status"], result["exit_code"]) == ("exited", 0), result
    *steps, end = [json.loads(message) for message in result["messages"]]
    assert [step["observation"] for step in steps] == [RISES, CITY, RISES]
    assert all(step["ok"] and step["thought"] for step in steps)
    assert end["answer"]
    # What was computed: all that was said, and what was chosen but each text's last token.
    assert grown["tokens_computed"] == end["prefilled"] + end["generated"] - 4
    assert grown["tokens_computed"] == end["tokens"] - 1


# Exactly as many tokens as asked for, drawn with a seed: what a measurement wants of it.
EXACT = {
    "question": "Where does the Lys rise?",
    "queries": ["lys rises"],
    "steps": 2,
    "thought_tokens": 9,
    "answer_tokens": 7,
    "ignore_eos": True,
    "temperature": 0.9,
    "seed": 5,
}


def test_react_is_the_same_program_in_both_languages(server: RunningServer) -> None:
    told = []
    for language in ("rust", "assemblyscript"):
        result, grown = play(server, EXAMPLES / "react" / language, EXACT)
        told.append([json.loads(message) for message in result["messages"]])
        assert told[-1][-1]["generated"] == 2 * 9 + 7
        assert grown["tokens_computed"] == told[-1][-1]["tokens"] - 1
    assert told[0] == told[1]


def test_react_ends_without_its_tool(server: RunningServer) -> None:
    given = {"question": "?", "tool": "example.none", "steps": 1, "queries": ["x"]}
    result, _ = play(server, EXAMPLES / "react" / "rust", given)
    assert (result["status"], result["exit_code"]) == ("exited", 1)
    assert result["messages"] == []  # it cannot be called: its log says why


def test_the_examples_configuration_is_one() -> None:
    """It names the server that the tests start, with the first `python` there is."""
    options = read_options(EXAMPLES / "symphony.toml", {})
    table: dict[str, Any] = tomllib.loads((EXAMPLES / "symphony.toml").read_text())
    server = options.tools["example"]
    assert server["tenants"] == ["default"]
    assert Path(server["directory"]) == EXAMPLES
    assert server["command"] == table["tools"]["example"]["command"] == ["python", "tool_server.py"]
    assert (EXAMPLES / "tool_server.py").exists()
