"""Programs whose files are damaged: the server's own, and a tenant's, who uploads it again."""

from pathlib import Path
from typing import Any

import pytest
from symphony import AsyncClient

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


@run_by(with_system, "tmp_path", assets=assets())
async def test_damaged_package_is_a_server_error(
    system: SystemRig, _: AsyncClient, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = system.gateway.openai.shipped
    good = shipped._wasm()
    monkeypatch.setattr(shipped, "_wasm", lambda: good[: len(good) // 2])
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
