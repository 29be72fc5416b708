"""Python as source on real processes: the examples' tokens, and programs that go wrong."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from symphony import AsyncClient, ServerError
from symphony.client.views import RunResult

from tests.support.examples import answers, play_scenario, scenario
from tests.support.server.server import REPOSITORY, RunningServer
from tests.support.worker.python_scripts import COLLECTING, HOSTILE

EXAMPLES = REPOSITORY / "examples" / "python"
TYPE = "text/x-python"


async def run_source(
    client: AsyncClient, source: str, given: Any = None, **limits: int
) -> RunResult:
    program = await client.programs.upload(source.encode(), None, TYPE)
    return await client.run(program["id"], given, limits=limits or None)


async def run_file(server: RunningServer, path: Path, given: dict[str, Any]) -> Any:
    """Run an example's own file; return what its function returned."""
    async with server.client() as client:
        result = await run_source(client, path.read_text(), given)
    assert result["status"] == "exited", result["reason"]
    (message,) = answers(result)
    return message


async def play(server: RunningServer, program: str) -> list[Any]:
    result, _ = await asyncio.to_thread(play_scenario, server, program)
    return answers(result)


async def test_parallel_suffixes_in_source_gives_the_tokens_of_the_rust_one(
    server: RunningServer,
) -> None:
    given = scenario("parallel_suffixes")["input"]
    texts = await run_file(server, EXAMPLES / "parallel_suffixes.py", given)
    assert texts == [each["text"] for each in await play(server, "parallel_suffixes/rust")]


async def test_react_in_source_gives_the_tokens_of_the_rust_one(server: RunningServer) -> None:
    source = (EXAMPLES / "react.py").read_text()
    async with server.client() as client:
        permitted = '# symphony: {"permissions": ["tool"]}\n' + source
        result = await run_source(client, permitted, scenario("react")["input"])
        refused = await run_source(client, source, scenario("react")["input"])
    (answer,) = answers(result)
    *steps, last = await play(server, "react/rust")
    assert answer.pop("steps") == steps
    assert answer == last
    assert "EACCES" in str(refused["reason"])


async def test_tree_search_in_source_gives_the_tokens_of_the_rust_one(
    server: RunningServer,
) -> None:
    given = scenario("tree_of_thoughts")["input"]
    best = await run_file(server, EXAMPLES / "tree_of_thoughts.py", given)
    (said,) = await play(server, "tree_of_thoughts")
    for key in ("text", "steps", "generated", "prefilled"):
        assert best[key] == said[key]
    for mine, theirs in zip(best["levels"], said["levels"], strict=True):
        assert mine == pytest.approx([each["score"] for each in theirs], abs=2e-5)


async def test_rag_in_source_gives_the_tokens_of_the_rust_one(server: RunningServer) -> None:
    given = scenario("rag")
    questions = [json.loads(message) for message in given["messages"]]
    answered = await run_file(
        server, EXAMPLES / "rag.py", {"questions": questions, **given["input"]}
    )
    said = {each["id"]: each["text"] for each in await play(server, "rag/rust")}
    assert answered["texts"] == [said[question["id"]] for question in questions]


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_script_ends_with_a_reason_and_frees_everything(
    server: RunningServer, name: str
) -> None:
    source, reason = HOSTILE[name]
    before = await server.wait_until_idle()
    async with server.client() as client:
        endless = reason in ("", "cpu time limit")
        result = await run_source(client, source, cpu_ms=300 if endless else 5_000)
    said = f"{result['status']} {result['reason']} {result.get('log')} {result['messages']}"
    assert reason in said, said
    assert (await server.wait_until_idle())["pages_free"] == before["pages_free"]


async def test_mistake_in_the_syntax_is_refused_with_its_place(client: AsyncClient) -> None:
    with pytest.raises(ServerError, match="line 2, column 7: SyntaxError: invalid syntax"):
        await run_source(client, "x = 1\ndef f(:\n")


async def test_exception_ends_the_run_with_the_lines_of_the_source(client: AsyncClient) -> None:
    source = (
        "import symphony\n@symphony.program\nasync def f(n: int = 1):\n"
        "    await symphony.KvFile.open('nowhere')\n"
    )
    result = await run_source(client, source, {"n": 2})
    unknown = await run_source(client, source, {"m": 2})
    assert result["status"] == "trapped"
    assert 'File "main.py", line 4, in f\n' in str(result["reason"])
    assert "ENOENT: kv_open: ENOENT" in str(result["reason"])
    assert "unexpected keyword argument 'm'" in str(unknown["reason"])


async def test_collector_keeps_what_is_in_use_when_it_runs_at_every_allocation(
    client: AsyncClient,
) -> None:
    result = await run_source(client, COLLECTING)
    assert result["output"] == "511 ['0', '1', '2'] bzbz 1900 [3, 2, 1]", result["reason"]
