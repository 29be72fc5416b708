"""LoRA adapters on a real server with the tiny model: merged weights, commands, a kill."""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from symphony_kernel import tiny_model

from benchmarks.checkpoints import make_adapter
from tests.support.executor.adapters import merge
from tests.support.executor.models import load
from tests.support.server.server import RunningServer, running_server

PROMPT = [41, 87, 112, 260, 19, 77, 203, 5, 90, 31]
TOKENS = 24


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of adapters for the tiny model, by names."""
    folder = tmp_path_factory.mktemp("adapters")
    return {
        name: make_adapter(folder / name, tiny_model.path(), rank=rank, seed=rank, lora_alpha=64)
        for name, rank in (("e2e-one", 4), ("e2e-two", 16))
    }


@pytest.fixture(scope="module")
def expected(adapters: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The greedy tokens of the model without an adapter, and with each merged into its weights."""
    merged = tmp_path_factory.mktemp("merged")
    folders = {
        name: merge(tiny_model.path(), path, merged / name) for name, path in adapters.items()
    }
    found = {}
    for name, folder in {"": tiny_model.path(), **folders}.items():
        rig = load(folder)
        found[name] = rig.generate(np.array(PROMPT, np.uint32), TOKENS)
        rig.close()
    assert len({str(each) for each in found.values()}) == 3
    return found


async def complete(session: aiohttp.ClientSession, adapter: str, **more: Any) -> list[int]:
    body = {
        "model": f"tiny:{adapter}" if adapter else "tiny", "prompt": PROMPT, "max_tokens": TOKENS,
        "ignore_eos": True, "return_token_ids": True, "temperature": 0, **more,
    }  # fmt: skip
    async with session.post("/v1/completions", json=body) as response:
        told = await response.json()
        assert response.status == 200, told
    tokens: list[int] = told["choices"][0]["token_ids"]
    return tokens


def session(server: RunningServer) -> aiohttp.ClientSession:
    headers = {"Authorization": f"Bearer {server.key}"}
    return aiohttp.ClientSession(server.url, headers=headers)


async def upload(server: RunningServer, adapters: dict[str, Path]) -> None:
    async with server.client() as client:
        for name, folder in adapters.items():
            with (folder / "adapter_model.safetensors").open("rb") as weights:
                config = (folder / "adapter_config.json").read_text()
                await client.adapters.upload(name, config, weights)


async def test_mixed_requests_equal_merged_weights(
    server: RunningServer, adapters: dict[str, Path], expected: dict[str, Any]
) -> None:
    await upload(server, adapters)
    names = ["", "e2e-one", "e2e-two"] * 5
    async with session(server) as asking:
        found = await asyncio.gather(*(complete(asking, name) for name in names))
        assert found == [expected[name] for name in names]
        several = await complete(asking, "e2e-two", n=2)
        assert several == expected["e2e-two"]
    await server.wait_until_idle()


def test_command_uploads_lists_and_deletes(
    server: RunningServer, adapters: dict[str, Path]
) -> None:
    put = server.symphony("adapters", "put", str(adapters["e2e-one"]), "by-command")
    assert (put.returncode, put.stdout) == (0, "by-command  tiny:by-command  rank 4\n"), put.stderr
    listed = server.symphony("adapters", "list", "--json")
    names = [each["name"] for each in json.loads(listed.stdout)]
    assert "by-command" in names
    assert "tiny:by-command" in server.symphony("adapters", "list").stdout
    shown = json.loads(server.symphony("adapters", "stat", "by-command", "--json").stdout)
    assert shown["rank"] == 4
    assert server.symphony("adapters", "rm", "by-command").returncode == 0
    gone = server.symphony("adapters", "rm", "by-command")
    assert gone.returncode != 0
    assert "symphony adapters list" in gone.stderr
    missing = server.symphony("adapters", "put", str(adapters["e2e-one"].parent))
    assert missing.returncode != 0
    assert "adapter_config.json" in missing.stderr


async def test_adapter_that_does_not_fit_is_refused_in_words(
    server: RunningServer, adapters: dict[str, Path], tmp_path: Path
) -> None:
    folder = adapters["e2e-one"]
    tensors = load_file(folder / "adapter_model.safetensors")
    name = next(iter(tensors))
    tensors[name] = tensors[name][:, :-1].contiguous()
    save_file(tensors, tmp_path / "wrong.safetensors")
    config = (folder / "adapter_config.json").read_text()
    for weights, words in (
        ((tmp_path / "wrong.safetensors").read_bytes(), f"'{name}' has shape"),
        (b"\xff" * 1_000, "adapter_model.safetensors is not a safetensors file"),
    ):
        form = aiohttp.FormData()
        form.add_field("config", config)
        form.add_field("file", weights, filename="f")
        async with (
            session(server) as asking,
            asking.put("/v1/adapters/wrong", data=form) as response,
        ):
            told = await response.json()
        assert (response.status, told["type"]) == (400, "urn:symphony:problem:bad-adapter")
        assert told["detail"].startswith(words)
        assert str(server.data_dir) not in told["detail"]


async def test_answers_are_the_same_after_the_kernel_was_killed(
    tmp_path: Path, adapters: dict[str, Path], expected: dict[str, Any]
) -> None:
    with running_server(tmp_path / "server", executor="torch") as server:
        await server.wait_until_ready()
        await upload(server, adapters)
        async with session(server) as asking:
            began = [
                asyncio.create_task(complete(asking, name, max_tokens=400))
                for name in ("e2e-one", "e2e-two", "")
            ]
            await asyncio.sleep(0.3)
            old = (await server.pids())["kernel"]
            os.kill(old, signal.SIGKILL)
            found = await asyncio.gather(*began)
            await server.wait_for_another("kernel", old)
            for name, tokens in zip(("e2e-one", "e2e-two", ""), found, strict=True):
                assert tokens[:TOKENS] == expected[name]
                assert await complete(asking, name) == expected[name]
                assert await complete(asking, name, max_tokens=400) == tokens
        await server.wait_until_idle()
