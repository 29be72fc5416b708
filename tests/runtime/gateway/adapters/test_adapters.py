"""`/v1/adapters` over HTTP: what is stored and loaded, for whom, and within which bounds.

The kernel here is simulated, and takes any files.
"""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import msgpack
import pytest
from symphony import AsyncClient, ServerError
from symphony_runtime.config.limits import parse_limits

from tests.support.executor.byte_model import byte_assets
from tests.support.gateway.system import Answer, SystemRig, with_system
from tests.support.run_by import run_by

CONFIG = '{"peft_type": "LORA"}'


async def put(
    system: SystemRig, name: str, weights: bytes = b"w" * 1_000, config: str = CONFIG, **more: Any
) -> Answer:
    form = aiohttp.FormData()
    form.add_field("config", config)
    form.add_field("file", weights, filename="adapter_model.safetensors")
    return await system.ask("PUT", f"/v1/adapters/{name}", data=form, **more)


async def names(system: SystemRig, key: str | None = None) -> list[str]:
    page = (await system.ask("GET", "/v1/adapters", key=key)).json
    return [adapter["name"] for adapter in page["data"]]


async def loaded(system: SystemRig, tenant: str = "default") -> list[list[Any]]:
    """Return what the kernel has of a tenant: [name or None, digest, bytes]."""
    found: list[list[Any]] = await system.gateway.services.runs.kernel.ask(
        "adapters", tenant=tenant
    )
    return sorted(found, key=str)


def folders(system: SystemRig, tenant: str = "default") -> set[str]:
    home = system.data_dir / "adapters" / tenant
    return {folder.name for folder in home.iterdir()} if home.is_dir() else set()


@run_by(with_system, "tmp_path")
async def test_adapter_is_stored_loaded_listed_and_deleted(
    system: SystemRig, client: AsyncClient
) -> None:
    told = await put(system, "legal")
    adapter = told.json
    assert told.status == 201
    digest = adapter["id"].removeprefix("sha256:")
    assert adapter | {"id": "", "created_ms": 0} == {
        "name": "legal", "id": "", "model": "simulated:legal", "bytes": 1_000, "rank": 1,
        "created_ms": 0,
    }  # fmt: skip
    assert await client.adapters.get("legal") == adapter
    assert [each async for each in client.adapters.list()] == [adapter]
    assert await loaded(system) == [["legal", digest, 1_000 + len(CONFIG)]]
    assert folders(system) == {digest}
    assert (await system.ask("GET", "/v1/files")).json["data"] == []
    await client.adapters.delete("legal")
    assert await names(system) == []
    assert await loaded(system) == []
    assert folders(system) == set()
    for method in ("GET", "DELETE"):
        assert (await system.ask(method, "/v1/adapters/legal")).status == 404


@run_by(with_system, "tmp_path")
async def test_replaced_adapter_has_another_id_and_the_same_files_have_the_same(
    system: SystemRig, client: AsyncClient
) -> None:
    first = (await put(system, "a")).json
    again = await put(system, "a")
    assert (again.status, again.json["id"]) == (200, first["id"])
    assert (await put(system, "b")).json["id"] == first["id"]
    assert (await put(system, "a", config='{"peft_type":"LORA"}')).json["id"] != first["id"]
    other = (await put(system, "a", b"x")).json
    assert other["id"] != first["id"]
    assert len(folders(system)) == len(await loaded(system)) == 2
    store = system.gateway.services.store
    sql = "SELECT COUNT(*) FROM files WHERE status != 'deleted'"
    assert (await store.read(lambda c: c.execute(sql).fetchone()))[0] == 2
    assert sorted([each["name"] async for each in client.adapters.list()]) == ["a", "b"]


