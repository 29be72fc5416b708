"""Programs whose files are damaged: the server's own comes again, a tenant's says what to do."""

from pathlib import Path
from typing import Any

import aiohttp
import pytest
from symphony_runtime.client import Client
from symphony_runtime.gateway.openai import shipped

from tests.e2e import programs as guests
from tests.support.gateway.system import SystemRig, refusal, with_system
from tests.support.kernel.constrained import assets


def damage(folder: Path, *, cut: bool = False) -> None:
    """Change a byte in the middle of every file of every program, or cut them off there."""
    paths = [*folder.glob("programs/*/*.*wasm")]
    assert paths
    for path in paths:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 0xFF
        path.write_bytes(content[: len(content) // 2] if cut else content)


async def complete(system: SystemRig) -> tuple[int, Any]:
    body = {"model": system.kernel._executor.model.name, "prompt": [1] * 5, "max_tokens": 2}
    headers = {"Authorization": f"Bearer {system.key}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(f"{system.url}/v1/completions", json=body) as response,
    ):
        return response.status, await response.json()


def test_the_servers_own_program_comes_from_the_package_again(tmp_path: Path) -> None:
    async def scenario(system: SystemRig, _: Client) -> None:
        status, body = await complete(system)
        assert status == 200, body

    with_system(tmp_path, scenario, assets=assets())
    damage(tmp_path)
    with_system(tmp_path, scenario, assets=assets())


def test_a_damaged_package_is_the_servers_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = shipped.wasm()
    monkeypatch.setattr(shipped, "wasm", lambda: good[: len(good) // 2])

    async def scenario(system: SystemRig, _: Client) -> None:
        status, body = await complete(system)
        assert status == 500
        assert "install Symphony again" in body["error"]["message"]

    with_system(tmp_path, scenario, assets=assets())


@pytest.mark.parametrize("cut", [False, True])
def test_a_tenants_damaged_program_is_good_again_once_it_is_uploaded_again(
    tmp_path: Path, cut: bool
) -> None:
    def size() -> int:
        return sum(path.stat().st_size for path in tmp_path.glob("programs/default/*"))

    async def first(_: SystemRig, client: Client) -> None:
        await client.upload(guests.HELLO_WASM, "hello")

    async def second(system: SystemRig, client: Client) -> None:
        before, disk = size(), system.gateway.services.store.disk
        held = disk.held("default")
        assert await refusal(client.run("hello")) == (500, "damaged")
        await client.upload(guests.HELLO_WASM, "hello")
        assert disk.held("default") - held == size() - before
        assert (size() > before) == cut
        assert (await client.run("hello"))["status"] == "exited"

    with_system(tmp_path, first)
    damage(tmp_path, cut=cut)
    with_system(tmp_path, second)
