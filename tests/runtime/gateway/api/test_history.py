"""`/v1/history` and `/v1/key`: each key learns of itself, and of no other tenant."""

from pathlib import Path
from typing import Any

import pytest
from symphony_runtime.gateway.metrics import history

from tests.support.gateway.metrics import DECODE
from tests.support.gateway.system import SystemRig
from tests.support.waiting import wait_until


async def test_history_shows_each_key_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "STEP_SECONDS", 0.05)
    async with SystemRig(tmp_path) as system, system.client() as client:
        system.gateway.services.kernel_metrics.each[0]._now = lambda: float(
            "inf"
        )  # never old enough

        async def figures(key: str) -> dict[str, Any]:
            system.gateway.services.kernel_metrics.each[0]._asked = float("-inf")
            answer = await system.ask("GET", "/v1/history", key=key)
            assert answer.status == 200
            document: dict[str, Any] = answer.json
            assert document["step_ms"] == 5000
            lengths = {len(series) for series in document["series"].values()}
            assert len(lengths) == 1
            return document

        async def grown(name: str, key: str) -> bool:
            return any((await figures(key))["series"][name])

        await client.programs.upload(DECODE, "decode")
        await client.run("decode")
        await wait_until(lambda: grown("device_busy", system.admin_key))
        await wait_until(lambda: grown("decode_tokens", system.key))
        # A tenant that is alone sees its own figures, too: others may have been there before it.
        assert "device_busy" not in (await figures(system.key))["series"]
        acme = await system.add_tenant("acme")
        own = await figures(acme)
        assert own.keys() == {"step_ms", "step", "end_ms", "series", "roles"}
        assert "resident_bytes" not in own["roles"]
        assert "device_busy" not in own["series"]
        assert not any(own["series"]["decode_tokens"])
        assert "device_busy" not in (await figures(system.key))["series"]
        whole = await figures(system.admin_key)
        assert whole["roles"]["resident_bytes"]["gateway"] > 0
        assert "default" in whole["tenants"]
        assert any(whole["tenants"]["default"]["decode_tokens"])


async def test_key_route_tells_whose_key_it_is(tmp_path: Path) -> None:
    async with SystemRig(tmp_path, worker=False) as system:
        for key, tenant, role in (
            (system.key, "default", "tenant"), (system.admin_key, None, "admin"),
        ):  # fmt: skip
            shown = (await system.ask("GET", "/v1/key", key=key)).json
            assert (shown["tenant"], shown["role"]) == (tenant, role)
            assert key not in str(shown)
        assert (await system.ask("GET", "/v1/key", key="sym_x")).status == 401
