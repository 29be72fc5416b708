"""The client's types: what the OpenAPI document says, and what users' programs may rely on."""

import subprocess
import sys
from pathlib import Path

import pytest
from symphony.client.runs import RunOptions
from symphony_runtime.gateway.api.schemas import SCHEMAS

from tools.client_types import PAGE, client_types

ROOT = PAGE.parents[2]
PROGRAM = """
import asyncio
from pathlib import Path
from symphony import AsyncClient, Client, Event, ServerError
from symphony.client.views import RunResult

def spent(result: RunResult) -> int:
    return result["usage"]["cpu_ms"] if result["usage"] else 0

def main() -> None:
    with Client("http://127.0.0.1:8700", "key", retries=2) as client:
        program = client.programs.upload(Path("chat.wasm").read_bytes(), name="chat")
        result = client.run(program["id"], {"prompt": "Hi"}, limits={"tokens": 10}, trace=True)
        spent(result)
        events: list[Event] = list(client.stream("chat", "Hi"))
        with client.runs.connect(result["id"]) as socket:
            socket.send("more")
            message: bytes | None = socket.receive()
        with client.kv.download("notes") as file:
            data: bytes = file.read()
        client.kv.upload("notes", data, public=False)
        try:
            client.runs.cancel(result["id"])
        except ServerError as error:
            status: int = error.status

async def amain() -> None:
    async with AsyncClient() as client:
        names: list[str | None] = [program["name"] async for program in client.programs.list()]
        async for event in client.stream("chat", priority=5):
            event.kind.upper()

main()
asyncio.run(amain())
"""
WRONG = """
from symphony import Client

client = Client()
client.run("chat", limit={"tokens": 10})
client.run("chat", priority="high")
client.run("chat")["outputs"]
client.programs.upload("chat.wasm")
"""


def test_views_are_those_of_the_openapi_document() -> None:
    assert PAGE.read_text() == client_types(), "python -m tools.client_types"


def test_options_of_a_run_are_those_of_its_request() -> None:
    wanted = set(SCHEMAS["RunRequest"]["properties"]) - {"input", "stream"}
    assert set(RunOptions.__annotations__) == wanted | {"idempotency_key"}


@pytest.mark.slow
def test_users_programs_pass_strict_checks_and_their_mistakes_do_not(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "wrong.py").write_text(WRONG)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "program.py", "wrong.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
        env={"PATH": "/usr/bin", "MYPYPATH": str(ROOT), "HOME": str(tmp_path)},
    )  # fmt: skip
    # Of an installed package mypy reports nothing; here it is on the path.
    lines = [line for line in done.stdout.splitlines() if not line.startswith(str(ROOT))]
    found = [line.split(":")[:2] for line in lines if ": error: " in line]
    assert found == [["wrong.py", number] for number in "5678"], done.stdout
