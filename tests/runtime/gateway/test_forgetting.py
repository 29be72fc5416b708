"""An operator deletes everything of a tenant: no byte of it is left in the data directory."""

import asyncio
from pathlib import Path

import aiohttp
import pytest
from symphony_runtime.client import Client, ServerError
from symphony_runtime.compiler import Compiled, Compiler
from symphony_runtime.gateway.problems import Problem

from tests.e2e import programs as guests
from tests.support.guests import data, main
from tests.support.house import House

MARKER = "marker-4f9c1e"
LATE = {"Idempotency-Key": "late"}
# Sends its input, logs it, and holds the marker itself.
TELL = guests.wasm(
    main(
        """(local.set $n (call $input_read (i32.const 100) (i32.const 4000)))
           (drop (call $send (i32.const 100) (local.get $n)))
           (drop (call $log (i32.const 1) (i32.const 100) (local.get $n)))
           (i32.const 0)""",
        data(0, MARKER),
        locals_="(local $n i32)",
    )
)
HANG = guests.wasm(main("(call $await (call $sleep (i64.const 86400000))) (i32.const 0)"))
# Saves what it has computed under a name that has the marker, durably, and offers it.
SAVE = guests.wasm(
    main(
        f"""(local.set $kv (call $kv_create))
           (drop (call $claim (call $pred (local.get $kv) (i32.const 0) (i32.const 64)
                                          (i32.const 0) (i32.const 0) (i32.const 0))
                              (i32.const 2000) (i32.const 8)))
           (drop (call $kv_offer (local.get $kv)))
           (call $kv_save (local.get $kv) (i32.const 3000) (i32.const {len(MARKER)})
                          (i32.const 1))""",
        data(3000, MARKER),
        locals_="(local $kv i32)",
    )
)


def left_of(folder: Path, text: str) -> list[str]:
    """The files below a folder that hold a text, in their bytes or their names."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [str(p) for p in files if text.encode() in p.read_bytes() or text in p.name]


async def fill(house: House, client: Client, key: str) -> str:
    """Let a tenant leave the marker wherever it can; return a run that goes on."""
    for name, wasm in (("tell", TELL), ("hang", HANG), ("save", SAVE), (MARKER, TELL)):
        await client.upload(wasm, name)
    for _ in range(3):
        assert (await client.run("tell", f"say {MARKER}"))["exit_code"] == 0
    assert (await client.run("save"))["exit_code"] == 0
    headers = {"Authorization": f"Bearer {key}", "Idempotency-Key": MARKER}
    async with aiohttp.ClientSession(house.url, headers=headers) as session:
        secret = {"value": f"{MARKER}-value", "hosts": ["a.com"]}
        async with session.put(f"/v1/secrets/{MARKER.replace('-', '_')}", json=secret) as response:
            assert response.status == 201
        body = {"input": MARKER}
        async with session.post("/v1/programs/tell/runs", json=body) as response:
            assert response.status == 200
    return await client.start("hang", MARKER)


def test_no_byte_is_left_of_a_tenant(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with House(tmp_path) as house, Client(house.url, house.admin_key) as admin:
            await admin.create_tenant("acme")
            key = (await admin.create_key("acme", role="tenant"))["key"]
            async with Client(house.url, key) as client, house.client() as other:
                await fill(house, client, key)
                await other.upload(guests.HELLO_WASM, "mine")
                kept = await other.start("mine")
                assert len(left_of(tmp_path, MARKER)) >= 3
                with pytest.raises(ServerError) as refused:
                    await admin._json("DELETE", "/v1/admin/tenants/acme")
                assert refused.value.status == 409
                await admin._json("DELETE", "/v1/admin/tenants/acme", {"everything": "1"})
                with pytest.raises(ServerError) as gone:
                    await client.upload(TELL, "tell")
                assert gone.value.status == 401
                assert left_of(tmp_path, MARKER) == []
                # Nothing of others went.
                assert (await other.result(kept))["status"] in ("running", "exited")
                assert (await other.run("mine"))["output"] == "hello"
            assert house.gateway.services.runs.live("acme") == []
            counted = house.kernel.statistics()
            assert counted["prefix_cache_pages"] == 0
            assert not any(name.startswith("acme/") for name in house.worker._programs)
            # Whoever is called so next finds nothing.
            await admin.create_tenant("acme")
            key = (await admin.create_key("acme", role="tenant"))["key"]
            async with Client(house.url, key) as client:
                for listing in (client.programs(), client.runs(), client.kv()):
                    assert [item async for item in listing] == []
        assert left_of(tmp_path, MARKER) == []

    asyncio.run(scenario())


def test_a_deleted_program_leaves_its_worker_when_no_run_uses_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with House(tmp_path) as house, house.client() as client:
            await client.upload(TELL, "tell")
            await client.upload(HANG, "hang")
            await client.run("tell", "x")
            live = await client.start("hang")
            assert len(house.worker._programs) == 2
            for name in ("tell", "hang"):
                await client.delete_program(name)
            async with asyncio.timeout(20):
                while len(house.worker._programs) > 1:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert list((tmp_path / "programs" / "default").iterdir()) == []
            assert left_of(tmp_path / "programs", MARKER) == []
            assert (await client.cancel(live))["status"] == "killed"

    asyncio.run(scenario())


class Gate(Compiler):
    """The real compiler, which waits until it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.began, self.open = asyncio.Event(), asyncio.Event()

    async def compile(self, wasm: bytes, functions_max: int = 1_000) -> Compiled:
        self.began.set()
        await self.open.wait()
        return await super().compile(wasm, functions_max)


