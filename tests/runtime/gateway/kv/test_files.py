"""KV files over HTTP: listed, shown, sent, taken and removed."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save
from symphony import AsyncClient
from symphony_kernel.protocol.limits import KV_CHUNK_BYTES_MAX, PATH_BYTES_MAX

from tests.e2e import programs as guests
from tests.support.gateway.system import Scenario, SystemRig, refusal, with_system
from tests.support.run_by import run_by
from tests.support.waiting import wait_until


def with_files(tmp_path: Path, scenario: Scenario) -> None:
    async def whole(system: SystemRig, client: AsyncClient) -> None:
        await client.programs.upload(guests.SAVE_WASM, name="save")
        assert (await client.run("save"))["exit_code"] == 0
        await scenario(system, client)

    with_system(tmp_path, whole)


async def download(client: AsyncClient, path: str = "notes/first") -> bytes:
    return b"".join([piece async for piece in client.kv.download(path)])


async def paths(client: AsyncClient, prefix: str = "") -> list[str]:
    return [file["path"] async for file in client.kv.list(prefix)]


async def no_file(client: AsyncClient, path: str) -> bool:
    return not await paths(client, path)


def bare(count: int) -> bytes:
    tokens = (np.arange(count) % 1_000).astype(np.uint32)
    return save({"tokens": tokens, "positions": np.arange(count, dtype=np.int32)})


@run_by(with_files, "tmp_path")
async def test_file_is_uploaded_downloaded_and_removed(
    system: SystemRig, client: AsyncClient
) -> None:
    data = await download(client)
    tensors = load(data)
    assert set(tensors) == {"tokens", "positions", "kv"}
    stat = await client.kv.upload("copies/ä b", data)
    assert (stat["path"], stat["len"], stat["durable"]) == ("copies/ä b", 3, True)
    assert await paths(client, "copies/") == ["copies/ä b"]
    shown = await client.kv.stat("copies/ä b")
    assert shown == stat | {"tier": "disk"}
    copy = load(await download(client, "copies/ä b"))
    assert copy["tokens"].tolist() == tensors["tokens"].tolist()
    await client.kv.remove("copies/ä b")
    assert await paths(client, "copies/") == []
    assert (await refusal(client.kv.remove("copies/ä b")))[0] == 404


@run_by(with_files, "tmp_path")
async def test_durable_file_outlives_the_kernel(system: SystemRig, client: AsyncClient) -> None:
    data = await download(client)
    await client.kv.upload("kept", data)
    await system.restart_kernel()
    await system.wait_until_ready()
    assert await paths(client) == ["kept"]
    (stored,) = (system.data_dir / "kv").glob("*/*.safetensors")
    assert await download(client, "kept") == stored.read_bytes()


@run_by(with_files, "tmp_path")
async def test_listing_has_pages(system: SystemRig, client: AsyncClient) -> None:
    for number in range(5):
        await client.kv.upload(f"n/{number}", bare(3), rebuild=True)
    seen: list[str] = []
    after: str | None = ""
    while after is not None:
        page = (await system.ask("GET", f"/v1/kv?prefix=n/&limit=2&after={after}")).json
        assert len(page["data"]) <= 2
        seen += [file["path"] for file in page["data"]]
        after = page["next"]
    assert seen == [f"n/{number}" for number in range(5)]


@run_by(with_files, "tmp_path")
async def test_large_file_passes_in_pieces(system: SystemRig, client: AsyncClient) -> None:
    data = bare(30_000)
    whole = save({**load(data), "lineage": np.zeros(3 * KV_CHUNK_BYTES_MAX, np.uint8)})

    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(whole), 100_000):
            yield whole[at : at + 100_000]

    stat = await client.kv.upload("large", pieces(), rebuild=True)
    assert stat["len"] == 30_000
    (system.data_dir / "large").write_bytes(whole)
    with (system.data_dir / "large").open("rb") as file:
        assert (await client.kv.upload("large", file, rebuild=True))["len"] == 30_000
    assert load(await download(client, "large"))["tokens"].tolist() == load(data)["tokens"].tolist()
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
@run_by(with_files, "tmp_path")
async def test_bad_upload_is_refused(
    _: SystemRig,
    client: AsyncClient,
    *,
    data: bytes,
    options: dict[str, Any],
    status: int,
    kind: str,
) -> None:
    assert await refusal(client.kv.upload("a", data, **options)) == (status, kind)
    assert await paths(client, "a") == []


@run_by(with_files, "tmp_path")
async def test_endless_upload_is_refused_and_removed(
    system: SystemRig, client: AsyncClient
) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(1 << 20)

    assert await refusal(client.kv.upload("a", endless(), rebuild=True)) == (413, "too-large")
    assert not list((system.data_dir / "kv" / "uploads").iterdir())


@run_by(with_files, "tmp_path")
async def test_name_in_use_is_replaced_unless_kept(_: SystemRig, client: AsyncClient) -> None:
    await client.kv.upload("a", bare(3), rebuild=True)
    again = client.kv.upload("a", bare(4), rebuild=True, replace=False)
    assert await refusal(again) == (409, "exists")
    assert (await client.kv.upload("a", bare(5), rebuild=True))["len"] == 5
    long = "x" * (PATH_BYTES_MAX + 1)
    assert await refusal(client.kv.upload(long, bare(3))) == (400, "bad-request")
    assert (await refusal(client.kv.upload("a//b", bare(3), rebuild=True)))[0] == 400
    public = client.kv.upload("public/default/a", bare(3), rebuild=True)
    assert await refusal(public) == (403, "forbidden")


@run_by(with_files, "tmp_path")
async def test_file_past_its_time_is_removed(system: SystemRig, client: AsyncClient) -> None:
    before = 1000 * time.time()
    stat = await client.kv.upload("a", bare(3), rebuild=True, keep_ms=1_000)
    assert before + 999 <= stat["expires_ms"] <= 1000 * time.time() + 1_001
    await wait_until(lambda: no_file(client, "a"))


@run_by(with_files, "tmp_path")
async def test_file_is_sent_to_clients_that_accept_it(system: SystemRig, _: AsyncClient) -> None:
    url, binary = "/v1/kv/notes/first", {"Accept": "application/octet-stream"}
    assert (await system.ask("GET", url)).json["path"] == "notes/first"
    for given, query in ((binary, ""), ({}, "?download=1"), ({}, "?download=true")):
        answer = await system.ask("GET", url + query, headers=given)
        assert answer.headers["Content-Type"] == "application/octet-stream"
        assert answer.headers["Content-Disposition"].endswith("first.safetensors")
        assert int(answer.headers["Content-Length"]) == len(answer.body)
    answer = await system.ask("GET", f"{url}?download=0", headers=binary)
    assert answer.json["path"] == "notes/first"
    assert (await system.ask("GET", "/v1/kv/none?download=1")).status == 404
    packed = {"Content-Encoding": "gzip"}
    assert (await system.ask("PUT", url, data=b"x", headers=packed)).status == 415


@run_by(with_files, "tmp_path")
async def test_client_that_goes_away_leaves_no_transfer(
    system: SystemRig, client: AsyncClient
) -> None:
    async def endless() -> AsyncIterator[bytes]:
        yield bare(3)
        await asyncio.sleep(60)

    uploading = asyncio.create_task(client.kv.upload("a", endless(), rebuild=True))
    transfers = system.kernel.durable_names._transfers
    await wait_until(lambda: len(transfers))
    uploading.cancel()
    await wait_until(lambda: not len(transfers))
    assert await paths(client, "a") == []
