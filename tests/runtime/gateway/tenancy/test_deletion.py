"""An operator deletes everything of a tenant: no byte of it is left in the data directory."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from symphony_runtime.client import Client, ServerError
from symphony_runtime.compiler.compiler import USUAL, CompileBounds, Compiled, Compiler
from symphony_runtime.gateway.cluster.members import note_departure
from symphony_runtime.gateway.errors import Problem
from symphony_runtime.gateway.programs.store import Program
from symphony_runtime.gateway.storage import changes
from symphony_runtime.gateway.tenancy import deletion

from tests.e2e import programs as guests
from tests.support.gateway.postgres import Cluster
from tests.support.gateway.system import SystemRig
from tests.support.worker.guests import data, main

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


async def fill(system: SystemRig, client: Client, key: str) -> str:
    """Let a tenant leave the marker wherever it can; return a run that goes on."""
    for name, wasm in (("tell", TELL), ("hang", guests.HANG_WASM), ("save", SAVE), (MARKER, TELL)):
        await client.upload(wasm, name)
    for _ in range(3):
        assert (await client.run("tell", f"say {MARKER}"))["exit_code"] == 0
    assert (await client.run("save"))["exit_code"] == 0
    headers = {"Authorization": f"Bearer {key}", "Idempotency-Key": MARKER}
    async with aiohttp.ClientSession(system.url, headers=headers) as session:
        secret = {"value": f"{MARKER}-value", "hosts": ["a.com"]}
        async with session.put(f"/v1/secrets/{MARKER.replace('-', '_')}", json=secret) as response:
            assert response.status == 201
        body = {"input": MARKER}
        async with session.post("/v1/programs/tell/runs", json=body) as response:
            assert response.status == 200
    return await client.start("hang", MARKER)


async def test_no_byte_is_left_of_a_tenant(tmp_path: Path) -> None:
    async with SystemRig(tmp_path) as system, Client(system.url, system.admin_key) as admin:
        await admin.create_tenant("acme")
        key = (await admin.create_key("acme", role="tenant"))["key"]
        async with Client(system.url, key) as client, system.client() as other:
            await fill(system, client, key)
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
        assert system.gateway.services.runs.live("acme") == []
        counted = system.kernel.statistics()
        assert counted["prefix_cache_pages"] == 0
        assert not any(name.startswith("acme/") for name in system.worker._programs)
        # Whoever is called so next finds nothing.
        await admin.create_tenant("acme")
        key = (await admin.create_key("acme", role="tenant"))["key"]
        async with Client(system.url, key) as client:
            for listing in (client.programs(), client.runs(), client.kv()):
                assert [item async for item in listing] == []
    assert left_of(tmp_path, MARKER) == []


async def test_a_deleted_program_leaves_its_worker_when_no_run_uses_it(tmp_path: Path) -> None:
    async with SystemRig(tmp_path) as system, system.client() as client:
        await client.upload(TELL, "tell")
        await client.upload(guests.HANG_WASM, "hang")
        await client.run("tell", "x")
        live = await client.start("hang")
        assert len(system.worker._programs) == 2
        for name in ("tell", "hang"):
            await client.delete_program(name)
        async with asyncio.timeout(20):
            while len(system.worker._programs) > 1:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert list((tmp_path / "programs" / "default").iterdir()) == []
        assert left_of(tmp_path / "programs", MARKER) == []
        assert (await client.cancel(live))["status"] == "killed"


class Gate(Compiler):
    """The real compiler, which waits until it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.began, self.open = asyncio.Event(), asyncio.Event()

    async def compile(
        self, wasm: bytes, bounds: CompileBounds = USUAL, tenant: str = ""
    ) -> Compiled:
        self.began.set()
        await self.open.wait()
        return await super().compile(wasm, bounds, tenant)


async def test_the_next_tenant_of_the_name_finds_nothing(tmp_path: Path) -> None:
    async with SystemRig(tmp_path) as system, Client(system.url, system.admin_key) as admin:
        with_ = system.gateway.services
        await admin.create_tenant("acme", weight=8)
        key = (await admin.create_key("acme", role="tenant"))["key"]
        headers = {"Authorization": f"Bearer {key}", "Idempotency-Key": "one"}
        async with aiohttp.ClientSession(system.url, headers=headers) as session:
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
            while with_.administration.active_requests.statistics()["requests"]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await admin.create_tenant("acme")
        headers["Authorization"] = f"Bearer {(await admin.create_key('acme'))['key']}"
        async with aiohttp.ClientSession(system.url, headers=headers) as session:
            for listing in ("secrets", "programs"):
                async with session.get(f"/v1/{listing}") as response:
                    assert (await response.json())["data"] == []
            # The key of the one before is not known.
            async with session.post("/v1/programs", data=guests.SPIN_WASM) as response:
                assert response.status == 201
        assert system.kernel._scheduler._queue.tenant_weight("acme") == 1.0
    assert left_of(tmp_path, MARKER) == []


