"""KV files over HTTP: listed, shown, sent, taken and removed."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from safetensors.numpy import load, save
from symphony_kernel.protocol.limits import KV_CHUNK_BYTES_MAX, PATH_BYTES_MAX
from symphony_runtime.client import Client

from tests.e2e import programs as guests
from tests.support.gateway.system import Scenario, SystemRig, refusal, with_system
from tests.support.run_by import run_by


def ask(tmp_path: Path, scenario: Scenario, **config: Any) -> None:
    async def filled(system: SystemRig, client: Client) -> None:
        await client.upload(guests.SAVE_WASM, name="save")
        assert (await client.run("save"))["exit_code"] == 0
        await scenario(system, client)

    with_system(tmp_path, filled, **config)


async def download(client: Client, path: str = "notes/first") -> bytes:
    return b"".join([piece async for piece in client.kv_download(path)])


async def paths(client: Client, prefix: str = "") -> list[str]:
    return [file["path"] async for file in client.kv(prefix)]


def bare(count: int) -> bytes:
    tokens = (np.arange(count) % 1_000).astype(np.uint32)
    return save({"tokens": tokens, "positions": np.arange(count, dtype=np.int32)})


@run_by(ask, "tmp_path")
async def test_a_file_is_sent_taken_and_removed(system: SystemRig, client: Client) -> None:
    data = await download(client)
    tensors = load(data)
    assert set(tensors) == {"tokens", "positions", "kv"}
    stat = await client.kv_upload("copies/ä b", data)
    assert (stat["path"], stat["len"], stat["durable"]) == ("copies/ä b", 3, True)
    assert await paths(client, "copies/") == ["copies/ä b"]
    shown = await client.kv_stat("copies/ä b")
    assert shown == stat | {"tier": "disk"}
    assert load(await download(client, "copies/ä b"))["tokens"].tolist() == (
        tensors["tokens"].tolist()
    )
    await client.kv_remove("copies/ä b")
    assert await paths(client, "copies/") == []
    assert (await refusal(client.kv_remove("copies/ä b")))[0] == 404


@run_by(ask, "tmp_path")
async def test_durable_files_outlive_the_kernel(system: SystemRig, client: Client) -> None:
    data = await download(client)
    await client.kv_upload("kept", data)
    await system.stop_kernel()
    await system.start_kernel()
    await system.link_worker_to_kernel()
    await system.wait_until_ready()
    assert await paths(client) == ["kept"]
    assert (
        await download(client, "kept")
        == (system.data_dir / "kv" / next(_files(system.data_dir))).read_bytes()
    )


def _files(root: Path) -> Any:
    return ((path.relative_to(root / "kv")) for path in (root / "kv").glob("*/*.safetensors"))


@run_by(ask, "tmp_path")
async def test_a_listing_has_pages(system: SystemRig, client: Client) -> None:
    for number in range(5):
        await client.kv_upload(f"n/{number}", bare(3), rebuild=True)
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {system.key}"}) as session:
        page = f"{system.url}/v1/kv?prefix=n/&limit=2"
        seen: list[str] = []
        after: str | None = ""
        while after is not None:
            async with session.get(f"{page}&after={after}") as response:
                document = await response.json()
            assert len(document["data"]) <= 2
            seen += [file["path"] for file in document["data"]]
            after = document["next"]
    assert seen == [f"n/{number}" for number in range(5)]


@run_by(ask, "tmp_path")
async def test_a_large_file_passes_in_pieces(
    system: SystemRig, client: Client, *, tmp_path: Path
) -> None:
    """Both ways, from a client that sends and takes it piece by piece."""
    data = bare(30_000)
    whole = save({**load(data), "lineage": np.zeros(3 * KV_CHUNK_BYTES_MAX, np.uint8)})

    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(whole), 100_000):
            yield whole[at : at + 100_000]

    stat = await client.kv_upload("large", pieces(), rebuild=True)
    assert stat["len"] == 30_000
    (tmp_path / "large").write_bytes(whole)
    with (tmp_path / "large").open("rb") as file:
        assert (await client.kv_upload("large", file, rebuild=True))["len"] == 30_000
    assert load(await download(client, "large"))["tokens"].tolist() == (
        load(data)["tokens"].tolist()
    )
    assert system.gateway.services.bodies.statistics() == {"body_bytes": 0}


@pytest.mark.parametrize(
    ("data", "options", "status", "kind"),
    [
        (b"", {}, 400, "bad-file"),
        (b"junk" * 50, {"rebuild": True}, 400, "bad-file"),
        (bare(3), {}, 409, "other-model"),
        (bare(40_000), {"rebuild": True}, 400, "bad-file"),  # longer than the context
        (bare(3), {"rebuild": True, "public": True}, 403, "forbidden"),
        (bare(3), {"rebuild": True, "keep_ms": 0}, 400, "bad-request"),
    ],
)
@run_by(ask, "tmp_path")
async def test_what_cannot_be_taken_is_a_problem(
    system: SystemRig,
    client: Client,
    *,
    data: bytes,
    options: dict[str, Any],
    status: int,
    kind: str,
) -> None:
    assert await refusal(client.kv_upload("a", data, **options)) == (status, kind)
    assert await paths(client, "a") == []


@run_by(ask, "tmp_path")
async def test_a_body_larger_than_any_file_is_refused_before_it_is_read(
    system: SystemRig, client: Client
) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(1 << 20)

    assert await refusal(client.kv_upload("a", endless(), rebuild=True)) == (413, "too-large")
    assert not list((system.data_dir / "kv" / "uploads").iterdir())


@run_by(ask, "tmp_path")
async def test_names_are_replaced_unless_they_are_to_be_kept(
    system: SystemRig, client: Client
) -> None:
    await client.kv_upload("a", bare(3), rebuild=True)
    again = client.kv_upload("a", bare(4), rebuild=True, replace=False)
    assert await refusal(again) == (409, "exists")
    assert (await client.kv_upload("a", bare(5), rebuild=True))["len"] == 5
    long = "x" * (PATH_BYTES_MAX + 1)
    assert await refusal(client.kv_upload(long, bare(3))) == (400, "bad-request")
    assert (await refusal(client.kv_upload("a//b", bare(3), rebuild=True)))[0] == 400
    public = client.kv_upload("public/default/a", bare(3), rebuild=True)
    assert await refusal(public) == (403, "forbidden")


@run_by(ask, "tmp_path")
async def test_a_file_ends_when_its_time_has_come(system: SystemRig, client: Client) -> None:
    before = 1000 * time.time()
    stat = await client.kv_upload("a", bare(3), rebuild=True, keep_ms=1_000)
    assert before + 999 <= stat["expires_ms"] <= 1000 * time.time() + 1_001
    async with asyncio.timeout(20):
        while await paths(client, "a"):  # noqa: ASYNC110 - another process decides
            await asyncio.sleep(0.02)


@run_by(ask, "tmp_path")
async def test_the_file_is_sent_to_who_accepts_it(system: SystemRig, client: Client) -> None:
    headers = {"Authorization": f"Bearer {system.key}"}
    url = f"{system.url}/v1/kv/notes/first"
    async with aiohttp.ClientSession(headers=headers) as session:
        async with session.get(url) as response:
            assert (await response.json())["path"] == "notes/first"
        binary = {"Accept": "application/octet-stream"}
        for given, query in ((binary, ""), ({}, "?download=1"), ({}, "?download=true")):
            async with session.get(url + query, headers=given) as response:
                assert response.content_type == "application/octet-stream"
                assert response.headers["Content-Disposition"].endswith("first.safetensors")
                assert int(response.headers["Content-Length"]) == len(await response.read())
        async with session.get(url + "?download=0", headers=binary) as response:
            assert response.content_type == "application/json"
        async with session.get(f"{system.url}/v1/kv/none?download=1") as response:
            assert response.status == 404
        packed = {"Content-Encoding": "gzip"}
        async with session.put(url, data=b"x", headers=packed) as response:
            assert response.status == 415


@run_by(ask, "tmp_path")
async def test_a_client_that_goes_away_leaves_no_transfer(
    system: SystemRig, client: Client
) -> None:
    async def endless() -> AsyncIterator[bytes]:
        yield bare(3)
        await asyncio.sleep(60)

    uploading = asyncio.create_task(client.kv_upload("a", endless(), rebuild=True))
    transfers = system.kernel.durable_names._transfers
    async with asyncio.timeout(20):
        while not len(transfers):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        uploading.cancel()
        while len(transfers):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert await paths(client, "a") == []
