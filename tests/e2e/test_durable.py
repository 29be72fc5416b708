"""A durable file of the real model: its K and V go to disk and come back, to the last bit."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load, save
from symphony_runtime.client import Client, ServerError

from tests.e2e.programs import SAVE_WASM, wasm
from tests.support.server.server import running_server
from tests.support.worker.guests import data, main

PATH = "notes/first"

# Opens the file, computes token 10 behind it, and sends the best token with its log-probability.
OPENER_WASM = wasm(
    main(
        """(local.set $kv (call $kv_open (i32.const 100) (i32.const 11) (i32.const 31)))
           (if (i32.lt_s (local.get $kv) (i32.const 0)) (then (return (local.get $kv))))
           (i32.store (i32.const 200) (i32.const 10))
           (drop (call $send (i32.const 300) (call $claim
             (call $pred (local.get $kv) (i32.const 200) (i32.const 1) (i32.const 0)
                         (i32.const 0) (i32.const 0))
             (i32.const 300) (i32.const 8))))
           (i32.const 0)""",
        data(100, PATH),
        locals_="(local $kv i32)",
    )
)


async def said(client: Client) -> list[object]:
    ended = await client.run("opener")
    assert (ended["status"], ended["exit_code"]) == ("exited", 0), ended
    messages: list[object] = ended["messages"]
    assert len(messages) == 1
    return messages


@pytest.mark.slow
def test_durable_file_of_the_real_model_is_the_same_after_a_restart(tmp_path: Path) -> None:
    async def first(client: Client) -> tuple[list[object], bytes]:
        await client.upload(SAVE_WASM, name="save")
        await client.upload(OPENER_WASM, name="opener")
        assert (await client.run("save"))["exit_code"] == 0
        wanted = await said(client)
        whole = b"".join([piece async for piece in client.kv_download(PATH)])
        tensors = load(whole)
        kv = tensors["kv"]
        assert kv.dtype == np.float32
        assert kv.shape[1:4] == (2, 1, 16)
        assert kv[:, :, :, :3].any()
        assert not kv[:, :, :, 3:].any()
        await client.kv_upload(PATH, whole)
        assert (await client.kv_stat(PATH))["tier"] == "disk"
        assert await said(client) == wanted
        return wanted, save({name: tensors[name] for name in ("tokens", "positions")})

    async def second(client: Client, wanted: list[object], bare: bytes) -> None:
        shown = await client.kv_stat(PATH)
        assert (shown["durable"], shown["tiers"]["disk"]) == (True, 1)
        assert await said(client) == wanted
        assert (await client.kv_stat(PATH))["tiers"]["device"] == 1
        with pytest.raises(ServerError) as caught:
            await client.kv_upload(PATH, bare)
        assert caught.value.status == 409
        await client.kv_upload(PATH, bare, rebuild=True)
        assert await said(client) == wanted

    known: list[tuple[list[object], bytes]] = []

    async def life(client: Client) -> None:
        async with client:
            if known:
                await second(client, *known[0])
            else:
                known.append(await first(client))

    for _ in range(2):
        with running_server(tmp_path, executor="torch") as server:
            asyncio.run(life(server.client()))
