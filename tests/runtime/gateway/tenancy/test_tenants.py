"""Another tenant's things look as if they did not exist."""

import pytest
from symphony import AsyncClient, ServerError
from symphony_runtime.gateway.api.routes import ROUTES, Access

from tests.e2e import programs as guests
from tests.support.gateway.routes import filled
from tests.support.gateway.system import SystemRig, with_system
from tests.support.run_by import run_by


@run_by(with_system, "tmp_path")
async def test_stranger_finds_nothing_of_another_tenant(
    system: SystemRig, owner: AsyncClient
) -> None:
    program = await owner.programs.upload(guests.PARROT_WASM, name="parrot")
    await owner.programs.upload(guests.SAVE_WASM, name="save")
    assert (await owner.run("save"))["exit_code"] == 0
    ended = (await owner.run("save"))["id"]
    live = await owner.start("parrot")
    key = await system.add_tenant("acme")
    asked = 0
    for route in ROUTES:
        if route.access is not Access.TENANT or "{" not in route.path:
            continue
        # They make one of the stranger's own.
        if route.name in ("putKv", "putSecret", "putAlias", "putAdapter"):
            continue
        bodies = set()
        for run in (live, ended, "run_none"):
            for name in ("parrot", program["id"], "none"):
                path = filled(route.path, run=run, program=name, path="notes/first", model=name)
                answer = await system.ask(route.method, path, key=key)
                assert answer.status == 404, (route.method, path)
                # It repeats the names of the request, and is else that of a missing thing.
                repeated = answer.body.replace(run.encode(), b"run_none")
                bodies.add(repeated.replace(name.encode(), b"none"))
                asked += 1
        assert len(bodies) == 1, bodies
    assert asked > 50
    async with AsyncClient(system.url, key, retries=0) as stranger:
        for listing in (stranger.programs.list(), stranger.runs.list(), stranger.kv.list()):
            assert [item async for item in listing] == []
        with pytest.raises(ServerError):
            await stranger.runs.cancel(live)
    # The owner's run is not affected.
    await owner.runs.send(live, b"still mine", close=True)
    events = [event async for event in owner.runs.events(live)]
    assert events[-1].data["status"] == "exited"
    assert (await owner.runs.get(live))["messages"] == ["still mine"]
    assert (await owner.kv.stat("notes/first"))["len"] == 3
