"""Playing an example over HTTP, in the real processes, and what it cost the kernel."""

import asyncio
import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from symphony_kernel import tiny_model
from symphony_runtime.cli.projects import build
from symphony_runtime.client import Client
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from tests.support.executor.models import Checkpoint
from tests.support.kernel.dense_attention import Dense
from tests.support.server.server import REPOSITORY, RunningServer

EXAMPLES = REPOSITORY / "examples"
RUN_SECONDS_MAX = 200  # of an example, on a machine that does much else
COUNTERS = ("tokens_computed", "prefill_tokens", "decode_tokens", "decode_rows", "decode_steps")


@cache
def built(folder: Path) -> Path:
    """Build an example once in a session, however many tests run it."""
    return build(folder)


def scenario(name: str) -> dict[str, Any]:
    """Return what a folder below examples/ says that it does."""
    loaded: dict[str, Any] = json.loads((EXAMPLES / name / "scenario.json").read_text())
    return loaded


def play(
    server: RunningServer, folder: Path, given: object, *messages: str
) -> tuple[dict[str, Any], dict[str, int]]:
    """Run a program; its result, and by how much the counters grew. All pages must come back."""

    async def main() -> tuple[dict[str, Any], dict[str, int]]:
        wasm = built(folder)
        before = await server.wait_until_idle()
        async with server.client() as client:
            uploaded = await client.upload(wasm.read_bytes(), name=wasm.stem)
            run = await client.start(uploaded["id"], input=given)
            for message in messages:
                await client.send(run, message.encode())
            if messages:  # a program that wants none may have ended by now
                await client.send(run, b"", close=True)
            await ended(server, client, run)
            result = await client.result(run)
        after = await server.wait_until_idle()
        assert after["pages_free"] == before["pages_free"]
        return result, {name: after[name] - before[name] for name in COUNTERS}

    return asyncio.run(main())


async def ended(server: RunningServer, client: Client, run: str) -> None:
    """Wait for a run's end; one that hangs tells what the kernel and the log know."""
    try:
        async with asyncio.timeout(RUN_SECONDS_MAX):
            async for _ in client.events(run):
                pass
    except TimeoutError:
        counters, words = await server.counters(), server.log.read_text()
        raise AssertionError(f"{run} goes on and on: {counters}\n{words}") from None


def answers(result: dict[str, Any]) -> list[Any]:
    """Return the messages of a run that went well, each JSON."""
    assert (result["status"], result["exit_code"]) == ("exited", 0), result
    return [json.loads(message) for message in result["messages"]]


def as_told(server: RunningServer, name: str, folder: Path) -> list[Any]:
    """Play a program on its scenario, and check what that expects; the messages."""
    told = scenario(name)
    result, _ = play(server, folder, told["input"], *told.get("messages", []))
    said = answers(result)
    assert len(said) == told["expect"].get("messages", len(said)) > 0
    return said


@cache
def tiny_checkpoint() -> Checkpoint:
    """Return the served model's weights, for an oracle (`Dense`)."""
    return Checkpoint(tiny_model.path(), AutoModelForCausalLM.from_pretrained(tiny_model.path()))


def tokens_of(text: str) -> list[int]:
    """Return a text's tokens as a program's `tokenize` gives them."""
    tokenizer = Tokenizer.from_file(str(Path(tiny_model.path()) / "tokenizer.json"))
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def assert_greedy(dense: Dense, seen: list[int], position: int, text: str) -> None:
    """Check that a text is the best one, token by token, behind the oracle's entries `seen`.

    Its tokens are at `position` and after it, and see all that there is.
    """
    tokens = tokens_of(text)
    places = [seen[-1]]
    for i, token in enumerate(tokens[:-1]):
        places.append(dense.add(token, position + i, (*seen, *places[1:])))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the server's spin beside these
    best = dense.logits(places).argmax(-1).tolist()
    torch.set_num_threads(threads)
    assert best == tokens
