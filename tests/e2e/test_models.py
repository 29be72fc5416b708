"""Several models in one server: names, runs, KV files, deaths of one kernel, a later model."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import symphony
from symphony.client.views import Run

from benchmarks.checkpoints import SHAPES, make_checkpoint
from tests.e2e.programs import HANG_WASM, SAVE_WASM, wasm
from tests.e2e.test_durable import OPENER_WASM, PATH
from tests.support.gateway.system import refused
from tests.support.server.deaths import kill_role
from tests.support.server.server import (
    RunningServer,
    running_server,
    start_server,
    wait_for_end,
)
from tests.support.worker.guests import call, data, drop, main
from tests.support.worker.snippets import CREATE, KV

# Saves a file of three tokens on disk.
KEEP_WASM = wasm(
    main(
        f"""{CREATE}
        {drop("claim", call("pred", KV, 0, 3, 0, 0, 0), 200, 8)}
        {call("kv_save", KV, 100, 11, 3)}""",
        data(0, b"\x07\0\0\0\x08\0\0\0\x09\0\0\0"),
        data(100, PATH),
        locals_="(local $kv i32)",
    )
)
ASKED = [{"role": "user", "content": "The tokens of 3 texts"}]
ENOENT = -2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("models") / "small", SHAPES["small"], "fp32")


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    models = "--model", "tiny", "--model", f"other={folder}"
    with running_server(tmp_path_factory.mktemp("data"), *models, executor="torch") as server:
        asyncio.run(upload(server))
        yield server


async def upload(server: RunningServer) -> None:
    programs = {"save": SAVE_WASM, "opener": OPENER_WASM, "hang": HANG_WASM}
    async with server.client() as client:
        for name, program in programs.items():
            await client.programs.upload(program, name=name)


async def chat(server: RunningServer, model: str) -> Any:
    asked = {"model": model, "messages": ASKED, "max_tokens": 12, "temperature": 0}
    return await server.ask("POST", "/v1/chat/completions", asked)


async def test_each_route_knows_the_models_by_name(server: RunningServer) -> None:
    status, listed = await server.ask("GET", "/v1/models")
    assert status == 200
    assert [model["id"] for model in listed["data"]][:2] == ["tiny", "other"]
    assert listed["data"][0]["max_model_len"] != listed["data"][1]["max_model_len"]
    _, listed = await server.ask("GET", "/v1/models", headers={"anthropic-version": "2023-06-01"})
    assert [model["id"] for model in listed["data"]][:2] == ["tiny", "other"]
    for name in ("tiny", "other"):
        status, model = await server.ask("GET", f"/v1/models/{name}")
        assert (status, model["id"]) == (200, name)
    assert (await server.ask("GET", "/v1/models/small"))[0] == 404
    text = {"model": "other", "prompt": "a few words"}
    _, counted = await server.ask("POST", "/tokenize", text)
    _, of_tiny = await server.ask("POST", "/tokenize", {**text, "model": "tiny"})
    assert counted["max_model_len"] != of_tiny["max_model_len"]


async def test_models_answer_as_in_servers_of_their_own(
    server: RunningServer, folder: Path, tmp_path: Path
) -> None:
    found = {}
    for name in ("tiny", "other"):
        status, answer = await chat(server, name)
        assert status == 200
        assert answer["model"] == name
        found[name] = answer["choices"][0]["message"]["content"]
        status, message = await server.ask(
            "POST", "/v1/messages", {"model": name, "messages": ASKED, "max_tokens": 12}
        )
        assert (status, message["model"]) == (200, name)
    assert found["tiny"] != found["other"]
    status, answer = await chat(server, "small")
    assert (status, answer["error"]["code"]) == (404, "model_not_found")
    with running_server(tmp_path, "--model", f"other={folder}", executor="torch") as alone:
        status, answer = await chat(alone, "other")
    assert answer["choices"][0]["message"]["content"] == found["other"]


async def test_run_belongs_to_the_model_that_it_names(server: RunningServer) -> None:
    async with server.client() as client:
        with_first = await client.run("save")
        assert with_first["model"] == "tiny"
        named = await client.run("save", model="other")
        assert (named["exit_code"], named["model"]) == (0, "other")
        again = await client.runs.get(await client.runs.rerun(named["id"]))
        assert again["model"] == "other"
        listed: list[Run] = [run async for run in client.runs.list()]
        assert {run["model"] for run in listed} == {"tiny", "other"}
        error = await refused(client.run("save", model="third"))
        assert error.status == 404
        assert "third" in str(error)


async def test_attached_program_sees_the_model_that_it_names(server: RunningServer) -> None:
    sizes = []
    for model in (None, "tiny", "other"):
        async with symphony.attach(server=server.url, key=server.key, model=model) as run:
            sizes.append(run.facts.info.max_context)
    assert sizes[0] == sizes[1] != sizes[2]


async def test_kv_file_of_one_model_is_not_there_for_another(server: RunningServer) -> None:
    async with server.client() as client:
        await client.run("save", model="other")
        async with server.session() as session:  # another test may have saved it
            await session.delete(f"/v1/kv/{PATH}", params={"model": "tiny"})
        assert (await client.run("opener", model="other"))["exit_code"] == 0
        for model, status in (("tiny", 404), ("other", 200), ("third", 404)):
            assert (await server.ask("GET", f"/v1/kv/{PATH}", params={"model": model}))[0] == status
        assert (await client.run("opener", model="tiny"))["exit_code"] == ENOENT
        async with server.session() as session:
            at = f"/v1/kv/{PATH}"
            async with session.get(at, params={"model": "other", "download": "1"}) as response:
                made_by_other = await response.read()
            async with session.put(at, data=made_by_other) as response:
                assert response.status == 409
                assert (await response.json())["type"].endswith("other-model")
            async with session.delete(at, params={"model": "other"}) as response:
                assert response.status == 204
        assert (await client.run("opener", model="other"))["exit_code"] == ENOENT


async def test_death_of_one_kernel_leaves_runs_of_the_other_alone(
    server: RunningServer,
) -> None:
    async with server.client() as client:
        before = await server.pids()
        runs = {name: await client.start("hang", model=name) for name in ("tiny", "other")}
        os.kill(before["kernel-1"], signal.SIGKILL)
        status, _ = await chat(server, "tiny")  # meanwhile
        assert status == 200
        async with asyncio.timeout(60):
            while (await server.pids())["kernel-1"] in (0, before["kernel-1"]):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        status, _ = await chat(server, "other")
        assert status == 200
        for run in runs.values():  # the other's continues by the journal
            assert (await client.runs.get(run))["status"] == "running"
            assert (await client.runs.cancel(run))["status"] == "killed"
        after = await server.pids()
        assert {role for role in before if before[role] != after[role]} == {"kernel-1"}


async def test_metrics_and_statistics_name_each_model(server: RunningServer) -> None:
    for name in ("tiny", "other"):
        assert (await chat(server, name))[0] == 200
    await asyncio.sleep(1.1)  # the age of metrics
    async with server.session(server.admin_key) as session, session.get("/metrics") as response:
        lines = (await response.text()).splitlines()
    steps = [line.split() for line in lines if line.startswith("symphony:steps_total{")]
    assert [name for name, _ in steps] == [
        'symphony:steps_total{model_name="tiny"}', 'symphony:steps_total{model_name="other"}'
    ]  # fmt: skip
    assert all(float(count) > 0 for _, count in steps)
    assert lines.count("# TYPE symphony:steps_total counter") == 1
    asked = "/v1/admin/statistics?check=1"
    _, statistics = await server.ask("GET", asked, key=server.admin_key)
    assert set(statistics["kernels"]) == {"tiny", "other"}
    _, ready = await server.ask("GET", "/readyz")
    assert {role.get("model") for role in ready["roles"]} == {None, "tiny", "other"}


async def test_second_model_joins_a_data_directory_with_one(folder: Path, tmp_path: Path) -> None:
    """Its files stay the first one's, in any order; each model finds its own again."""
    tiny, other = ("--model", "tiny"), ("--model", f"other={folder}")

    async def exit_codes(server: RunningServer, *models: str) -> list[int | None]:
        async with server.client() as client:
            return [(await client.run("opener", model=name))["exit_code"] for name in models]

    with running_server(tmp_path, *tiny, executor="torch") as server:
        async with server.client() as client:
            await client.programs.upload(KEEP_WASM, name="save")
            await client.programs.upload(OPENER_WASM, name="opener")
            assert (await client.run("save"))["exit_code"] == 0
    with running_server(tmp_path, *other, *tiny, executor="torch") as server:
        assert await exit_codes(server, "tiny", "other") == [0, ENOENT]
        async with server.client() as client:
            assert (await client.run("save"))["model"] == "other"
        assert await exit_codes(server, "other") == [0]
    with running_server(tmp_path, *other, executor="torch") as server:
        assert await exit_codes(server, "other") == [0]
    assert (tmp_path / "kv" / "model").read_text() == "tiny"
    with running_server(tmp_path, *tiny, executor="torch") as server:
        assert await exit_codes(server, "tiny") == [0]


async def test_runs_of_a_kernel_that_dies_without_a_journal_fail_alone(tmp_path: Path) -> None:
    models = "--model", "a=tiny", "--model", "b=tiny", "--no-journal"
    with running_server(tmp_path, *models) as server:
        async with server.client() as client:
            await client.programs.upload(HANG_WASM, name="hang")
            kept, lost = [await client.start("hang", model=name) for name in ("a", "b")]
            os.kill((await server.pids())["kernel-1"], signal.SIGKILL)
            ended = await wait_for_end(client, lost)
            assert (ended["status"], ended["reason"]) == ("failed", "the kernel died")
            assert (await client.runs.get(kept))["status"] == "running"
            await kill_role(server, "kernel")
            assert (await wait_for_end(client, kept))["status"] == "failed"


def test_two_models_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="two models have the name tiny"):
        start_server(tmp_path, "--model", "tiny", "--model", "tiny")
