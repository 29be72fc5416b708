"""Operators' routes over HTTP: tenants, keys, usage, the audit log, and their effects at once."""

import asyncio
import csv
import io
from typing import Any

import aiohttp
import pytest
from symphony import AsyncClient, ConnectionFailed, ServerError
from symphony_runtime.gateway.api.routes import ROUTES, Access

from tests.e2e import programs as guests
from tests.support.gateway.routes import filled
from tests.support.gateway.system import SystemRig, refusal, with_admin
from tests.support.run_by import run_by
from tests.support.usage import used
from tests.support.waiting import wait_until


async def all_of(listing: Any) -> list[Any]:
    return [item async for item in listing]


@run_by(with_admin, "tmp_path")
async def test_tenant_is_created_changed_and_deleted(system: SystemRig, admin: AsyncClient) -> None:
    made = await admin.admin.create_tenant("acme", weight=2, quotas={"live_runs": 3})
    assert made == await admin.admin.tenant("acme")
    assert (made["made_by"], made["suspended"], made["keys"]) == ("operator", False, 0)
    assert made["quotas"] == {"live_runs": 3}
    assert system.kernel._scheduler._queue._tenant("acme").weight == 2
    assert await refusal(admin.admin.create_tenant("acme")) == (409, "exists")
    for wrong in ("", "Acme", "../up", "a/b", "~server", "x" * 64, "a b"):
        assert await refusal(admin.admin.create_tenant(wrong)) == (400, "bad-tenant")
    assert [t["id"] async for t in admin.admin.tenants()] == ["acme", "default"]

    changed = await admin.admin.change_tenant("acme", weight=None, quotas={"live_runs": None})
    assert (changed["weight"], changed["quotas"]) == (None, {})
    assert system.kernel._scheduler._queue._tenant("acme").weight == 1
    changes: list[dict[str, Any]] = [
        {"weight": 0}, {"weight": "2"}, {"suspended": 1}, {"quotas": []}, {"id": "b"},
        {"quotas": {"wishes": 3}}, {"quotas": {"live_runs": -1}}, {"quotas": {"live_runs": 1.5}}
    ]  # fmt: skip
    for said in changes:
        assert (await refusal(admin.admin.change_tenant("acme", **said)))[0] == 400
    assert await admin.admin.tenant("acme") == changed

    key = (await admin.admin.create_key("acme"))["key"]
    async with AsyncClient(system.url, key, retries=0) as acme:
        await acme.programs.upload(guests.SAVE_WASM, name="save")
        run = await acme.run("save")
        assert await refusal(admin.admin.delete_tenant("acme")) == (409, "not-empty")
        await acme.runs.delete(run["id"])
        await acme.programs.delete("save")
        with pytest.raises(ServerError, match="KV files"):
            await admin.admin.delete_tenant("acme")
        for file in await all_of(acme.kv.list()):
            await acme.kv.remove(file["path"])
        await admin.admin.delete_tenant("acme")
        assert await refusal(all_of(acme.runs.list())) == (401, "unauthorized")
    assert await refusal(admin.admin.tenant("acme")) == (404, "not-found")
    # Its usage stays in the books.
    assert [(u["tenant"], u["runs"]) async for u in admin.admin.usage()] == [("acme", 1)]


@run_by(with_admin, "tmp_path")
async def test_weight_of_a_tenant_outlives_a_kernel(system: SystemRig, admin: AsyncClient) -> None:
    await admin.admin.create_tenant("acme", weight=4)
    await system.restart_kernel()
    queue = system.kernel._scheduler._queue
    await wait_until(lambda: queue._tenant("acme").weight == 4)


