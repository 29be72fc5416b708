"""The examples as JavaScript source over real processes: they say what the Rust programs say."""

import asyncio
import json
from typing import Any

import pytest
from symphony import message_bytes
from symphony.client.views import RunResult

from tests.support.examples import EXAMPLES, answers, play_scenario, scenario, wait_until_ended
from tests.support.server.server import RunningServer

SOURCES = EXAMPLES / "javascript"
RUST = {
    "parallel_suffixes": "parallel_suffixes/rust",
    "react": "react/rust",
    "tree_of_thoughts": "tree_of_thoughts",
    "rag": "rag/rust",
}


def play_source(server: RunningServer, name: str) -> RunResult:
    """Upload a source and play its scenario; all pages and names must come back."""

    async def main() -> RunResult:
        given = scenario(RUST[name])
        before = await server.wait_until_idle()
        async with server.client() as client:
            source = (SOURCES / f"{name}.js").read_bytes()
            await client.programs.upload(source, f"js-{name}", "text/javascript")
            run = await client.start(f"js-{name}", input=given["input"])
            for message in given.get("messages", []):
                await client.runs.send(run, message.encode())
            if "messages" in given:
                await client.runs.send(run, b"", close=True)
            await wait_until_ended(server, client, run)
            result = await client.runs.get(run)
        after = await server.wait_until_idle()
        assert (after["pages_free"], after["names"]) == (before["pages_free"], before["names"])
        return result

    return asyncio.run(main())


def rounded(value: Any) -> Any:
    """Return a message with its decimals as both languages print them."""
    return json.loads(json.dumps(value), parse_float=lambda text: round(float(text), 3))


@pytest.mark.parametrize("name", sorted(RUST))
def test_javascript_example_says_what_the_rust_one_says(server: RunningServer, name: str) -> None:
    expected, _ = play_scenario(server, RUST[name])
    result = play_source(server, name)
    key = "id" if name == "rag" else "suffix"
    found = [
        sorted(map(rounded, answers(each)), key=lambda said: said.get(key, 0))
        for each in (result, expected)
    ]
    assert found[0] == found[1]
    assert all(message_bytes(message) for message in result["messages"])
