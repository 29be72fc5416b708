"""An operator deletes everything of a tenant: no byte of it is left in the data directory."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from symphony import AsyncClient, ServerError
from symphony_runtime.compiler.compiler import Compiled, Compiler
from symphony_runtime.gateway.cluster.members import note_departure
from symphony_runtime.gateway.errors import Problem
from symphony_runtime.gateway.programs.store import Program
from symphony_runtime.gateway.storage import changes
from symphony_runtime.gateway.tenancy import deletion

from tests.e2e import programs as guests
from tests.runtime.gateway.cluster.test_gateways import between_two
from tests.support.gateway.stores import count_rows
from tests.support.gateway.system import Scenario, SystemRig, refused, with_admin, with_system
from tests.support.run_by import run_by
from tests.support.waiting import wait_until
from tests.support.worker.guests import call, data, drop, main
from tests.support.worker.snippets import CREATE, KV, PRED

MARKER = "marker-4f9c1e"
LATE = {"Idempotency-Key": "late"}
# Sends its input, logs it, and holds the marker itself.
TELL = guests.wasm(
    main(
        f"""(local.set $n {call("input_read", 100, 4_000)})
        {drop("send", 100, "(local.get $n)")} {drop("log", 1, 100, "(local.get $n)")}
        (i32.const 0)""",
        data(0, MARKER),
        locals_="(local $n i32)",
    )
)
# Saves what it has computed under a name that has the marker, durably, and offers it.
SAVE = guests.wasm(
    main(
        f"""{CREATE} {drop("claim", PRED, 2000, 8)} {drop("kv_offer", KV)}
        {call("kv_save", KV, 3000, len(MARKER), 1)}""",
        data(3000, MARKER),
        locals_="(local $kv i32)",
    )
)


def left_of(folder: Path, text: str = MARKER) -> list[str]:
    """The files below a folder that hold a text, in their bytes or their names."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [str(p) for p in files if text.encode() in p.read_bytes() or text in p.name]


def administer(tmp_path: Path, scenario: Scenario) -> None:
    """Run a scenario with an operator's client; no marker may be left afterwards."""
    with_admin(tmp_path, scenario)
    assert left_of(tmp_path) == []


async def save(client: AsyncClient) -> None:
    await client.programs.upload(SAVE, "save")
    assert (await client.run("save"))["exit_code"] == 0


async def fill(system: SystemRig, client: AsyncClient, key: str) -> None:
    """Let a tenant leave the marker in all places that it can, and a run that continues."""
    for name, wasm in (("tell", TELL), ("hang", guests.HANG_WASM), (MARKER, TELL)):
        await client.programs.upload(wasm, name)
    for _ in range(3):
        assert (await client.run("tell", f"say {MARKER}"))["exit_code"] == 0
    await save(client)
    async with system.session(key, **{"Idempotency-Key": MARKER}) as session:
        secret = {"value": f"{MARKER}-value", "hosts": ["a.com"]}
        async with session.put(f"/v1/secrets/{MARKER.replace('-', '_')}", json=secret) as response:
            assert response.status == 201
        body = {"input": MARKER}
        async with session.post("/v1/programs/tell/runs", json=body) as response:
            assert response.status == 200
    await client.start("hang", MARKER)


async def check_empty(client: AsyncClient) -> None:
    for listing in (client.programs.list(), client.runs.list(), client.kv.list()):
        assert [item async for item in listing] == []


@run_by(administer, "tmp_path")
async def test_deleted_tenant_leaves_no_byte(system: SystemRig, admin: AsyncClient) -> None:
    key = await system.add_tenant("acme")
    async with AsyncClient(system.url, key, retries=0) as client, system.client() as other:
        await fill(system, client, key)
        await other.programs.upload(guests.HELLO_WASM, "mine")
        kept = await other.start("mine")
        assert len(left_of(system.data_dir)) >= 3
        assert (await refused(admin.admin.delete_tenant("acme"))).status == 409
        await admin.admin.delete_tenant("acme", everything=True)
        assert (await refused(client.programs.upload(TELL, "tell"))).status == 401
        assert left_of(system.data_dir) == []
        # Nothing of others went.
        assert (await other.runs.get(kept))["status"] in ("running", "exited")
        assert (await other.run("mine"))["output"] == "hello"
    assert system.gateway.services.runs.live("acme") == []
    assert system.kernel.statistics()["prefix_cache_pages"] == 0
    assert not any(name.startswith("acme/") for name in system.worker._programs)
    # The next tenant of that name finds nothing.
    async with system.tenant("acme") as client:
        await check_empty(client)


@run_by(with_system, "tmp_path")
async def test_deleted_program_leaves_after_its_runs(
    system: SystemRig, client: AsyncClient
) -> None:
    await client.programs.upload(TELL, "tell")
    await client.programs.upload(guests.HANG_WASM, "hang")
    await client.run("tell", "x")
    live = await client.start("hang")
    assert len(system.worker._programs) == 2
    for name in ("tell", "hang"):
        await client.programs.delete(name)
    await wait_until(lambda: len(system.worker._programs) == 1)
    assert list((system.data_dir / "programs" / "default").iterdir()) == []
    assert left_of(system.data_dir / "programs") == []
    assert (await client.runs.cancel(live))["status"] == "killed"


