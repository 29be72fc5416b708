"""Constraints in the real processes: kill -9 of the kernel changes no text."""

import asyncio
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from symphony_runtime.cli.projects import build
from symphony_runtime.client import Client

from tests.support.server import deaths
from tests.support.server.server import RunningServer, running_server

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "json_schema"


async def until_it_decodes(server: RunningServer, before: int) -> None:
    async with asyncio.timeout(20):
        while (await server.counters())["decode_tokens"] < before + 60:  # noqa: ASYNC110 - it is asked
            await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_constrained_texts_are_the_same_after_kernel_deaths(tmp_path: Path) -> None:
    given = json.loads((EXAMPLE / "scenario.json").read_text())["input"] | {"n": 12, "seed": 9}
    wasm = build(EXAMPLE).read_bytes()

    async def run(server: RunningServer, client: Client, *, kill: bool) -> list[Any]:
        before = (await server.counters())["decode_tokens"]
        started = await client.start("texts", input=given)
        if kill:
            await until_it_decodes(server, before)
            await deaths.kill(server, "kernel")
        async for _ in client.events(started):
            pass
        result = await client.result(started)
        assert (result["status"], result["exit_code"]) == ("exited", 0), result
        return list(result["messages"])

    with running_server(tmp_path, "--model", "tiny") as server:
        async with server.client() as client:
            await client.upload(wasm, name="texts")
            wanted = await run(server, client, kill=False)
            assert await run(server, client, kill=True) == wanted
    assert len(wanted) == 12
    for message in wanted:
        jsonschema.validate(json.loads(message)["value"], given["schema"])