def test_the_next_tenant_of_the_name_finds_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with House(tmp_path) as house, Client(house.url, house.admin_key) as admin:
            with_ = house.gateway.services
            await admin.create_tenant("acme", weight=8)
            key = (await admin.create_key("acme", role="tenant"))["key"]
            headers = {"Authorization": f"Bearer {key}", "Idempotency-Key": "one"}
            async with aiohttp.ClientSession(house.url, headers=headers) as session:
                secret = {"value": f"{MARKER}-value", "hosts": ["a.com"]}
                async with session.put("/v1/secrets/TOKEN", json=secret) as response:
                    assert response.status == 201
                async with session.post("/v1/programs", data=guests.HELLO_WASM) as response:
                    program = (await response.json())["id"]
                async with session.delete(f"/v1/programs/{program}") as response:
                    assert response.status == 204
                gate = with_.programs._compiler = Gate()
                late = asyncio.create_task(session.post("/v1/programs", data=TELL, headers=LATE))
                await asyncio.wait_for(gate.began.wait(), 20)
                await admin._json("DELETE", "/v1/admin/tenants/acme")
                gate.open.set()
                await asyncio.wait([late], timeout=20)
                assert late.exception() is not None  # cut off with its key
            async with asyncio.timeout(20):
                while with_.administration.visits.statistics()["requests"]:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await admin.create_tenant("acme")
            headers["Authorization"] = f"Bearer {(await admin.create_key('acme'))['key']}"
            async with aiohttp.ClientSession(house.url, headers=headers) as session:
                for listing in ("secrets", "programs"):
                    async with session.get(f"/v1/{listing}") as response:
                        assert (await response.json())["data"] == []
                # The key of the one before is not known.
                async with session.post("/v1/programs", data=guests.SPIN_WASM) as response:
                    assert response.status == 201
            assert house.kernel._scheduler._queue.tenant_weight("acme") == 1.0
        assert left_of(tmp_path, MARKER) == []

    asyncio.run(scenario())


def test_a_run_that_has_just_begun_keeps_its_tenant(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with House(tmp_path) as house, house.client() as client:
            await client.upload(HANG, "hang")
            live = await client.start("hang")
            with pytest.raises(Problem) as refused:
                await house.gateway.services.administration.delete_tenant("default")
            assert refused.value.fields["left"] == ["live runs"]
            assert (await client.cancel(live))["status"] == "killed"

    asyncio.run(scenario())