class Gate(Compiler):
    """The real compiler, which waits until `open` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.began, self.open = asyncio.Event(), asyncio.Event()

    async def compile(self, *given: Any, **named: Any) -> Compiled:
        self.began.set()
        await self.open.wait()
        return await super().compile(*given, **named)


@run_by(administer, "tmp_path")
async def test_next_tenant_of_the_name_finds_nothing(system: SystemRig, admin: AsyncClient) -> None:
    services = system.gateway.services
    key = await system.add_tenant("acme", weight=8)
    async with system.session(key, **{"Idempotency-Key": "one"}) as session:
        secret = {"value": f"{MARKER}-value", "hosts": ["a.com"]}
        async with session.put("/v1/secrets/TOKEN", json=secret) as response:
            assert response.status == 201
        async with session.post("/v1/programs", data=guests.HELLO_WASM) as response:
            program = (await response.json())["id"]
        async with session.delete(f"/v1/programs/{program}") as response:
            assert response.status == 204
        gate = services.programs._compiler = Gate()
        late = asyncio.create_task(session.post("/v1/programs", data=TELL, headers=LATE))
        await asyncio.wait_for(gate.began.wait(), 20)
        await admin.admin.delete_tenant("acme")
        gate.open.set()
        await asyncio.wait([late], timeout=20)
        assert late.exception() is not None  # cut off with its key
    requests = services.administration.active_requests
    await wait_until(lambda: not requests.statistics()["requests"])
    key = await system.add_tenant("acme")
    for listing in ("secrets", "programs"):
        assert (await system.ask("GET", f"/v1/{listing}", key=key)).json["data"] == []
    # The former tenant's Idempotency-Key is not known.
    headers = {"Idempotency-Key": "one"}
    upload = system.ask("POST", "/v1/programs", key=key, headers=headers, data=guests.SPIN_WASM)
    assert (await upload).status == 201
    assert system.kernel._scheduler._queue.tenant_weight("acme") == 1.0


@run_by(with_admin, "tmp_path")
async def test_uploads_of_a_deleted_tenant_leave_nothing(
    system: SystemRig, admin: AsyncClient
) -> None:
    """A KV file of which a part has come, one on its way to the disk, and a program."""
    services = system.gateway.services
    key = await system.add_tenant("acme")
    async with AsyncClient(system.url, key, retries=0) as client:
        await save(client)
        file = b"".join([piece async for piece in client.kv.download(MARKER)])
    disk = system.kernel.durable_names.durable_names.disk
    assert disk is not None
    slow, gate = SlowDisk(disk._run), Gate()
    disk._run = slow
    letting = asyncio.get_running_loop().call_later(15, slow.go.set)  # so that a failed test ends
    services.programs._compiler = gate
    half_sent = asyncio.Event()

    async def half() -> AsyncIterator[bytes]:
        yield file[: len(file) // 2]
        half_sent.set()
        await asyncio.Event().wait()

    async with system.session(key) as session:
        uploads = [
            asyncio.create_task(session.put(f"/v1/kv/half-{MARKER}", data=half())),
            asyncio.create_task(session.put(f"/v1/kv/whole-{MARKER}", data=file)),
            asyncio.create_task(session.post("/v1/programs?name=late", data=TELL)),
        ]
        async with asyncio.timeout(20):
            await asyncio.gather(*[e.wait() for e in (half_sent, slow.began, gate.began)])
        deleting = asyncio.create_task(admin.admin.delete_tenant("acme", everything=True))
        await asyncio.wait(uploads, timeout=20)
        # They are cut off. The client repeats a request where it may, and is refused.
        ends = [each.exception() or each.result().status for each in uploads]
        statuses = [end for end in ends if not isinstance(end, aiohttp.ClientError)]
        assert len(statuses) < len(ends)
        assert set(statuses) <= {401, 403}
        assert not deleting.done()
        slow.go.set()
        letting.cancel()
        await asyncio.wait_for(deleting, 20)
    assert left_of(system.data_dir) == []
    assert list((system.data_dir / "kv" / "uploads").iterdir()) == []
    assert not (system.data_dir / "programs" / "acme").exists()
    assert await rows_of(system, "acme") == {}


class SlowDisk:
    """Does the work of the real one once `go` is set."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self.began, self.go = asyncio.Event(), asyncio.Event()

    async def __call__(self, work: Callable[[], Any]) -> Any:
        self.began.set()
        await self.go.wait()
        return await self._run(work)


