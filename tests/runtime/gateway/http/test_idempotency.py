"""A request that comes twice under one Idempotency-Key has effects once."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from symphony import AsyncClient
from symphony_runtime.gateway.cluster.members import Members
from symphony_runtime.gateway.errors import Problem
from symphony_runtime.gateway.http import idempotency as module
from symphony_runtime.gateway.http.idempotency import Idempotency, KeyedRequest
from symphony_runtime.gateway.runs.record import next_boot
from symphony_runtime.gateway.storage.store import Store

from tests.e2e import programs as guests
from tests.support.gateway.stores import open_store, with_store
from tests.support.gateway.system import SystemRig, refusal, with_system
from tests.support.run_by import run_by
from tests.support.waiting import wait_until

DAY_MS = 86_400_000


class Gateway:
    """Keys in a store of their own, and a count of what was done."""

    def __init__(self, store: Store, boot: int = 1) -> None:
        self.now = 1_000_000
        self.keys = Idempotency(store, lambda: self.now, boot)
        self.acts: list[tuple[str, bool]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None

    async def perform(
        self, key: str, digest: str, outcome: str, tenant: str = "a"
    ) -> tuple[str, bool]:
        once = KeyedRequest(tenant, key.encode(), digest.encode())
        return await self.keys.perform(once, outcome, self._act)

    async def _act(self, outcome: str, again: bool) -> None:
        self.acts.append((outcome, again))
        await self.gate.wait()
        if self.error is not None:
            raise self.error

    async def held(self, key: str, outcome: str) -> "asyncio.Task[tuple[str, bool]]":
        """Begin a request that acts until the gate opens."""
        self.gate.clear()
        count = len(self.acts)
        task = asyncio.create_task(self.perform(key, "d", outcome))
        await wait_until(lambda: len(self.acts) > count)
        return task


def in_store(
    tmp_path: Path, url: str, scenario: Callable[[Gateway, Store], Awaitable[None]]
) -> None:
    with_store(tmp_path, url, lambda store: scenario(Gateway(store), store))


@pytest.fixture
def sqlite_url() -> str:
    return ""


async def counted(store: Store) -> dict[str, int]:
    """Each tenant's keys, after a check that they are counted right."""
    kept = await store.read(
        lambda c: c.execute("SELECT tenant, keys FROM idempotency_counts").fetchall()
    )
    sql = "SELECT tenant, COUNT(*) FROM idempotency GROUP BY tenant"
    there = await store.read(lambda c: c.execute(sql).fetchall())
    found = {row["tenant"]: row["keys"] for row in kept if row["keys"]}
    assert found == {row[0]: int(row[1]) for row in there}
    return found


@run_by(in_store, "tmp_path", "sqlite_url")
async def test_second_request_gets_the_firsts_outcome(gateway: Gateway, store: Store) -> None:
    assert await gateway.perform("k", "d", "one") == ("one", False)
    assert await gateway.perform("k", "d", "two") == ("one", True)
    assert await gateway.perform("k", "d", "other", tenant="b") == ("other", False)
    assert await Gateway(store, 2).perform("k", "d", "later") == ("one", True), "after a restart"
    assert gateway.acts == [("one", False), ("other", False)]
    assert (await refusal(gateway.perform("k", "else", "three")))[0] == 422


@run_by(in_store, "tmp_path", "sqlite_url")
async def test_second_request_waits_for_the_first(gateway: Gateway, _: Store) -> None:
    first = await gateway.held("k", "one")
    second = asyncio.create_task(gateway.perform("k", "d", "two"))
    assert (await refusal(gateway.perform("k", "else", "three")))[0] == 422
    gateway.gate.set()
    assert [await first, await second] == [("one", False), ("one", True)]
    assert len(gateway.acts) == 1


@run_by(in_store, "tmp_path", "sqlite_url")
async def test_failed_request_releases_its_key(gateway: Gateway, _: Store) -> None:
    gateway.error = Problem(503, "unavailable", "not now")
    first = await gateway.held("k", "one")
    tries = [first, *(asyncio.create_task(gateway.perform("k", "d", "one")) for _ in range(2))]
    await asyncio.sleep(0)
    gateway.gate.set()
    found = await asyncio.gather(*tries, return_exceptions=True)
    assert [isinstance(each, Problem) and each.status for each in found] == [503] * 3
    gateway.error = None
    assert await gateway.perform("k", "else", "two") == ("two", False)