@run_by(with_admin, "tmp_path")
async def test_suspended_tenant_ends_and_no_other(system: SystemRig, admin: AsyncClient) -> None:
    async with system.tenant() as acme, system.client() as other:
        for client in (acme, other):
            await client.programs.upload(guests.PARROT_WASM, name="parrot")
        runs = [await client.start("parrot") for client in (acme, other)]
        events = acme.runs.events(runs[0])
        assert (await anext(events)).data["status"] == "running"
        shown = await admin.admin.change_tenant("acme", suspended=True)
        assert (shown["suspended"], shown["live_runs"]) == (True, 0)
        # A reader is told why the run ended.
        last = (await all_of(events))[-1].data
        assert (last["status"], last["reason"]) == ("killed", "the tenant was suspended")
        for asked in (
            acme.runs.get(runs[0]),
            acme.programs.upload(guests.PARROT_WASM),
            acme.metrics(),
        ):
            assert await refusal(asked) == (403, "suspended")
        await other.runs.send(runs[1], b"still here", close=True)
        assert (await all_of(other.runs.events(runs[1])))[-1].data["status"] == "exited"
        await admin.admin.change_tenant("acme", suspended=False)
        assert (await acme.runs.get(runs[0]))["reason"] == "the tenant was suspended"
        assert [u["tenant"] async for u in admin.admin.usage()] == ["acme", "default"]


@run_by(with_admin, "tmp_path")
async def test_revoked_key_loses_its_open_connections(
    system: SystemRig, admin: AsyncClient
) -> None:
    made, kept = [await admin.admin.create_key("default", name=name) for name in ("gone", "kept")]
    names = {
        key["name"] for key in await admin.admin.keys("default")
    }  # of one instant in any order
    assert names == {"first start", "gone", "kept"}
    async with (
        AsyncClient(system.url, made["key"], retries=0) as gone,
        AsyncClient(system.url, kept["key"], retries=0) as stays,
        system.session(made["key"]) as session,
    ):
        await gone.programs.upload(guests.PARROT_WASM, name="parrot")
        run = await gone.start("parrot")
        events = [client.runs.events(run) for client in (gone, stays)]
        for each in events:
            await anext(each)
        socket = await session.ws_connect(f"/v1/runs/{run}/ws")
        await admin.admin.revoke_key("default", made["id"])
        with pytest.raises(ConnectionFailed):
            await asyncio.wait_for(all_of(events[0]), 20)
        message = await socket.receive(timeout=20)
        assert message.type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)
        assert await refusal(gone.runs.get(run)) == (401, "unauthorized")
        # The run is its tenant's: the tenant's other keys still reach it.
        await stays.runs.send(run, b"hello", close=True)
        assert (await all_of(events[1]))[-1].data["status"] == "exited"


@run_by(with_admin, "tmp_path")
async def test_read_only_key_changes_nothing(system: SystemRig, admin: AsyncClient) -> None:
    reader = (await admin.admin.create_key("default", role="read-only"))["key"]
    operator = (await admin.admin.create_key(None, role="read-only"))["key"]
    for route in ROUTES:
        if route.access is Access.OPEN:
            continue
        key = operator if route.access is Access.ADMIN else reader
        answer = await system.ask(route.method, filled(route.path), key=key)
        assert (answer.status == 403) is route.refuses_readers, route.name
    # Its handler refuses what writes: see the tests of `gateway/mcp`.
    assert {route.name for route in ROUTES if route.writes and not route.refuses_readers} == {"mcp"}
    assert {route.name for route in ROUTES if route.method == "GET" and route.writes} == {
        "attach",
        "websocket",
    }
    denied = await all_of(admin.admin.audit({"kind": "denied", "tenant": "default"}))
    assert "startRun" in {note["action"] for note in denied}
    assert {note["status"] for note in denied} == {403}


