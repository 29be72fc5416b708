"""Programs whose files are damaged: the server restores its own, a tenant uploads again."""

from pathlib import Path
from typing import Any

import pytest
from symphony import AsyncClient
from symphony_runtime.gateway.openai import shipped

from tests.e2e import programs as guests
from tests.support.gateway.system import SystemRig, refusal, with_system
from tests.support.kernel.constrained import assets
from tests.support.run_by import run_by


def damage(folder: Path, *, cut: bool = False) -> None:
    """Change a byte in the middle of every program's files, or cut the files off there."""
    paths = [*folder.glob("programs/*/*.*wasm")]
    assert paths
    for path in paths:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 0xFF
        path.write_bytes(content[: len(content) // 2] if cut else content)


async def complete(system: SystemRig) -> tuple[int, Any]:
    body = {"model": system.kernel._executor.model.name, "prompt": [1] * 5, "max_tokens": 2}
    answer = await system.ask("POST", "/v1/completions", json=body)
    return answer.status, answer.json


def test_shipped_program_is_restored_from_the_package(tmp_path: Path) -> None:
    async def scenario(system: SystemRig, _: AsyncClient) -> None:
        status, body = await complete(system)
        assert status == 200, body

    with_system(tmp_path, scenario, assets=assets())
    damage(tmp_path)
    with_system(tmp_path, scenario, assets=assets())


@run_by(with_system, "tmp_path", assets=assets())
async def test_damaged_package_is_a_server_error(
    system: SystemRig, _: AsyncClient, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = shipped.wasm()
    monkeypatch.setattr(shipped, "wasm", lambda: good[: len(good) // 2])
    status, body = await complete(system)
    assert status == 500
    assert "install Symphony again" in body["error"]["message"]


@pytest.mark.parametrize("cut", [False, True])
def test_damaged_program_works_after_another_upload(tmp_path: Path, cut: bool) -> None:
    def size() -> int:
        return sum(path.stat().st_size for path in tmp_path.glob("programs/default/*"))

    async def first(_: SystemRig, client: AsyncClient) -> None:
        await client.programs.upload(guests.HELLO_WASM, "hello")

    async def second(system: SystemRig, client: AsyncClient) -> None:
        before, disk = size(), system.gateway.services.store.disk
        held = disk.held("default")
        assert await refusal(client.run("hello")) == (500, "damaged")
        await client.programs.upload(guests.HELLO_WASM, "hello")
        assert disk.held("default") - held == size() - before
        assert (size() > before) == cut
        assert (await client.run("hello"))["status"] == "exited"

    with_system(tmp_path, first)
    damage(tmp_path, cut=cut)
    with_system(tmp_path, second)
