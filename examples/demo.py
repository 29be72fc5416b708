"""The demonstration: `make demo`.

Starts a server on the embedded model in a folder of its own, uploads every example over HTTP, runs
each on its scenario, shows what it writes as it comes, and stops the server.
"""

import asyncio
import contextlib
import json
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from symphony import AsyncClient, ClientError

HERE = Path(__file__).resolve().parent
READY_SECONDS_MAX = 120
STOP_SECONDS_MAX = 30
# (folder of the program, folder of its scenario, what to look at)
PLAYS = [
    ("completion", "completion", "a plain completion, streamed as the program sends it"),
    (
        "parallel_suffixes/rust",
        "parallel_suffixes",
        "one prefix computed once, sixteen branches in one batch a step",
    ),
    (
        "parallel_suffixes/assemblyscript",
        "parallel_suffixes",
        "the same program in AssemblyScript",
    ),
    ("beam_search", "beam_search", "beams as forks of one KV file"),
    ("best_of_n", "best_of_n", "sampled branches, the best by log-probability"),
    ("chat", "chat", "a conversation whose KV stays between messages"),
    ("swarm", "swarm", "agents that share a context's KV and tell each other what they wrote"),
    (
        "graph_of_thoughts",
        "graph_of_thoughts",
        "branches that the model judges, the best merged into one KV file",
    ),
    ("tree_of_thoughts", "tree_of_thoughts", "a search over forks, as wide as asked for"),
    ("skeleton", "skeleton", "an outline, then all of its points side by side"),
    ("rag/rust", "rag", "documents that the program keeps computed, in any order"),
]


class DemoError(Exception):
    """Something did not go as the demonstration promises."""


def say(text: str = "") -> None:
    """Write a line."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


@contextlib.asynccontextmanager
async def server(data_dir: Path, *options: str) -> AsyncIterator[dict[str, Any]]:
    """Start `symphony serve` on a free port; give {url, key}; stop it by SIGTERM."""
    with (data_dir / "server.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "symphony_runtime.cli", "serve"),
            *("--port", "0", "--data-dir", str(data_dir), *options),
            stdout=log,
            stderr=log,
        )
    try:
        async with asyncio.timeout(READY_SECONDS_MAX):
            place = await _wait_until_ready(process, data_dir)
        yield place
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_SECONDS_MAX):
                await process.wait()
        except TimeoutError:
            process.kill()
    if process.returncode != 0:
        words = (data_dir / "server.log").read_text().splitlines()[-20:]
        raise DemoError("\n".join([f"the server ended with {process.returncode}:", *words]))


async def _wait_until_ready(process: asyncio.subprocess.Process, data_dir: Path) -> dict[str, Any]:
    place = data_dir / "server.json"
    while process.returncode is None:
        if place.exists():
            found = json.loads(place.read_text())
            key = (data_dir / "default.key").read_text().strip()
            with contextlib.suppress(ClientError):
                async with AsyncClient(found["url"], key, retries=0) as client:
                    if (await client.ready())[0]:
                        admin = (data_dir / "admin.key").read_text().strip()
                        return {"url": found["url"], "key": key, "admin": admin}
        await asyncio.sleep(0.1)
    raise DemoError(f"the server ended with {process.returncode} before it was ready")


async def show(client: AsyncClient, run: str, messages: list[str], *, lines: bool) -> None:
    """Write what a run sends as it comes; hand it the next message when an answer has ended.

    With `lines` each message is an answer; else an empty one ends it, as in the chat example.
    """
    waiting = list(messages)

    async def talk() -> None:
        if waiting:
            say(f"   > {waiting[0]}")
            await client.runs.send(run, waiting.pop(0).encode(), close=not waiting)

    await talk()
    fresh = True  # at the beginning of a line
    async for event in client.runs.events(run):
        if event.kind != "message":
            continue
        text = event.message().decode("utf-8", "replace")
        for piece in text.splitlines(keepends=True):
            sys.stdout.write(("   | " if fresh else "") + piece)
            fresh = piece.endswith("\n")
        if not fresh and (lines or not text):
            say()
            fresh = True
        sys.stdout.flush()
        if lines or not text:
            await talk()
    if not fresh:
        say()


async def play(
    client: AsyncClient, admin: AsyncClient, program: Path, scenario: dict[str, Any]
) -> None:
    """Upload one program and run it on its scenario; say what it cost."""
    wasm = next((program / "build").glob("*.wasm"))
    uploaded = await client.programs.upload(wasm.read_bytes(), name=wasm.stem)
    say(f"   {wasm.name}: {uploaded['size'] / 1024:.0f} KB, {len(uploaded['imports'])} imports")
    before = (await admin.admin.statistics())["kernel"]
    began = time.perf_counter()
    run = await client.start(uploaded["id"], scenario["input"])
    await show(client, run, scenario.get("messages", []), lines="messages" in scenario["expect"])
    seconds = time.perf_counter() - began
    result = await client.runs.get(run)
    if result["status"] != "exited" or result["exit_code"] != 0:
        raise DemoError(f"{wasm.name} {result['status']}: {result['reason']}")
    after = (await admin.admin.statistics())["kernel"]
    usage, steps = result["usage"], after["decode_steps"] - before["decode_steps"]
    assert usage is not None, "it has ended"
    batch = (after["decode_rows"] - before["decode_rows"]) / max(1, steps)
    say(
        f"   = {usage['prompt_tokens']} tokens prefilled, {usage['cached_tokens']} entries shared, "
        f"{usage['completion_tokens']} tokens chosen, {batch:.1f} rows a decode step, "
        f"{seconds:.1f} s"
    )


async def demonstrate() -> None:
    """Serve, play every example, stop, and check that nothing is left."""
    with tempfile.TemporaryDirectory(prefix="symphony-demo-") as folder:
        began = time.perf_counter()
        say("starting gateway, worker and kernel on the tiny model")
        async with server(Path(folder)) as place:
            say(f"ready at {place['url']} after {time.perf_counter() - began:.1f} s")
            async with (
                AsyncClient(place["url"], place["key"], retries=0) as client,
                AsyncClient(place["url"], place["admin"], retries=0) as admin,
            ):
                for program, scenario, words in PLAYS:
                    say(f"\n{program}: {words}")
                    told = json.loads((HERE / scenario / "scenario.json").read_text())
                    await play(client, admin, HERE / program, told)
                left = (await admin.admin.statistics(check=True))["kernel"]
                if left["pages_free"] != left["pages"]:
                    raise DemoError(
                        f"{left['pages'] - left['pages_free']} pages were not given back"
                    )
                say(f"\nall {left['pages']} KV pages are free again; stopping")
        say("stopped cleanly")


def main() -> int:
    """Run the demonstration; the exit code says whether it went as promised."""
    try:
        asyncio.run(demonstrate())
    except (DemoError, ClientError, TimeoutError) as error:
        say(f"demo: {type(error).__name__}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