@run_by(with_system, "tmp_path")
async def test_adapters_of_a_tenant_are_invisible_to_another(
    system: SystemRig, _: AsyncClient
) -> None:
    assert (await put(system, "mine")).status == 201
    other = await system.add_tenant("other")
    for method in ("GET", "DELETE"):
        there, nothing = [
            await system.ask(method, f"/v1/adapters/{name}", key=other) for name in ("mine", "none")
        ]
        assert there.status == nothing.status == 404
        assert there.body.replace(b"mine", b"none") == nothing.body
    assert await names(system, other) == []
    models = [
        each["id"] for each in (await system.ask("GET", "/v1/models", key=other)).json["data"]
    ]
    assert models == ["simulated"]
    models = [each["id"] for each in (await system.ask("GET", "/v1/models")).json["data"]]
    assert models == ["simulated", "simulated:mine"]
    for path, body in (
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/messages", {"max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}),
    ):
        answers = [
            await system.ask("POST", path, key=other, json={"model": f"simulated:{name}", **body})
            for name in ("mine", "none")
        ]
        assert [each.status for each in answers] == [404, 404]
        told = [each.json["error"]["message"].replace("mine", "none") for each in answers]
        assert told[0] == told[1]
    # The same name is another tenant's own.
    assert (await put(system, "mine", b"theirs", key=other)).status == 201
    assert len(await loaded(system, "other")) == 1
    assert await names(system, other) == ["mine"]


@run_by(with_system, "tmp_path")
async def test_model_shows_an_adapter_in_both_forms(system: SystemRig, _: AsyncClient) -> None:
    await put(system, "a")
    shown = (await system.ask("GET", "/v1/models/simulated:a")).json
    assert (shown["id"], shown["root"], shown["owned_by"]) == (
        "simulated:a",
        "simulated",
        "default",
    )
    version = {"anthropic-version": "2023-06-01"}
    shown = (await system.ask("GET", "/v1/models/simulated:a", headers=version)).json
    assert (shown["type"], shown["id"]) == ("model", "simulated:a")
    listed = (await system.ask("GET", "/v1/models", headers=version)).json
    assert [each["id"] for each in listed["data"]] == ["simulated", "simulated:a"]
    for name in ("other:a", "simulated:", "simulated:b", "a"):
        assert (await system.ask("GET", f"/v1/models/{name}")).status == 404


LIMITED = {"limits": parse_limits({"adapters": 2})}


@run_by(with_system, "tmp_path", **LIMITED)
async def test_more_adapters_than_the_limit_are_refused(system: SystemRig, _: AsyncClient) -> None:
    assert [(await put(system, name)).status for name in ("a", "b")] == [201, 201]
    told = await put(system, "c")
    assert (told.status, told.json["type"]) == (429, "urn:symphony:problem:too-many-adapters")
    assert told.headers["Retry-After"]
    assert (await put(system, "b", b"new")).status == 200
    assert (await system.ask("DELETE", "/v1/adapters/a")).status == 204
    assert (await put(system, "c")).status == 201


@pytest.mark.parametrize(
    ("fields", "type_"),
    [
        ({}, "bad-form"),
        ({"config": CONFIG}, "bad-form"),
        ({"file": b"w"}, "bad-form"),
        ({"config": CONFIG, "file": b"w", "more": "x"}, "bad-form"),
        ({"config": "x" * 70_000, "file": b"w"}, "bad-form"),
    ],
    ids=["nothing", "no file", "no config", "more", "a long config"],
)
@run_by(with_system, "tmp_path")
async def test_wrong_form_is_refused(
    system: SystemRig, _: AsyncClient, *, fields: dict[str, Any], type_: str
) -> None:
    form = aiohttp.FormData(default_to_multipart=True)
    for name, value in fields.items():
        named = {"filename": "f"} if name == "file" else {}
        form.add_field(name, value, **named)
    told = await system.ask("PUT", "/v1/adapters/a", data=form)
    assert (told.status, told.json["type"]) == (400, f"urn:symphony:problem:{type_}")
    assert await names(system) == []
    assert folders(system) == set()


@pytest.mark.parametrize("name", ["-a", "a" * 65, "a:b", "%C3%A4", "%20"])
@run_by(with_system, "tmp_path")
async def test_wrong_name_is_refused(system: SystemRig, _: AsyncClient, *, name: str) -> None:
    told = await put(system, name)
    assert (told.status, told.json["type"]) == (400, "urn:symphony:problem:bad-name")


