"""Record one ReACT run as a LIP, traced, and as a client of a prompt server: `make react-run`.

Writes docs/how-it-works/figures/react-run.json, from which `tools/diagrams` draws the timeline. The
server, the model, the prompts and the tool's answers are the same for both. The client lies
`ONE_WAY_MS` from the server: it sleeps for so long before and after each request. The LIP's own
client does, too, once.
"""

import asyncio
import json
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
from symphony import AsyncClient

from examples.demo import server
from examples.tool_server import search

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/how-it-works/figures/react-run.json"
PROGRAM = ROOT / "examples/react/rust"
TOOL = ROOT / "examples/tool_server.py"
ONE_WAY_MS = 25
_SHOWN = {("gateway", "example.search"), ("kernel", "step")}
TOOL_MS = 20  # of examples/tool_server.py, which answers at once otherwise
QUESTION = "Where does the Lys rise?"
QUERIES = ["the lys", "lys rises", "ghent lys"]
THOUGHT_TOKENS, ANSWER_TOKENS = 16, 16
PROMPT = (
    "Find out what is asked. Each thought ends with an action, Search[what] or "
    "Finish[answer]; an observation follows.\n\nQuestion: {question}\n"
)


def configured(folder: str) -> str:
    """Write the configuration of a server with the tool; return its path."""
    command = json.dumps([sys.executable, str(TOOL), "--delay-ms", str(TOOL_MS)])
    path = Path(folder, "symphony.toml")
    path.write_text(f'[tools.example]\ncommand = {command}\ntenants = ["default"]\n')
    return str(path)


async def as_lip(client: AsyncClient) -> dict[str, Any]:
    """Run the program; return its trace's spans of calls and steps, in ms from the request."""
    request = {
        "question": QUESTION, "queries": QUERIES, "steps": len(QUERIES), "ignore_eos": True,
        "thought_tokens": THOUGHT_TOKENS, "answer_tokens": ANSWER_TOKENS, "temperature": 0,
    }  # fmt: skip
    began = time.perf_counter()
    await asyncio.sleep(ONE_WAY_MS / 1e3)
    sent = time.perf_counter()
    result = await client.run("react", request, trace=True)
    await asyncio.sleep(ONE_WAY_MS / 1e3)
    took = time.perf_counter() - began
    trace = await client.runs.trace(result["id"])
    names = {
        event["pid"]: event["args"]["name"]
        for event in trace["traceEvents"]
        if event["name"] == "process_name"
    }
    spans = [
        {
            "name": "tool" if names[event["pid"]] == "gateway" else "step",
            "begin": round(event["ts"] / 1e3, 3),
            "ms": round(event["dur"] / 1e3, 3),
        }
        for event in trace["traceEvents"]
        if event["ph"] == "X" and (names[event["pid"]], event["name"]) in _SHOWN
    ]
    return {
        "ms": round(took * 1e3, 3), "sent": round((sent - began) * 1e3, 3), "spans": spans,
        "usage": result["usage"], "messages": result["messages"],
    }  # fmt: skip


async def as_client(url: str, key: str, observations: list[str]) -> dict[str, Any]:
    """Do the same as a client: a request a text, and the tool in the client's own process."""
    spans: list[dict[str, Any]] = []
    prefilled = 0
    headers = {"Authorization": f"Bearer {key}"}
    began = time.perf_counter()

    def note(name: str, since: float, **more: Any) -> None:
        now = time.perf_counter()
        begin, took = (since - began) * 1e3, (now - since) * 1e3
        spans.append({"name": name, "begin": round(begin, 3), "ms": round(took, 3), **more})

    async with aiohttp.ClientSession(url, headers=headers) as session:

        async def ask(prompt: str, count: int) -> str:
            nonlocal prefilled
            body = {"model": "tiny", "prompt": prompt, "max_tokens": count, "temperature": 0,
                    "ignore_eos": True}  # fmt: skip
            await asyncio.sleep(ONE_WAY_MS / 1e3)
            since = time.perf_counter()
            async with session.post("/v1/completions", json=body) as answer:
                found = await answer.json()
            cached = found["usage"].get("prompt_tokens_details", {}).get("cached_tokens", 0)
            prompt_tokens = found["usage"]["prompt_tokens"]
            prefilled += prompt_tokens - cached
            note("request", since, prompt=prompt_tokens, cached=cached, new=count)
            await asyncio.sleep(ONE_WAY_MS / 1e3)
            text: str = found["choices"][0]["text"]
            return text

        text = PROMPT.format(question=QUESTION)
        for query, observation in zip(QUERIES, observations, strict=True):
            text += "Thought:" + await ask(f"{text}Thought:", THOUGHT_TOKENS)
            since = time.perf_counter()
            await asyncio.sleep(TOOL_MS / 1e3)
            assert await search(query) == observation
            note("tool", since)
            text += f"\nAction: Search[{query}]\nObservation: {observation}\n"
        await ask(f"{text}Answer:", ANSWER_TOKENS)
    took = round((time.perf_counter() - began) * 1e3, 3)
    return {"ms": took, "spans": spans, "prefilled": prefilled}


async def record() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        async with (
            server(Path(folder), "--config", configured(folder)) as place,
            AsyncClient(place["url"], place["key"], retries=0) as client,
        ):
            await client.programs.upload((PROGRAM / "build/react.wasm").read_bytes(), "react")
            for _ in range(2):  # the first of each warms up
                lip = await as_lip(client)
                steps = [json.loads(message) for message in lip["messages"][:-1]]
                end = json.loads(lip["messages"][-1])
                observations = [step["observation"] for step in steps]
                plain = await as_client(place["url"], place["key"], observations)
    lip["prefilled"] = end["prefilled"]
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "one_way_ms": ONE_WAY_MS,
        "tool_ms": TOOL_MS,
        "lip": lip,
        "client": plain,
    }


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(json.dumps(asyncio.run(record()), indent=None) + "\n")
