"""The client and a server whose answers a test chooses, right or wrong."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from benchmarks.serving.client import Endpoint, MeasureError, Request, drive
from benchmarks.serving.workloads import Column, Workload
from tests.support.web import serving

LOAD = Workload("load", 4, 3, Column.WHOLE, streams=2, requests=6)
PROMPTS: list[list[int] | str] = [[i, 1, 2, 3] for i in range(6)]


@dataclass
class Speaker:
    """Streams `tokens` tokens with a pause before each; tells `usage`, else the true one."""

    tokens: int = 3
    pause: float = 0.01
    usage: dict[str, Any] | None = None
    status: int = 200
    tail: bytes = b"data: [DONE]\n\n"
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[str | None] = field(default_factory=list)
    live: int = 0
    most: int = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.json())
        self.headers.append(request.headers.get("Authorization"))
        if self.status != 200:
            return web.json_response({"error": "no room"}, status=self.status)
        self.live += 1
        self.most = max(self.most, self.live)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for index in range(self.tokens):
            await asyncio.sleep(self.pause)
            reason = "length" if index == self.tokens - 1 else None
            choice = {"text": "x", "index": 0, "finish_reason": reason}
            await response.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
        usage = self.usage
        if usage is None:
            usage = {"prompt_tokens": 4, "completion_tokens": self.tokens}
        last = {"choices": [], "usage": usage}
        self.live -= 1
        await response.write(b"data: " + json.dumps(last).encode() + b"\n\n" + self.tail)
        return response


def ask(
    speaker: Speaker, change: Callable[[Endpoint], Endpoint] = lambda e: e, **options: Any
) -> list[Request]:
    async def run() -> list[Request]:
        async with serving(speaker.answer) as port:
            endpoint = Endpoint("speaker", f"http://127.0.0.1:{port}", "m", "secret")
            return await drive(change(endpoint), LOAD, PROMPTS, **options)

    return asyncio.run(run())


def test_closed_loop_keeps_its_number_of_requests_in_flight() -> None:
    speaker = Speaker()
    requests = ask(speaker)
    assert speaker.most == 2
    assert len(requests) == 6
    for request in requests:
        assert request.due == request.sent <= request.first <= request.ended
        assert request.first - request.sent >= 0.01
        assert len(request.texts) == 3
        assert (request.prompt_tokens, request.completion_tokens) == (4, 3)
    body = speaker.bodies[0]
    assert body["prompt"] == PROMPTS[0]
    assert (body["max_tokens"], body["min_tokens"], body["ignore_eos"]) == (3, 3, True)
    assert (body["temperature"], body["stream"]) == (0, True)
    assert speaker.headers[0] == "Bearer secret"


def test_client_of_a_strict_server_sends_only_openais_fields() -> None:
    speaker = Speaker()
    extra = {"generation_config": "{}"}
    ask(speaker, lambda e: Endpoint(e.name, e.url, e.model, strict=True, extra=extra))
    assert "ignore_eos" not in speaker.bodies[0]
    assert speaker.bodies[0]["generation_config"] == "{}"
    assert speaker.headers[0] is None


def test_open_loop_sends_when_due() -> None:
    due = [0.0, 0.01, 0.02, 0.03, 0.04, 0.3]
    speaker = Speaker(pause=0.05)
    requests = ask(speaker, due=due)
    assert [request.due for request in requests] == due
    assert all(request.sent >= request.due for request in requests)
    assert speaker.most >= 4
    assert requests[-1].sent >= 0.3


@pytest.mark.parametrize(
    ("speaker", "words"),
    [
        (Speaker(tokens=2), "2 tokens came where 3"),
        (Speaker(usage={}), "no usage"),
        (Speaker(usage={"prompt_tokens": 5, "completion_tokens": 3}), "5 prompt tokens where 4"),
        (Speaker(status=503), "HTTP 503"),
        (Speaker(tail=b'data: {"error": "fell over"}\n\n'), "fell over"),
        (Speaker(tail=b"data: {\n\n"), "no JSON"),
        (Speaker(tokens=0, usage={"prompt_tokens": 4, "completion_tokens": 3}), "no token came"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_round_with_a_wrong_answer_fails(speaker: Speaker, words: str) -> None:
    with pytest.raises(MeasureError, match=words):
        ask(speaker)


def test_round_with_cached_tokens_fails_unless_allowed() -> None:
    usage = {
        "prompt_tokens": 4,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 2},
    }
    with pytest.raises(MeasureError, match="2 prompt tokens came from a cache"):
        ask(Speaker(usage=usage))
    assert len(ask(Speaker(usage=usage), cached=True)) == 6


def test_round_with_a_dead_server_fails() -> None:
    gone = Endpoint("gone", "http://127.0.0.1:1", "m")
    with pytest.raises(MeasureError, match="gone, load"):
        asyncio.run(drive(gone, LOAD, PROMPTS))