@run_by(with_admin, "tmp_path")
async def test_key_is_shown_once_and_rotates(system: SystemRig, admin: AsyncClient) -> None:
    (first,) = await admin.admin.keys(None)
    assert await refusal(admin.admin.revoke_key(None, first["id"])) == (409, "last-admin-key")
    made = await admin.admin.rotate_key(None, first["id"], grace_ms=600_000)
    assert all("key" not in key and "hash" not in key for key in await admin.admin.keys(None))
    async with AsyncClient(system.url, made["key"], retries=0) as renewed:
        leaving, new = await renewed.admin.keys(None)
        assert (leaving["id"], (leaving["expires_ms"] or 0) > 0) == (first["id"], True)
        assert new.items() <= made.items()
        await renewed.admin.revoke_key(None, first["id"])
        assert await refusal(admin.admin.keys(None)) == (401, "unauthorized")
        for wrong in ({"role": "admin"}, {"role": "root"}, {"expires_ms": 5}, {"more": 1}):
            assert (await refusal(renewed.admin.create_key("default", **wrong)))[0] == 400
        assert await refusal(renewed.admin.create_key(None, role="tenant")) == (400, "bad-role")
        assert await refusal(renewed.admin.create_key("none")) == (404, "not-found")
        # Another tenant's path finds no key.
        await renewed.admin.create_tenant("acme")
        (key,) = await renewed.admin.keys("default")
        assert await refusal(renewed.admin.revoke_key("acme", key["id"])) == (404, "not-found")
        notes = await all_of(renewed.admin.audit({"kind": "admin"}))
        assert [note["action"] for note in notes[-2:]] == ["rotateAdminKey", "revokeAdminKey"]
        assert made["key"] not in repr(notes)


@run_by(with_admin, "tmp_path")
async def test_gateway_that_is_alive_is_listed_and_stays(
    system: SystemRig, admin: AsyncClient
) -> None:
    (here,) = await all_of(admin.admin.gateways())
    name = (system.data_dir / "gateway.id").read_text().strip()
    assert (here["id"], here["here"], here["forgetting"]) == (name, True, [])
    assert await refusal(admin.admin.drop_gateway(name)) == (409, "alive")
    assert await refusal(admin.admin.drop_gateway("none")) == (404, "not-found")
    assert await all_of(admin.admin.gateways()) == [here]


@run_by(with_admin, "tmp_path")
async def test_usage_is_shown_by_page_and_as_csv(system: SystemRig, admin: AsyncClient) -> None:
    async with system.tenant() as acme, system.client() as other:
        for client in (acme, other):
            await client.programs.upload(guests.SAVE_WASM, name="save")
            result = await client.run("save")
        await acme.run("save")
    days = await all_of(admin.admin.usage())
    assert [(row["tenant"], row["runs"]) for row in days] == [("acme", 2), ("default", 1)]
    assert days[1]["prompt_tokens"] == used(result)["prompt_tokens"]
    assert await all_of(admin.admin.usage({"tenant": "acme"})) == days[:1]
    assert await all_of(admin.admin.usage({"from": "2100-01-01"})) == []
    rows = list(csv.DictReader(io.StringIO(await admin.admin.usage_csv())))
    assert rows == [{name: str(value) for name, value in row.items()} for row in days]
    assert (await refusal(all_of(admin.admin.usage({"from": "yesterday"}))))[0] == 400
    page = await admin._transport.get(dict[str, Any], "/v1/admin/usage", {"limit": "1"})
    assert page["data"] == days[:1]
    query = {"limit": "1", "after": page["next"]}
    following = await admin._transport.get(dict[str, Any], "/v1/admin/usage", query)
    assert following["data"] == days[1:]


@run_by(with_admin, "tmp_path")
async def test_audit_notes_changes_and_denials(system: SystemRig, admin: AsyncClient) -> None:
    await admin.admin.create_tenant("acme")
    await refusal(admin.admin.create_tenant("acme"))
    for key in ("sym_x_y", system.key):
        async with AsyncClient(system.url, key, retries=0) as stranger:
            await refusal(stranger.admin.keys("acme"))
    notes = await all_of(admin.admin.audit())
    assert sorted((n["kind"], n["action"], n["status"]) for n in notes) == [
        ("admin", "createTenant", 201), ("admin", "createTenant", 409),
        ("denied", "listTenantKeys", 401), ("denied", "listTenantKeys", 401),
    ]  # fmt: skip
    assert {n["detail"] for n in notes if n["kind"] == "admin"} == {"acme"}
    (known,) = [n for n in notes if n["tenant"] == "default"]
    assert known["key"] == system.key.split("_")[1]
    assert known["target"] == "/v1/admin/tenants/acme/keys"
    assert {n["address"] for n in notes} == {"127.0.0.1"}
    assert (await refusal(all_of(admin.admin.audit({"kind": "all"}))))[0] == 400
