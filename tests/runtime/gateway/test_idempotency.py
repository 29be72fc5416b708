"""A request that comes twice under one Idempotency-Key has effects once."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from symphony_runtime.gateway import idempotency as module
from symphony_runtime.gateway.idempotency import Idempotency, Once
from symphony_runtime.gateway.problems import Problem
from symphony_runtime.gateway.store import Store

from tests.e2e import programs as guests
from tests.support.guests import main
from tests.support.house import House

HANG = guests.wasm(main("(call $await (call $sleep (i64.const 86400000))) (i32.const 0)"))
DAY_MS = 86_400_000


class Here:
    """Keys in a store of their own, and a count of what was done."""

    def __init__(self, store: Store) -> None:
        self.now = 1_000_000
        self.keys = Idempotency(store, lambda: self.now)
        self.acts: list[tuple[str, bool]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None

    async def perform(
        self, key: str, digest: str, outcome: str, tenant: str = "a"
    ) -> tuple[str, bool]:
        once = Once(tenant, key.encode(), digest.encode())
        return await self.keys.perform(once, outcome, self._act)

    async def _act(self, outcome: str, again: bool) -> None:
        self.acts.append((outcome, again))
        await self.gate.wait()
        if self.error is not None:
            raise self.error


def in_store(tmp_path: Path, scenario: Callable[[Here, Store], Awaitable[None]]) -> None:
    async def run() -> None:
        store = Store(tmp_path / "db")
        await scenario(Here(store), store)
        await store.close()

    asyncio.run(run())


def test_the_second_gets_what_the_first_got(tmp_path: Path) -> None:
    async def scenario(here: Here, store: Store) -> None:
        assert await here.perform("k", "d", "one") == ("one", False)
        assert await here.perform("k", "d", "two") == ("one", True)
        assert await here.perform("k", "d", "other", tenant="b") == ("other", False)
        assert await Here(store).perform("k", "d", "later") == ("one", True), "after a restart"
        assert here.acts == [("one", False), ("other", False)]
        with pytest.raises(Problem) as problem:
            await here.perform("k", "else", "three")
        assert problem.value.status == 422

    in_store(tmp_path, scenario)


def test_who_comes_meanwhile_waits_for_it(tmp_path: Path) -> None:
    async def scenario(here: Here, store: Store) -> None:
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

    in_store(tmp_path, scenario)


def test_what_fails_lets_go_of_its_key(tmp_path: Path) -> None:
    async def scenario(here: Here, store: Store) -> None:
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

    in_store(tmp_path, scenario)


def test_a_gateway_that_died_in_between_goes_on_under_the_same_id(tmp_path: Path) -> None:
    async def scenario(here: Here, store: Store) -> None:
        here.gate.clear()
        dying = asyncio.create_task(here.perform("k", "d", "one"))
        while not here.acts:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        after = Here(store)  # the one that died never came to note anything
        assert await after.perform("k", "d", "two") == ("one", False)
        assert after.acts == [("one", True)]
        here.gate.set()
        await dying

    in_store(tmp_path, scenario)


def test_keys_are_kept_for_a_day_and_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
        here.now += DAY_MS
        assert await here.keys.purge() == 4

    in_store(tmp_path, scenario)


# --- Through HTTP --------------------------------------------------------------------------------
def test_runs_and_uploads_of_one_key(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with House(tmp_path) as house, house.client() as client:
            ask = Asking(house)
            await client.upload(guests.ECHO_WASM, "echo")
            await client.upload(HANG, "hang")
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

    asyncio.run(scenario())


class Asking:
    """Asks with a key; answers are (status, document or text, the header of a second answer)."""

    def __init__(self, house: House) -> None:
        self._house = house

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
