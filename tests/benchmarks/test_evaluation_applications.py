"""The applications on a real server: a program, and a client of the same server's prompt route."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from symphony_runtime.cli.projects import build

from benchmarks.checkpoints import SHAPES, make_checkpoint
from benchmarks.evaluation.clients import ProgramRunner, PromptRunner
from benchmarks.evaluation.systems import configuration
from benchmarks.evaluation.tasks import APPLICATIONS, Material, Task
from benchmarks.serving.client import Endpoint
from benchmarks.serving.servers import first_model
from tests.support.server.server import REPOSITORY, RunningServer, running_server

PROGRAM = REPOSITORY / "benchmarks" / "evaluation" / "program"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), SHAPES["small"], "fp32")


@pytest.fixture(scope="module")
def small(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    data = tmp_path_factory.mktemp("server")
    config = data / "symphony.toml"
    config.write_text(configuration())
    options = ("--model", str(model), "--dtype", "fp32", "--threads", "1", "--config", str(config))
    with running_server(data, *options, executor="torch") as server:
        yield server


@pytest.fixture(scope="module")
def wasm() -> bytes:
    return build(PROGRAM).read_bytes()


def short(material: Material, name: str, index: int = 0) -> Task:
    """A task with a tool that takes no time."""
    return material.task(APPLICATIONS[name].scaled(tool_ms=0), "test", index)


async def endpoint(server: RunningServer) -> Endpoint:
    return Endpoint("route", server.url, await first_model(server.url, server.key), server.key)


@pytest.mark.parametrize("name", sorted(set(APPLICATIONS) - {"got", "swarm"}))
async def test_application_program_and_client_give_the_same_text(
    small: RunningServer, model: Path, wasm: bytes, name: str
) -> None:
    material = Material(model)
    context = material.context()[:200]
    where = await endpoint(small)
    async with (
        PromptRunner(where, context, material) as prompts,
        ProgramRunner(where, context, wasm) as programs,
    ):
        await prompts.prepare(2)
        await programs.prepare(2)
        task = short(material, name)
        expected = await prompts.run(task, 0.0)
        assert await programs.run(task, 0.0) == expected
        assert prompts.seen.generated == 2 + APPLICATIONS[name].generated


async def test_application_that_merges_computes_less_and_generates_as_much(
    small: RunningServer, model: Path, wasm: bytes
) -> None:
    material = Material(model)
    context = material.context()[:200]

    async def used(name: str) -> tuple[int, int, int]:
        async with ProgramRunner(await endpoint(small), context, wasm) as programs:
            await programs.prepare(1)
            programs.seen.prompt_tokens = programs.seen.generated = 0
            tokens = await programs.run(short(material, name), 0.0)
            return programs.seen.prompt_tokens, programs.seen.generated, len(tokens)

    for name in ("got", "swarm"):
        merged, exact = await used(name), await used(f"{name}-exact")
        assert merged[0] < exact[0]
        assert merged[1:] == exact[1:]
