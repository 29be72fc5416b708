"""A run that cannot be served soon is refused, with an estimate of when it could be."""

import asyncio
from typing import Any

import pytest
from symphony import AsyncClient, ServerError
from symphony_runtime.gateway.admission.admission import Admission, AdmissionBounds, MemoryGuard
from symphony_runtime.gateway.admission.load import ExpectedWait, ServerLoad
from symphony_runtime.gateway.errors import Problem

from tests.e2e import programs as guests
from tests.runtime.gateway.admission.test_retry_estimates import Time
from tests.support.gateway.system import SystemRig, with_system
from tests.support.run_by import run_by
from tests.support.worker.guests import call, drop, main, times


class KnownLoad(ServerLoad):
    """A load whose waits are known."""

    def __init__(self, waits: dict[str, ExpectedWait]) -> None:
        super().__init__(self._ask)
        self.waits = waits

    async def _ask(self) -> dict[str, Any]:
        raise AssertionError

    def refresh(self) -> None:
        pass

    def expected_wait(self, tenant: str) -> ExpectedWait:
        return self.waits.get(tenant, ExpectedWait())


def admission(
    time: Time,
    waits: dict[str, ExpectedWait] | None = None,
    left: int | None = 1 << 40,
    **bounds: Any,
) -> Admission:
    memory = MemoryGuard(lambda: left, time)
    return Admission(AdmissionBounds(**bounds), KnownLoad(waits or {}), memory, time)


def refused(
    of: Admission, tenant: str = "a", tenant_runs: int = 0, runs: int = 0
) -> tuple[int, str, dict[str, Any]]:
    """Return the status, the Retry-After and the fields with which a run is refused."""
    with pytest.raises(Problem) as problem:
        of.check_run(tenant, tenant_runs, runs)
    return problem.value.status, problem.value.headers["Retry-After"], problem.value.fields


def test_run_with_too_long_a_wait_is_refused() -> None:
    waits = {
        "own": ExpectedWait(50.0, 90.0),
        "others": ExpectedWait(10.0, 45.5),
        "ok": ExpectedWait(29.0, 30.0),
    }
    here = admission(Time(), waits, queue_seconds=30.0)
    here.check_run("ok", 0, 0)
    here.check_run("without waits", 0, 0)
    assert refused(here, "own")[:2] == (429, "20")
    assert refused(here, "others")[:2] == (503, "16")
    assert here.refused == {"tenant_queue": 1, "queue": 1}
    admission(Time(), waits, queue_seconds=0).check_run("own", 0, 0)


def test_run_with_too_little_memory_left_is_refused() -> None:
    time = Time()
    here = admission(time, left=99, memory_free_bytes=100)
    for _ in range(4):
        here.count_end("a", 1)
        time.now += 6.0
    assert refused(here)[:2] == (503, "6")
    admission(time, left=100, memory_free_bytes=100).check_run("a", 0, 0)
    admission(time, left=None).check_run("a", 0, 0)
    admission(time, left=0, memory_free_bytes=0).check_run("a", 0, 0)


def test_run_over_a_limit_is_told_its_tenants_pace() -> None:
    time = Time()
    here = admission(time, tenant_runs=2, runs=100)
    for number in range(20):
        here.count_end("fast", 1)
        if number % 10 == 0:
            here.count_end("slow", 1)
        time.now += 2.0
    assert refused(here, "fast", 2) == (429, "2", {"limit": 2})
    assert refused(here, "slow", 2) == (429, "20", {"limit": 2})
    assert refused(here, "slow", 0, 100)[:2] == (503, "2")


def test_run_during_shutdown_is_told_the_rest_of_the_drain() -> None:
    time = Time()
    here = admission(time, drain_seconds=20.0)
    here.drain()
    assert here.draining
    time.now += 5.0
    assert refused(here)[:2] == (503, "17")


def test_outage_retry_time_grows_with_its_age() -> None:
    time = Time()
    here = admission(time)
    assert here.unavailable("kernel", "gone").headers["Retry-After"] == "1"
    time.now += 8.0
    assert here.unavailable("kernel", "gone").headers["Retry-After"] == "8"
    assert here.unavailable("worker", "gone").headers["Retry-After"] == "1"
    here.note_available()
    assert here.unavailable("kernel", "gone").headers["Retry-After"] == "1"


async def started(client: AsyncClient) -> ServerError | None:
    """Start a run and end it; return why it may not begin."""
    try:
        run = await client.start("hang")
    except ServerError as error:
        return error
    await client.runs.cancel(run)
    return None


# --- With a real kernel --------------------------------------------------------------------------
# Starts eight preds of 4,096 tokens, and waits for none of them.
FLOOD = guests.wasm(
    main(
        f"""{times(8, drop("pred", "(call $kv_create)", 0, 4096, 0, 0, 0))}
        {call("await", call("sleep", 86_400_000))} (i32.const 0)""",
        locals_="(local $n i32)",
    )
)


@run_by(with_system, "tmp_path", step_ms=50.0, queue_seconds_max=5.0)
async def test_flood_of_preds_is_refused_and_cancels_go_on(
    _: SystemRig, client: AsyncClient
) -> None:
    await client.programs.upload(FLOOD, "flood")
    await client.programs.upload(guests.HANG_WASM, "hang")
    await client.programs.upload(guests.HELLO_WASM, "hello")
    ended = (await client.run("hello"))["id"]
    live = [await client.start("flood") for _ in range(4)]
    async with asyncio.timeout(20):
        while (error := await started(client)) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        assert (error.status, error.problem["type"]) == (429, "urn:symphony:problem:queue-full")
        assert error.retry_after is not None
        assert error.retry_after >= 1
        assert (await client.ready())[0]
        await client.runs.delete(ended)
        for run in live:
            assert (await client.runs.cancel(run))["status"] == "killed"
        while await started(client):  # noqa: ASYNC110
            await asyncio.sleep(0.1)


def test_memory_guard_reads_at_most_twice_a_second() -> None:
    time, found = Time(), [3, 2, 1]
    memory = MemoryGuard(found.pop, time)
    assert [memory.left() for _ in range(5)] == [1] * 5
    time.now += 1.0
    assert memory.left() == 2
    assert MemoryGuard().left() is None or MemoryGuard().left() != 0
