"""Bodies of JSON: what their values count for, and how they may begin."""

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from symphony_runtime.client import Client
from symphony_runtime.gateway.tenancy.authentication import Authentication, Key

from tests.e2e import programs as guests
from tests.support.gateway.system import SystemRig, with_system
from tests.support.run_by import run_by


async def start(system: SystemRig, body: bytes) -> int:
    url = f"{system.url}/v1/programs/hang/runs?detach=1"
    headers = {"Authorization": f"Bearer {system.key}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(url, data=body) as response,
    ):
        if response.status == 202:
            run = (await response.json())["id"]
            async with session.post(f"{system.url}/v1/runs/{run}/cancel") as cancelled:
                assert cancelled.status < 300
        return response.status


def test_values_within_a_string_hold_no_memory_and_others_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("symphony_runtime.gateway.http.context.TENANT_BODY_BYTES_MAX", 1 << 20)
    values: Any = [[1, 2]] * 25_000

    async def scenario(system: SystemRig, client: Client) -> None:
        await client.upload(guests.HANG_WASM, "hang")
        text = json.dumps(values, separators=(",", ":"))
        assert await start(system, json.dumps({"input": text}).encode()) == 202
        assert await start(system, json.dumps({"input": values}).encode()) == 429
        assert system.gateway.services.bodies.statistics() == {"body_bytes": 0}

    with_system(tmp_path, scenario)


@run_by(with_system, "tmp_path")
async def test_a_request_authenticates_its_key_once(
    system: SystemRig, client: Client, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str | None] = []
    find = Authentication.find_key

    def counted(keys: Authentication, authorization: str | None) -> Key | None:
        found.append(authorization)
        return find(keys, authorization)

    await client.upload(guests.HANG_WASM, "hang")
    url = f"{system.url}/v1/programs/hang/runs?detach=1"
    headers = {"Authorization": f"Bearer {system.key}"}
    monkeypatch.setattr(Authentication, "find_key", counted)
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(url, data=json.dumps({"input": "x" * 100_000})) as response,
    ):
        assert response.status == 202
    monkeypatch.undo()
    assert found == [headers["Authorization"]]


@run_by(with_system, "tmp_path")
async def test_a_body_may_begin_with_a_byte_order_mark(system: SystemRig, client: Client) -> None:
    await client.upload(guests.HANG_WASM, "hang")
    for text in ("x", "x" * 100_000):
        assert await start(system, b"\xef\xbb\xbf" + json.dumps({"input": text}).encode()) == 202
    assert await start(system, json.dumps({"input": "x"}).encode("utf-16")) == 400


def test_parsing_a_large_body_is_charged_to_its_tenant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(_body: bytes, _most: int) -> int:
        until = time.thread_time() + 0.5
        while time.thread_time() < until:
            pass
        return 1

    monkeypatch.setattr("symphony_runtime.gateway.http.context.parse_cost", slow)

    async def scenario(system: SystemRig, client: Client) -> None:
        await client.upload(guests.HANG_WASM, "hang")
        charged: Counter[str] = Counter()
        costs: Any = system.gateway.services.cpu_reporter
        costs.charge = lambda tenant, seconds: charged.update({tenant: int(1e6 * seconds)})
        assert await start(system, json.dumps({"input": "x"}).encode()) == 202
        assert charged["default"] < 500_000, "a small one is parsed at once"
        assert await start(system, json.dumps({"input": "x" * 1_000_000}).encode()) == 202
        assert charged["default"] >= 500_000

    with_system(tmp_path, scenario)


@run_by(with_system, "tmp_path")
async def test_a_large_body_is_charged_and_read_no_further_while_its_tenant_rests(
    system: SystemRig, client: Client
) -> None:
    body = json.dumps({"input": "x" * 1_000_000}).encode()
    await client.upload(guests.HANG_WASM, "hang")
    charged: Counter[str] = Counter()
    rests = [0.5]
    costs: Any = system.gateway.services.cpu_reporter
    costs.charge = lambda tenant, seconds: charged.update({tenant: int(1e6 * seconds)})
    costs.rest = lambda _tenant: rests.pop() if rests else 0.0
    began = time.monotonic()
    assert await start(system, body) == 202
    assert time.monotonic() - began > 0.5
    assert not rests
    assert charged["default"] > 2_000, "microseconds, of a million bytes"