@run_by(in_store, "tmp_path", "sqlite_url")
async def test_request_of_a_dead_gateway_continues_under_its_id(
    gateway: Gateway, store: Store
) -> None:
    dying = await gateway.held("k", "one")
    after = Gateway(store, 2)  # the gateway that died did not note that it was done
    assert await after.perform("k", "d", "two") == ("one", False)
    assert after.acts == [("one", True)]
    gateway.gate.set()
    await dying


@run_by(in_store, "tmp_path", "store_url")
async def test_keys_are_kept_for_a_day_and_bounded(
    gateway: Gateway, store: Store, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TENANT_IDEMPOTENCY_KEYS_MAX", 3)
    for number in range(3):
        await gateway.perform(f"k{number}", "d", "one")
        gateway.now += 1_000
    with pytest.raises(Problem) as problem:
        await gateway.perform("more", "d", "one")
    assert (problem.value.status, problem.value.headers["Retry-After"]) == (429, "300")
    await gateway.perform("k0", "d", "two")
    await gateway.perform("more", "d", "one", tenant="b")
    gateway.now += DAY_MS - 3_000
    assert await gateway.perform("k0", "else", "new") == ("new", False)
    assert await gateway.keys.purge() == 0
    assert await counted(store) == {"a": 3, "b": 1}
    gateway.error = Problem(503, "unavailable", "not now")
    for _ in range(3):  # a request that is refused has no key
        await refusal(gateway.perform("fails", "d", "one", tenant="b"))
    assert await counted(store) == {"a": 3, "b": 1}
    gateway.error = None
    gateway.now += DAY_MS
    assert await gateway.keys.purge() == 4
    assert await counted(store) == {}


@run_by(in_store, "tmp_path", "store_url")
async def test_new_key_purges_a_few_old_ones(
    gateway: Gateway, store: Store, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a claim costs the same, however many keys the tenant has."""
    monkeypatch.setattr(module, "_CLAIM_PURGE_KEYS", 2)
    monkeypatch.setattr(module, "TENANT_IDEMPOTENCY_KEYS_MAX", 6)
    for number in range(6):
        await gateway.perform(f"k{number}", "d", "one")
        gateway.now += 1
    gateway.now += DAY_MS
    await gateway.perform("new", "d", "one")
    assert await counted(store) == {"a": 5}
    # A key that is too old and still there counts as gone.
    assert await gateway.perform("k5", "else", "two") == ("two", False)
    assert await gateway.perform("k5", "else", "three") == ("two", True)
    assert await counted(store) == {"a": 2}


# --- Several gateways ----------------------------------------------------------------------------
def between_two(
    folder: Path, url: str, scenario: Callable[[Gateway, Gateway], Awaitable[None]]
) -> None:
    """Run a scenario with the keys of two gateways, of starts 1 and 2, on one PostgreSQL."""

    async def main() -> None:
        async with (
            open_store(folder / "first", url) as one,
            open_store(folder / "second", url) as two,
        ):
            first = Gateway(one, await enter(one, "first"))
            await scenario(first, Gateway(two, await enter(two, "second")))

    for name in ("first", "second"):
        (folder / name).mkdir()
    asyncio.run(main())


async def enter(store: Store, name: str) -> int:
    """Start a gateway; return its start's number."""
    boot = await store.write(lambda c: next_boot(c, name))
    await Members(store, name, boot, lambda: 0).record_start()
    return boot


@run_by(between_two, "tmp_path", "postgres_url")
async def test_key_at_two_gateways_begins_one_request(first: Gateway, second: Gateway) -> None:
    both = (("a", first), ("b", second))
    asked = [
        gateway.perform(f"k{number}", "d", f"{which}{number}")
        for number in range(20)
        for which, gateway in both
    ]
    found = await asyncio.gather(*asked)
    for one, other in zip(found[::2], found[1::2], strict=True):
        assert one[0] == other[0]
        assert sorted((one[1], other[1])) == [False, True]
    assert len(first.acts) + len(second.acts) == 20


@run_by(between_two, "tmp_path", "postgres_url")
async def test_key_in_use_elsewhere_is_waited_for(
    first: Gateway, second: Gateway, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Until the request there has failed.
    first.error = Problem(503, "unavailable", "not now")
    one = await first.held("k", "one")
    two = asyncio.create_task(second.perform("k", "d", "two"))
    await asyncio.sleep(0.02)
    assert (await refusal(second.perform("k", "else", "three")))[0] == 422
    first.gate.set()
    assert await two == ("two", False)
    await refusal(one)
    assert second.acts == [("two", False)]
    # Until the gateway there has started again.
    dying = await first.held("l", "one")
    waiting = asyncio.create_task(second.perform("l", "d", "two"))
    await asyncio.sleep(0.1)
    assert len(second.acts) == 1
    await enter(first.keys._store, "first")
    assert await waiting == ("one", False)
    assert second.acts[1:] == [("one", True)]
    first.error = None
    first.gate.set()
    await dying
    # At most for a bounded time.
    monkeypatch.setattr(module, "IDEMPOTENCY_ELSEWHERE_SECONDS_MAX", 0.1)
    third = Gateway(first.keys._store, await enter(first.keys._store, "first"))
    slow = await third.held("m", "one")
    assert await refusal(second.perform("m", "d", "two")) == (409, "idempotency-under-way")
    third.gate.set()
    assert await slow == ("one", False)


# --- Through HTTP --------------------------------------------------------------------------------
@run_by(with_system, "tmp_path")
async def test_keyed_runs_and_uploads_have_effects_once(
    system: SystemRig, client: AsyncClient
) -> None:
    async def post(path: str, key: str, **body: Any) -> tuple[int, Any, str | None]:
        answer = await system.ask("POST", path, headers={"Idempotency-Key": key}, **body)
        stream = answer.headers["Content-Type"].startswith("text/event-stream")
        shown = answer.body.decode() if stream else answer.json
        return answer.status, shown, answer.headers.get("Idempotent-Replayed")

    async def start(key: str, text: str, program: str = "echo", **options: Any) -> Any:
        detach = int(program == "hang")
        path = f"/v1/programs/{program}/runs?detach={detach}"
        return await post(path, key, json={"input": text, **options})

    async def upload(wasm: bytes, key: str) -> tuple[int, Any, str | None]:
        return await post("/v1/programs?name=named", key, data=wasm)

    await client.programs.upload(guests.ECHO_WASM, "echo")
    await client.programs.upload(guests.HANG_WASM, "hang")
    first, again = await start("k", "hi"), await start("k", "hi")
    assert first[:2] == again[:2] == (200, first[1])
    assert (first[2], again[2]) == (None, "true")
    assert (first[1]["output"], first[1]["exit_code"]) == ("hi", 7)
    assert (await start("k", "other"))[0] == 422
    # Detached and streamed: the same run, live or not.
    several = await asyncio.gather(*(start("h", "", "hang") for _ in range(5)))
    runs = {document["id"] for status, document, _ in several if status == 202}
    assert len(runs) == 1
    assert len(await client.runs.live()) == 1
    await client.runs.cancel(runs.pop())
    text = (await start("s", "hi", stream=True))[1]
    assert (await start("s", "hi", stream=True))[1] == text
    assert text.count("event: message") == 1
    # A run that was deleted is not started again.
    await client.runs.delete(first[1]["id"])
    assert (await start("k", "hi"))[0] == 410
    assert len([run async for run in client.runs.list()]) == 2
    # A second upload does not move a name back.
    await upload(guests.HELLO_WASM, "u1")
    await upload(guests.ECHO_WASM, "u2")
    status, program, replayed = await upload(guests.HELLO_WASM, "u1")
    assert (status, replayed) == (200, "true")
    assert (await client.programs.get("named"))["id"] != program["id"]
    for bad in ("", "x" * 256, "ä"):
        assert (await start(bad, "hi"))[0] == 400
