"""The editor's session on the tiny model: what an edit costs, and what closing gives back."""

import asyncio
import json
from typing import Any

from tests.support.server.examples import (
    EXAMPLES,
    answers,
    as_told,
    built,
    play,
    scenario,
    tokens_of,
)
from tests.support.server.server import RunningServer

EDITOR = EXAMPLES / "code_complete"


def common(one: str, other: str) -> int:
    """Return how many tokens two texts begin with alike."""
    pairs = list(zip(tokens_of(one), tokens_of(other), strict=False))
    return next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))


def test_each_message_costs_what_changed(server: RunningServer) -> None:
    opened, first, edited, second, undone, closed = as_told(server, "code_complete", EDITOR)
    messages = [json.loads(message) for message in scenario("code_complete")["messages"]]
    before = messages[0]["text"]
    after = before[:94] + messages[2]["insert"] + before[94:]
    assert opened["computed"] == len(tokens_of(before)) - 1
    assert edited["tokens"] == len(tokens_of(after))
    # All of the new text but its last token, from where it differs.
    assert edited["computed"] == len(tokens_of(after)) - 1 - common(before, after)
    assert first["computed"] <= 2
    assert second["computed"] == 1
    assert (undone["computed"], undone["tokens"]) == (0, opened["tokens"])
    assert [each["versions"] for each in (opened, edited, undone)] == [1, 2, 1]
    assert closed == {"file": "stack.py", "open": 0}


def test_a_completion_is_what_the_text_before_the_cursor_gives(server: RunningServer) -> None:
    text = "import os\n\ndef read_lines(path):\n    with open(path) as file:\n        return "
    messages = [
        {"open": "a", "text": "import os\n\ndef write_lines(path):\n    pass\n"},
        {"edit": "a", "at": 0, "delete": 1000, "insert": text + "nothing\n"},
        {"edit": "a", "at": 11, "delete": 3, "insert": "def"},
        {"complete": "a", "at": len(text)},
        {"undo": "a"},
        {"complete": "a", "at": len(text)},
    ]
    result, _ = play(server, EDITOR, {"max_tokens": 16}, *map(json.dumps, messages))
    said = answers(result)
    plain, _ = play(server, EXAMPLES / "completion", {"prompt": text, "max_tokens": 16})
    assert said[3]["completion"] == said[5]["completion"] == plain["output"]


def test_a_closed_files_pages_are_free_while_the_session_goes_on(server: RunningServer) -> None:
    async def main() -> list[Any]:
        before = (await server.wait_until_idle())["pages_free"]
        async with server.client() as client:
            program = await client.upload(built(EDITOR).read_bytes(), name="code_complete")
            run = await client.start(program["id"], input={})
            events = client.events(run)
            told = []
            for message in (
                {"open": "a", "text": "x = 1\n" * 100},
                {"edit": "a", "at": 300, "insert": "y = 2\n"},
                {"close": "a"},
            ):
                await client.send(run, json.dumps(message).encode())
                async for event in events:
                    if event.kind == "message":
                        break
                told.append(before - (await server.counters())["pages_free"])
            await client.send(run, b"", close=True)
            async for _ in events:
                pass
        return told

    held = asyncio.run(main())
    assert held[1] >= held[0] >= 400 // 16
    assert held[2] == 0
