"""What is another tenant's looks like what is not there."""

from pathlib import Path

import aiohttp
import pytest
from symphony_runtime.client import Client, ServerError
from symphony_runtime.gateway.api.routes import ROUTES, Access
from symphony_runtime.gateway.storage.store import Store
from symphony_runtime.gateway.tenancy.authentication import _make_key

from tests.e2e import programs as guests
from tests.support.gateway.system import SystemRig


async def test_a_stranger_finds_nothing(tmp_path: Path) -> None:
    async with SystemRig(tmp_path) as system:
        pass
    store = Store(tmp_path / "symphony.sqlite")
    key = await _make_key(store, tmp_path / "acme.key", "acme")
    await store.close()
    async with (
        SystemRig(tmp_path) as system,
        system.client() as owner,
        Client(system.url, key) as stranger,
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as session,
    ):
        program = await owner.upload(guests.PARROT_WASM, name="parrot")
        await owner.upload(guests.SAVE_WASM, name="save")
        assert (await owner.run("save"))["exit_code"] == 0
        ended = (await owner.run("save"))["id"]
        live = await owner.start("parrot")
        asked = 0
        for route in ROUTES:
            if route.access is not Access.TENANT or "{" not in route.path:
                continue
            if route.name in ("putKv", "putSecret"):  # make one of the stranger's own
                continue
            for run in (live, ended, "run_none"):
                for name in ("parrot", program["id"], "none"):
                    path = route.path.replace("{run}", run).replace("{program}", name)
                    path = path.replace("{path}", "notes/first").replace("{model}", name)
                    path = path.replace("{name}", "nothing")
                    async with session.request(route.method, system.url + path) as response:
                        assert response.status == 404, (route.method, path)
                        answer = await response.json(content_type=None)
                    assert "parrot" not in str(answer) or "{model}" in route.path
                    asked += 1
        assert asked > 50
        for listing in (stranger.programs(), stranger.runs(), stranger.kv()):
            assert [item async for item in listing] == []
        with pytest.raises(ServerError):
            await stranger.cancel(live)
        # The owner's run has noticed nothing.
        await owner.send(live, b"still mine", close=True)
        events = [event async for event in owner.events(live)]
        assert events[-1].data["status"] == "exited"
        assert (await owner.result(live))["messages"] == ["still mine"]
        assert (await owner.kv_stat("notes/first"))["len"] == 3