async def test_no_upload_that_is_under_way_leaves_anything(tmp_path: Path) -> None:
    """A KV file of which a part has come, one that is on its way to the disk, and a program."""
    async with SystemRig(tmp_path) as system, Client(system.url, system.admin_key) as admin:
        with_ = system.gateway.services
        await admin.create_tenant("acme")
        key = (await admin.create_key("acme"))["key"]
        async with Client(system.url, key) as client:
            await client.upload(SAVE, "save")
            assert (await client.run("save"))["exit_code"] == 0
            file = b"".join([piece async for piece in client.kv_download(MARKER)])
        disk = system.kernel.durable_names.durable_names.disk
        assert disk is not None
        slow, gate = SlowDisk(disk._run), Gate()
        disk._run = slow
        letting = asyncio.get_running_loop().call_later(15, slow.go.set)  # a test that fails ends
        with_.programs._compiler = gate
        half_sent = asyncio.Event()

        async def half() -> AsyncIterator[bytes]:
            yield file[: len(file) // 2]
            half_sent.set()
            await asyncio.Event().wait()

        headers = {"Authorization": f"Bearer {key}"}
        async with aiohttp.ClientSession(system.url, headers=headers) as session:
            uploads = [
                asyncio.create_task(session.put(f"/v1/kv/half-{MARKER}", data=half())),
                asyncio.create_task(session.put(f"/v1/kv/whole-{MARKER}", data=file)),
                asyncio.create_task(session.post("/v1/programs?name=late", data=TELL)),
            ]
            async with asyncio.timeout(20):
                await asyncio.gather(*[e.wait() for e in (half_sent, slow.began, gate.began)])
            query = {"everything": "1"}
            deleting = asyncio.create_task(admin._json("DELETE", "/v1/admin/tenants/acme", query))
            await asyncio.wait(uploads, timeout=20)
            # Cut off; the client asks again where it may, and is refused.
            ends = [each.exception() or each.result().status for each in uploads]
            refused = [end for end in ends if not isinstance(end, aiohttp.ClientError)]
            assert len(refused) < len(ends)
            assert set(refused) <= {401, 403}
            assert not deleting.done()
            slow.go.set()
            letting.cancel()
            await asyncio.wait_for(deleting, 20)
        assert left_of(tmp_path, MARKER) == []
        assert list((tmp_path / "kv" / "uploads").iterdir()) == []
        assert not (tmp_path / "programs" / "acme").exists()
        assert await rows_of(system, "acme") == {}


class SlowDisk:
    """Does what the real one does, once it is let."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self.began, self.go = asyncio.Event(), asyncio.Event()

    async def __call__(self, work: Callable[[], Any]) -> Any:
        self.began.set()
        await self.go.wait()
        return await self._run(work)


async def rows_of(system: SystemRig, tenant: str) -> dict[str, int]:
    """How many rows the database has of a tenant, by table; but for its books."""
    store, found = system.gateway.services.store, {}
    for table in ("tenants", "keys", "programs", "program_names", "runs", "idempotency",
                  "idempotency_counts", "secrets", "forgetting"):  # fmt: skip
        column = "id" if table == "tenants" else "tenant"
        sql = f"SELECT COUNT(*) FROM {table} WHERE {column} = ?"
        row = await store.read(lambda c, sql=sql: c.execute(sql, (tenant,)).fetchone())  # type: ignore[misc]
        if row[0]:
            found[table] = int(row[0])
    return found


async def test_a_run_that_is_being_started_ends_with_its_tenant(tmp_path: Path) -> None:
    async with SystemRig(tmp_path) as system, Client(system.url, system.admin_key) as admin:
        with_ = system.gateway.services
        await admin.create_tenant("acme")
        key = (await admin.create_key("acme"))["key"]
        began, go = asyncio.Event(), asyncio.Event()
        artefact = with_.programs.artefact

        async def slow(program: Program) -> bytes:
            began.set()
            await go.wait()
            return await artefact(program)

        async with Client(system.url, key) as client:
            await client.upload(guests.HANG_WASM, "hang")
            with_.programs.artefact = slow  # type: ignore[method-assign]
            starting = asyncio.create_task(client.start("hang", MARKER))
            await asyncio.wait_for(began.wait(), 20)
            query = {"everything": "1"}
            deleting = asyncio.create_task(admin._json("DELETE", "/v1/admin/tenants/acme", query))
            async with asyncio.timeout(20):
                while "acme" not in with_.keys.suspended:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
            go.set()
            await asyncio.wait_for(deleting, 20)
            await asyncio.wait([starting], timeout=20)
            # What is deleted begins nothing, whoever remembers it.
            with pytest.raises(Problem) as gone:
                with_.administration.check("acme")
            assert gone.value.status == 404
        assert with_.runs.statistics()["runs"] == 0
        assert await rows_of(system, "acme") == {}
    assert left_of(tmp_path, MARKER) == []


def test_what_was_to_be_forgotten_when_a_gateway_died_is_forgotten_when_it_is_back(
    tmp_path: Path,
) -> None:
    async def before() -> None:
        async with SystemRig(tmp_path) as system, Client(system.url, system.admin_key) as admin:
            await admin.create_tenant("acme")
            key = (await admin.create_key("acme"))["key"]
            async with Client(system.url, key) as client:
                await client.upload(SAVE, "save")
                assert (await client.run("save"))["exit_code"] == 0
            # It died when the tenant was gone, and what it had was not.
            store = system.gateway.services.store
            await store.write(lambda c: c.execute("DELETE FROM tenants WHERE id = 'acme'").rowcount)
            await store.write(lambda c: note_departure(c, "acme", 0))

    async def after() -> None:
        async with SystemRig(tmp_path) as system, Client(system.url, system.admin_key) as admin:
            async with asyncio.timeout(20):
                while (await anext(admin.gateways()))["forgetting"]:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await admin.create_tenant("acme")
            key = (await admin.create_key("acme"))["key"]
            async with Client(system.url, key) as client:
                for listing in (client.programs(), client.runs(), client.kv()):
                    assert [item async for item in listing] == []

    asyncio.run(before())
    assert left_of(tmp_path, MARKER) != []
    asyncio.run(after())
    assert left_of(tmp_path, MARKER) == []
    assert list((tmp_path / "kv").rglob("*.safetensors")) == []


# --- At every gateway ----------------------------------------------------------------------------
async def test_a_tenant_is_forgotten_at_every_gateway_before_its_name_is_free(
    tmp_path: Path, postgres: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(deletion, "_RETRY_SECONDS", 0.05)
    url = postgres.new_url()
    async with AsyncExitStack() as stack:
        for name in ("first", "second"):
            (tmp_path / name).mkdir()
        first, second = [
            await stack.enter_async_context(SystemRig(tmp_path / name, store=url))
            for name in ("first", "second")
        ]
        admin = await stack.enter_async_context(Client(first.url, first.admin_key))
        await admin.create_tenant("acme")
        key = (await admin.create_key("acme"))["key"]
        for system in (first, second):
            async with Client(system.url, key) as client:
                await until_known(client)
                await client.upload(SAVE, "save")
                assert (await client.run("save"))["exit_code"] == 0
        # The other one cannot forget yet: its kernel is away.
        await second.stop_kernel()
        await admin._json("DELETE", "/v1/admin/tenants/acme", {"everything": "1"})
        assert left_of(tmp_path / "first", MARKER) == []
        assert left_of(tmp_path / "second", MARKER) != []
        with pytest.raises(ServerError) as refused:
            await admin.create_tenant("acme")
        shown = {each["id"]: each["forgetting"] async for each in admin.gateways()}
        names = [changes.gateway_name(tmp_path / name) for name in ("first", "second")]
        assert shown == {names[0]: [], names[1]: ["acme"]}
        assert refused.value.status == 409
        assert refused.value.problem["gateways"] == names[1:]
        # As soon as it can it does; then the name is free, and whoever has it finds nothing.
        await second.start_kernel()
        await second.link_worker_to_kernel()
        async with asyncio.timeout(20):
            while any([each["forgetting"] async for each in admin.gateways()]):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert left_of(tmp_path, MARKER) == []
        assert not (tmp_path / "second" / "programs" / "acme").exists()
        await admin.create_tenant("acme")
        key = (await admin.create_key("acme"))["key"]
        async with Client(second.url, key) as client:
            await until_known(client)
            for listing in (client.programs(), client.runs(), client.kv()):
                assert [item async for item in listing] == []


async def until_known(client: Client) -> None:
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(ServerError):
                _ = [item async for item in client.programs()]
                return
            await asyncio.sleep(0.02)


async def test_a_run_that_has_just_begun_keeps_its_tenant(tmp_path: Path) -> None:
    async with SystemRig(tmp_path) as system, system.client() as client:
        await client.upload(guests.HANG_WASM, "hang")
        live = await client.start("hang")
        with pytest.raises(Problem) as refused:
            await system.gateway.services.administration.delete_tenant("default")
        assert refused.value.fields["left"] == ["live runs"]
        assert (await client.cancel(live))["status"] == "killed"
