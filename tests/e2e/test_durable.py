"""A durable file of the real model: its K and V go to disk and come back, to the last bit."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load, save
from symphony import AsyncClient
from symphony.client.views import Base64

from tests.e2e.programs import SAVE_WASM, wasm
from tests.support.gateway.system import refused
from tests.support.server.server import running_server
from tests.support.worker.guests import call, data, drop, main
from tests.support.worker.snippets import KV

PATH = "notes/first"

# Opens the file, computes token 10 behind it, and sends the best token with its log-probability.
OPENER_WASM = wasm(
    main(
        f"""(local.set $kv {call("kv_open", 100, 11, 31)})
        (if (i32.lt_s {KV} (i32.const 0)) (then (return {KV})))
        (i32.store (i32.const 200) (i32.const 10))
        {drop("send", 300, call("claim", call("pred", KV, 200, 1, 0, 0, 0), 300, 8))}
        (i32.const 0)""",
        data(100, PATH),
        locals_="(local $kv i32)",
    )
)


async def said(client: AsyncClient) -> list[str | Base64]:
    ended = await client.run("opener")
    assert (ended["status"], ended["exit_code"]) == ("exited", 0), ended
    messages = ended["messages"]
    assert len(messages) == 1
    return messages


@pytest.mark.slow
async def test_durable_file_of_the_real_model_is_the_same_after_a_restart(tmp_path: Path) -> None:
    async def first(client: AsyncClient) -> tuple[list[str | Base64], bytes]:
        await client.programs.upload(SAVE_WASM, name="save")
        await client.programs.upload(OPENER_WASM, name="opener")
        assert (await client.run("save"))["exit_code"] == 0
        wanted = await said(client)
        whole = b"".join([piece async for piece in client.kv.download(PATH)])
        tensors = load(whole)
        kv = tensors["kv"]
        assert kv.dtype == np.float32
        assert kv.shape[1:4] == (2, 1, 16)
        assert kv[:, :, :, :3].any()
        assert not kv[:, :, :, 3:].any()
        await client.kv.upload(PATH, whole)
        assert (await client.kv.stat(PATH))["tier"] == "disk"
        assert await said(client) == wanted
        return wanted, save({name: tensors[name] for name in ("tokens", "positions")})

    async def second(client: AsyncClient, wanted: list[str | Base64], bare: bytes) -> None:
        shown = await client.kv.stat(PATH)
        assert (shown["durable"], shown["tiers"]["disk"]) == (True, 1)
        assert await said(client) == wanted
        assert (await client.kv.stat(PATH))["tiers"]["device"] == 1
        assert (await refused(client.kv.upload(PATH, bare))).status == 409
        await client.kv.upload(PATH, bare, rebuild=True)
        assert await said(client) == wanted

    with running_server(tmp_path, executor="torch") as server:
        async with server.client() as client:
            wanted, bare = await first(client)
    with running_server(tmp_path, executor="torch") as server:
        async with server.client() as client:
            await second(client, wanted, bare)
