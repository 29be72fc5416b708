"""A request that comes twice under one Idempotency-Key has effects once."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from symphony_runtime.gateway.cluster.members import Members
from symphony_runtime.gateway.errors import Problem
from symphony_runtime.gateway.http import idempotency as module
from symphony_runtime.gateway.http.idempotency import Idempotency, KeyedRequest
from symphony_runtime.gateway.runs.record import next_boot
from symphony_runtime.gateway.storage.store import Store

from tests.e2e import programs as guests
from tests.support.gateway.postgres import Cluster
from tests.support.gateway.stores import with_store
from tests.support.gateway.system import SystemRig
from tests.support.run_by import run_by

DAY_MS = 86_400_000


class Here:
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


def in_store(
    tmp_path: Path, scenario: Callable[[Here, Store], Awaitable[None]], url: str = ""
) -> None:
    with_store(tmp_path, url, lambda store: scenario(Here(store), store))


async def counted(store: Store) -> dict[str, int]:
    """Each tenant's keys: as they are counted, which is what there are."""
    kept = await store.read(
        lambda c: c.execute("SELECT tenant, keys FROM idempotency_counts").fetchall()
    )
    sql = "SELECT tenant, COUNT(*) FROM idempotency GROUP BY tenant"
    there = await store.read(lambda c: c.execute(sql).fetchall())
    found = {row["tenant"]: row["keys"] for row in kept if row["keys"]}
    assert found == {row[0]: int(row[1]) for row in there}
    return found


@run_by(in_store, "tmp_path")
async def test_the_second_gets_what_the_first_got(here: Here, store: Store) -> None:
    assert await here.perform("k", "d", "one") == ("one", False)
    assert await here.perform("k", "d", "two") == ("one", True)
    assert await here.perform("k", "d", "other", tenant="b") == ("other", False)
    assert await Here(store, 2).perform("k", "d", "later") == ("one", True), "after a restart"
    assert here.acts == [("one", False), ("other", False)]
    with pytest.raises(Problem) as problem:
        await here.perform("k", "else", "three")
    assert problem.value.status == 422


@run_by(in_store, "tmp_path")
async def test_who_comes_meanwhile_waits_for_it(here: Here, store: Store) -> None:
    here.gate.clear()
    first = asyncio.create_task(here.perform("k", "d", "one"))
    while not here.acts:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    second = asyncio.create_task(here.perform("k", "d", "two"))
    with pytest.raises(Problem) as problem:
        await here.perform("k", "else", "three")
    assert problem.value.status == 422
    here.gate.set()
    assert [await first, await second] == [("one", False), ("one", True)]
    assert len(here.acts) == 1


@run_by(in_store, "tmp_path")
async def test_what_fails_lets_go_of_its_key(here: Here, store: Store) -> None:
    here.gate.clear()
    here.error = Problem(503, "unavailable", "not now")
    tries = [asyncio.create_task(here.perform("k", "d", "one")) for _ in range(3)]
    while not here.acts:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    here.gate.set()
    found = await asyncio.gather(*tries, return_exceptions=True)
    assert [isinstance(each, Problem) and each.status for each in found] == [503] * 3
    here.error = None
    assert await here.perform("k", "else", "two") == ("two", False)


@run_by(in_store, "tmp_path")
async def test_a_gateway_that_died_in_between_goes_on_under_the_same_id(
    here: Here, store: Store
) -> None:
    here.gate.clear()
    dying = asyncio.create_task(here.perform("k", "d", "one"))
    while not here.acts:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    after = Here(store, 2)  # the one that died never came to note anything
    assert await after.perform("k", "d", "two") == ("one", False)
    assert after.acts == [("one", True)]
    here.gate.set()
    await dying