async def rows_of(system: SystemRig, tenant: str) -> dict[str, int]:
    """How many rows the database has of a tenant, by table; usage and audit aside."""
    store, found = system.gateway.services.store, {}
    for table in ("tenants", "keys", "programs", "program_names", "program_versions", "runs",
                  "idempotency",
                  "idempotency_counts", "secrets", "forgetting"):  # fmt: skip
        column = "id" if table == "tenants" else "tenant"
        found[table] = await count_rows(store, f"{table} WHERE {column} = '{tenant}'")
    return {table: count for table, count in found.items() if count}


@run_by(administer, "tmp_path")
async def test_run_that_is_starting_ends_with_its_tenant(
    system: SystemRig, admin: AsyncClient
) -> None:
    services = system.gateway.services
    began, go = asyncio.Event(), asyncio.Event()
    artefact = services.programs.artefact

    async def slow(program: Program) -> bytes:
        began.set()
        await go.wait()
        return await artefact(program)

    async with system.tenant("acme") as client:
        await client.programs.upload(guests.HANG_WASM, "hang")
        services.programs.artefact = slow  # type: ignore[method-assign]
        starting = asyncio.create_task(client.start("hang", MARKER))
        await asyncio.wait_for(began.wait(), 20)
        deleting = asyncio.create_task(admin.admin.delete_tenant("acme", everything=True))
        await wait_until(lambda: "acme" in services.keys.suspended)
        go.set()
        await asyncio.wait_for(deleting, 20)
        await asyncio.wait([starting], timeout=20)
        # A request that began before the deletion starts nothing more.
        with pytest.raises(Problem) as gone:
            services.administration.check("acme")
        assert gone.value.status == 404
    assert services.runs.statistics()["runs"] == 0
    assert await rows_of(system, "acme") == {}


def test_unfinished_deletion_is_finished_at_the_next_start(tmp_path: Path) -> None:
    async def before(system: SystemRig, _: AsyncClient) -> None:
        async with system.tenant("acme") as client:
            await save(client)
        # It died when the tenant was gone, and its files were not.
        store = system.gateway.services.store
        await store.write(lambda c: c.execute("DELETE FROM tenants WHERE id = 'acme'").rowcount)
        await store.write(lambda c: note_departure(c, "acme", 0))

    async def after(system: SystemRig, admin: AsyncClient) -> None:
        await wait_until(lambda: forgotten(admin))
        async with system.tenant("acme") as client:
            await check_empty(client)

    with_system(tmp_path, before)
    assert left_of(tmp_path) != []
    administer(tmp_path, after)
    assert list((tmp_path / "kv").rglob("*.safetensors")) == []


async def forgotten(admin: AsyncClient) -> bool:
    """Return whether no gateway still has to forget a tenant."""
    return not any([each["forgetting"] async for each in admin.admin.gateways()])


# --- At every gateway ----------------------------------------------------------------------------
@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(deletion, "_RETRY_SECONDS", 0.05)


@pytest.mark.usefixtures("short_pauses")
@run_by(between_two, "tmp_path", "postgres_url")
async def test_deleted_tenant_is_forgotten_everywhere(first: SystemRig, second: SystemRig) -> None:
    key = await first.add_tenant("acme")
    for system in (first, second):
        async with AsyncClient(system.url, key, retries=0) as client:
            await wait_until(partial(is_known, client))
            await save(client)
    # The second cannot forget yet: its kernel is away.
    await second.stop_kernel()
    async with first.admin() as admin:
        await admin.admin.delete_tenant("acme", everything=True)
        assert left_of(first.data_dir) == []
        assert left_of(second.data_dir) != []
        error = await refused(admin.admin.create_tenant("acme"))
        shown = {each["id"]: each["forgetting"] async for each in admin.admin.gateways()}
        names = [changes.gateway_name(system.data_dir) for system in (first, second)]
        assert shown == {names[0]: [], names[1]: ["acme"]}
        assert (error.status, error.problem["gateways"]) == (409, names[1:])
        # It forgets as soon as it can. Then the name is free, and its next tenant finds nothing.
        await second.start_kernel()
        await second.link_worker_to_kernel()
        await wait_until(lambda: forgotten(admin))
    assert left_of(first.data_dir) == left_of(second.data_dir) == []
    assert not (second.data_dir / "programs" / "acme").exists()
    async with AsyncClient(second.url, await first.add_tenant("acme"), retries=0) as client:
        await wait_until(lambda: is_known(client))
        await check_empty(client)


async def is_known(client: AsyncClient) -> bool:
    """Return whether the client's gateway knows its key."""
    with contextlib.suppress(ServerError):
        _ = [item async for item in client.programs.list()]
        return True
    return False


@run_by(with_system, "tmp_path")
async def test_tenant_with_a_new_run_is_kept(system: SystemRig, client: AsyncClient) -> None:
    await client.programs.upload(guests.HANG_WASM, "hang")
    live = await client.start("hang")
    with pytest.raises(Problem) as refused:
        await system.gateway.services.administration.delete_tenant("default")
    assert refused.value.fields["left"] == ["live runs"]
    assert (await client.runs.cancel(live))["status"] == "killed"