@run_by(with_system, "tmp_path")
async def test_refused_adapter_leaves_nothing(
    system: SystemRig, _: AsyncClient, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    from symphony_kernel.executor.adapters.config import AdapterError

    def refuse(_identity: str, folder: Any) -> None:
        raise AdapterError(f"{folder}/adapter_config.json: no")

    assert (await put(system, "a", b"old")).status == 201
    monkeypatch.setattr(system.kernel._executor, "load_adapter", refuse)
    told = await put(system, "a", b"new")
    assert (told.status, told.json["type"]) == (400, "urn:symphony:problem:bad-adapter")
    assert told.json["detail"] == "adapter_config.json: no"
    assert len(folders(system)) == len(await loaded(system)) == 1
    assert (await system.ask("GET", "/v1/adapters/a")).json["bytes"] == 3
    store = system.gateway.services.store
    sql = "SELECT COUNT(*) FROM files"
    assert (await store.read(lambda c: c.execute(sql).fetchone()))[0] == 1


async def _answer(system: SystemRig, model: str) -> Answer:
    body = {"model": model, "prompt": [5, 6, 7], "max_tokens": 4, "temperature": 0}
    return await system.ask("POST", "/v1/completions", json={**body, "return_token_ids": True})


def _text(answer: Answer) -> Any:
    assert answer.status == 200, answer
    return answer.json["choices"][0]


@run_by(with_system, "tmp_path", assets=byte_assets())
async def test_completions_use_the_adapter_also_after_a_kernel_that_lost_its_state(
    system: SystemRig, _: AsyncClient
) -> None:
    await put(system, "a", b"one")
    await put(system, "b", b"two")
    before = [_text(await _answer(system, f"simulated{name}")) for name in ("", ":a", ":b")]
    assert len({str(each) for each in before}) == 3
    await system.restart_kernel()
    await system.wait_until_ready()
    assert await loaded(system) == []  # until a run needs them
    after = [_text(await _answer(system, f"simulated{name}")) for name in (":b", ":a", "")]
    assert after[::-1] == before
    assert [each[0] for each in await loaded(system)] == ["a", "b"]


async def test_adapters_are_there_after_a_restart_of_the_server(tmp_path: Path) -> None:
    async with SystemRig(tmp_path, assets=byte_assets()) as system:
        adapter = (await put(system, "a")).json
        before = _text(await _answer(system, "simulated:a"))
    async with SystemRig(tmp_path, assets=byte_assets()) as again:
        assert (await again.ask("GET", "/v1/adapters/a")).json == adapter
        assert _text(await _answer(again, "simulated:a")) == before


@run_by(with_system, "tmp_path")
async def test_deleted_tenant_leaves_no_adapters(system: SystemRig, _: AsyncClient) -> None:
    key = await system.add_tenant("gone")
    assert (await put(system, "a", key=key)).status == 201
    async with system.admin() as admin:
        with pytest.raises(ServerError, match="files"):
            await admin.admin.delete_tenant("gone")
        await admin.admin.delete_tenant("gone", everything=True)
    assert folders(system, "gone") == set()
    assert await loaded(system, "gone") == []
    key = await system.add_tenant("gone")
    assert await names(system, key) == []


@run_by(with_system, "tmp_path")
async def test_simultaneous_uploads_of_a_name_leave_one(system: SystemRig, _: AsyncClient) -> None:
    told = await asyncio.gather(*(put(system, "a", bytes([each])) for each in range(8)))
    assert sorted(each.status for each in told) == [200] * 7 + [201]
    (digest,) = folders(system)
    assert [each[:2] for each in await loaded(system)] == [["a", digest]]
    assert (await system.ask("GET", "/v1/adapters/a")).json["id"] == f"sha256:{digest}"


def test_options_name_an_adapter_in_msgpack() -> None:
    """The bytes that programs send: a change of them would break uploaded programs."""
    assert msgpack.packb({"adapter": "a"}) == b"\x81\xa7adapter\xa1a"