def test_keys_are_kept_for_a_day_and_bounded(
    tmp_path: Path, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TENANT_IDEMPOTENCY_KEYS_MAX", 3)

    async def scenario(here: Here, store: Store) -> None:
        for number in range(3):
            await here.perform(f"k{number}", "d", "one")
            here.now += 1_000
        with pytest.raises(Problem) as problem:
            await here.perform("more", "d", "one")
        assert (problem.value.status, problem.value.headers["Retry-After"]) == (429, "300")
        await here.perform("k0", "d", "two")
        await here.perform("more", "d", "one", tenant="b")
        here.now += DAY_MS - 3_000
        assert await here.perform("k0", "else", "new") == ("new", False)
        assert await here.keys.purge() == 0
        assert await counted(store) == {"a": 3, "b": 1}
        here.error = Problem(503, "unavailable", "not now")
        for _ in range(3):  # who is refused has no key
            with pytest.raises(Problem):
                await here.perform("fails", "d", "one", tenant="b")
        assert await counted(store) == {"a": 3, "b": 1}
        here.error = None
        here.now += DAY_MS
        assert await here.keys.purge() == 4
        assert await counted(store) == {}

    in_store(tmp_path, scenario, store_url)


def test_a_new_key_takes_some_old_ones_along_and_no_more(
    tmp_path: Path, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a claim costs the same whatever the tenant has kept."""
    monkeypatch.setattr(module, "_CLAIM_PURGE_KEYS", 2)
    monkeypatch.setattr(module, "TENANT_IDEMPOTENCY_KEYS_MAX", 6)

    async def scenario(here: Here, store: Store) -> None:
        for number in range(6):
            await here.perform(f"k{number}", "d", "one")
            here.now += 1
        here.now += DAY_MS
        await here.perform("new", "d", "one")
        assert await counted(store) == {"a": 5}
        # One that is old and there still counts as gone: it is nobody's.
        assert await here.perform("k5", "else", "two") == ("two", False)
        assert await here.perform("k5", "else", "three") == ("two", True)
        assert await counted(store) == {"a": 2}

    in_store(tmp_path, scenario, store_url)


# --- Several gateways ----------------------------------------------------------------------------
def between_two(
    tmp_path: Path, postgres: Cluster, scenario: Callable[[Here, Here], Awaitable[None]]
) -> None:
    """Run a scenario with the keys of two gateways, of starts 1 and 2, on one PostgreSQL."""

    async def main() -> None:
        url = postgres.new_url()
        async with AsyncExitStack() as stack:
            heres = []
            for name in ("first", "second"):
                (tmp_path / name).mkdir()
                store = Store(tmp_path / name / "db", url)
                stack.push_async_callback(store.close)
                heres.append(Here(store, await enter(store, name)))
            await scenario(*heres)

    asyncio.run(main())


async def enter(store: Store, name: str) -> int:
    """A gateway starts; its start's number."""
    boot = await store.write(lambda c: next_boot(c, name))
    await Members(store, name, boot, lambda: 0).record_start()
    return boot


@run_by(between_two, "tmp_path", "postgres")
async def test_of_two_gateways_in_the_same_moment_one_begins(first: Here, second: Here) -> None:
    both = (("a", first), ("b", second))
    asked = [
        here.perform(f"k{number}", "d", f"{which}{number}")
        for number in range(20)
        for which, here in both
    ]
    found = await asyncio.gather(*asked)
    for one, other in zip(found[::2], found[1::2], strict=True):
        assert one[0] == other[0]
        assert sorted((one[1], other[1])) == [False, True]
    assert len(first.acts) + len(second.acts) == 20


@run_by(between_two, "tmp_path", "postgres")
async def test_what_another_gateway_is_at_is_waited_for(
    first: Here, second: Here, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Until it is let go.
    first.gate.clear()
    first.error = Problem(503, "unavailable", "not now")
    one = asyncio.create_task(first.perform("k", "d", "one"))
    while not first.acts:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    two = asyncio.create_task(second.perform("k", "d", "two"))
    await asyncio.sleep(0.02)
    with pytest.raises(Problem) as problem:
        await second.perform("k", "else", "three")
    assert problem.value.status == 422
    first.gate.set()
    assert await two == ("two", False)
    with pytest.raises(Problem):
        await one
    assert second.acts == [("two", False)]
    # Until whoever is at it has started anew.
    first.gate.clear()
    dying = asyncio.create_task(first.perform("l", "d", "one"))
    while len(first.acts) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    waiting = asyncio.create_task(second.perform("l", "d", "two"))
    await asyncio.sleep(0.1)
    assert len(second.acts) == 1
    await enter(first.keys._store, "first")
    assert await waiting == ("one", False)
    assert second.acts[1:] == [("one", True)]
    first.error = None
    first.gate.set()
    await dying
    # Not for ever.
    monkeypatch.setattr(module, "IDEMPOTENCY_ELSEWHERE_SECONDS_MAX", 0.1)
    third = Here(first.keys._store, await enter(first.keys._store, "first"))
    third.gate.clear()
    slow = asyncio.create_task(third.perform("m", "d", "one"))
    while not third.acts:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    with pytest.raises(Problem) as problem:
        await second.perform("m", "d", "two")
    assert (problem.value.status, problem.value.kind) == (409, "idempotency-under-way")
    third.gate.set()
    assert await slow == ("one", False)


# --- Through HTTP --------------------------------------------------------------------------------
async def test_runs_and_uploads_of_one_key(tmp_path: Path) -> None:
    async with SystemRig(tmp_path) as system, system.client() as client:
        ask = Asking(system)
        await client.upload(guests.ECHO_WASM, "echo")
        await client.upload(guests.HANG_WASM, "hang")
        first = await ask.start("echo", "k", "hi")
        again = await ask.start("echo", "k", "hi")
        assert first[:2] == again[:2] == (200, first[1])
        assert (first[2], again[2]) == (None, "true")
        assert (first[1]["output"], first[1]["exit_code"]) == ("hi", 7)
        assert (await ask.start("echo", "k", "other"))[0] == 422
        # Detached and streamed: the same run, live or not.
        both = await asyncio.gather(*(ask.start("hang", "h", "", detach=1) for _ in range(5)))
        runs = {document["id"] for status, document, _ in both if status == 202}
        assert len(runs) == 1
        assert len(await client.live_runs()) == 1
        await client.cancel(runs.pop())
        text = (await ask.start("echo", "s", "hi", stream=True))[1]
        assert (await ask.start("echo", "s", "hi", stream=True))[1] == text
        assert text.count("event: message") == 1
        # One that was deleted is not started again.
        await client.delete_run(first[1]["id"])
        assert (await ask.start("echo", "k", "hi"))[0] == 410
        assert len([run async for run in client.runs()]) == 2
        # A second upload does not move a name back.
        await ask.upload(guests.HELLO_WASM, "u1")
        await ask.upload(guests.ECHO_WASM, "u2")
        status, program, replayed = await ask.upload(guests.HELLO_WASM, "u1")
        assert (status, replayed) == (200, "true")
        assert (await client.program("named"))["id"] != program["id"]
        for bad in ("", "x" * 256, "ä"):
            assert (await ask.start("echo", bad, "hi"))[0] == 400


class Asking:
    """Asks with a key; answers are (status, document or text, the header of a second answer)."""

    def __init__(self, system: SystemRig) -> None:
        self._house = system

    async def start(
        self, program: str, key: str, text: str, **options: Any
    ) -> tuple[int, Any, Any]:
        detach = options.pop("detach", 0)
        body = json.dumps({"input": text, **options}).encode()
        return await self._post(f"/v1/programs/{program}/runs?detach={detach}", key, body)

    async def upload(self, wasm: bytes, key: str) -> tuple[int, Any, Any]:
        return await self._post("/v1/programs?name=named", key, wasm)

    async def _post(self, path: str, key: str, body: bytes) -> tuple[int, Any, Any]:
        headers = {"Authorization": f"Bearer {self._house.key}", "Idempotency-Key": key}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.post(self._house.url + path, data=body) as response,
        ):
            stream = response.content_type == "text/event-stream"
            found = await (response.text() if stream else response.json(content_type=None))
            return response.status, found, response.headers.get("Idempotent-Replayed")
