"""The examples: where they are, what their scenarios expect, and how a server plays them."""

import asyncio
import json
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from symphony import AsyncClient, message_bytes
from symphony.client.views import RunResult
from symphony_kernel import tiny_model
from symphony_runtime.cli.projects import build
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from tests.support.executor.models import Checkpoint
from tests.support.executor.peer import one_thread
from tests.support.kernel.dense_attention import Dense
from tests.support.server.server import REPOSITORY, RunningServer

EXAMPLES = REPOSITORY / "examples"
LANGUAGES = ("rust", "assemblyscript")
# Every program of an example, by its folder below examples/ ("chat", "rag/rust").
PROGRAMS = sorted(
    str(project.parent.relative_to(EXAMPLES))
    for depth in ("*", "*/*")
    for kind in ("Cargo.toml", "asconfig.json")
    for project in EXAMPLES.glob(f"{depth}/{kind}")
)
RUN_SECONDS_MAX = 200  # of an example, on a machine that does much else
COUNTERS = ("tokens_computed", "prefill_tokens", "decode_tokens", "decode_rows", "decode_steps")
Played = tuple[RunResult, dict[str, int]]


@cache
def built(folder: Path) -> Path:
    """Build an example once in a session, and only if a source is newer than its module."""
    modules = list(folder.glob("build/*.wasm"))
    if len(modules) == 1 and modules[0].stat().st_mtime > max(map(_changed, _sources(folder))):
        return modules[0]
    return build(folder)


def _changed(path: Path) -> float:
    return path.stat().st_mtime


def _sources(folder: Path) -> Iterator[Path]:
    """Yield the files that a module is made of, the SDKs' and those of `symphony build` too."""
    made = {"build", "target", "node_modules", "__pycache__"}
    for place in (folder, REPOSITORY / "guest_sdk", REPOSITORY / "runtime/symphony_runtime/cli"):
        for parent, folders, names in os.walk(place):
            folders[:] = [name for name in folders if name not in made]
            yield from (Path(parent, name) for name in names)


def scenario(program: str) -> dict[str, Any]:
    folder = EXAMPLES / program.split("/")[0]
    loaded: dict[str, Any] = json.loads((folder / "scenario.json").read_text())
    return loaded


def play(server: RunningServer, program: str | Path, given: object, *messages: str) -> Played:
    """Run a program of `PROGRAMS`, or of a folder; all pages and names must come back.

    Returns its result, and by how much the kernel's counters grew.
    """

    async def main() -> Played:
        wasm = built(EXAMPLES / program)
        before = await server.wait_until_idle()
        async with server.client() as client:
            uploaded = await client.programs.upload(wasm.read_bytes(), name=wasm.stem)
            run = await client.start(uploaded["id"], input=given)
            for message in messages:
                await client.runs.send(run, message.encode())
            if messages:  # a program that reads none may have ended by now
                await client.runs.send(run, b"", close=True)
            await wait_until_ended(server, client, run)
            result = await client.runs.get(run)
        after = await server.wait_until_idle()
        for kept in ("pages_free", "names"):
            assert after[kept] == before[kept]
        return result, {name: after[name] - before[name] for name in COUNTERS}

    return asyncio.run(main())


async def wait_until_ended(server: RunningServer, client: AsyncClient, run: str) -> None:
    """Wait for a run's end; if it hangs, fail with the counters and the server's log."""
    try:
        async with asyncio.timeout(RUN_SECONDS_MAX):
            async for _ in client.runs.events(run):
                pass
    except TimeoutError:
        counters, words = await server.counters(), server.log.read_text()
        raise AssertionError(f"{run} does not end: {counters}\n{words}") from None


def answers(result: RunResult) -> list[Any]:
    """Return the messages, each JSON, of a run that must have succeeded."""
    assert (result["status"], result["exit_code"]) == ("exited", 0), result
    return [json.loads(message_bytes(message)) for message in result["messages"]]


@cache
def play_scenario(server: RunningServer, program: str) -> Played:
    """Play a program's scenario once in a session, and check what that expects."""
    given = scenario(program)
    result, grown = play(server, program, given["input"], *given.get("messages", []))
    expected = given["expect"]
    assert (result["status"], result["exit_code"]) == (expected["status"], expected["exit_code"])
    assert len(result["messages"]) == expected.get("messages", len(result["messages"])) > 0
    return result, grown


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

    Its tokens are at `position` and after it, and see all earlier entries.
    """
    tokens = tokens_of(text)
    places = [seen[-1]]
    for i, token in enumerate(tokens[:-1]):
        places.append(dense.add(token, position + i, (*seen, *places[1:])))
    with one_thread():
        best = dense.logits(places).argmax(-1).tolist()
    assert best == tokens
