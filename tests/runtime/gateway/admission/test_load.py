"""The wait of a tenant's next request, from the work that waits and its owners."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from symphony_runtime.gateway.admission.load import ExpectedWait, ServerLoad
from symphony_runtime.gateway.links.links import KernelAwayError

from tests.runtime.gateway.admission.test_retry_estimates import Time
from tests.support.run_by import run_by


class Kernel:
    def __init__(self) -> None:
        self.asked = 0
        self.answer: dict[str, Any] = {"tenants": {}, "tokens": 0, "seconds": 0.0}
        self.away = False

    async def ask(self) -> dict[str, Any]:
        self.asked += 1
        if self.away:
            raise KernelAwayError("away")
        return self.answer


Scenario = Callable[[ServerLoad, Kernel, Time], Awaitable[None]]


def with_load(scenario: Scenario) -> None:
    async def main() -> None:
        time, kernel = Time(), Kernel()
        load = ServerLoad(kernel.ask, time)
        await scenario(load, kernel, time)
        await load.stop()

    asyncio.run(main())


async def look(load: ServerLoad, kernel: Kernel, time: Time, **answer: Any) -> None:
    """Let a load ask the kernel once."""
    kernel.answer |= answer
    time.now += 1.0
    before = kernel.asked
    load.refresh()
    load.refresh()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert kernel.asked == before + 1


@run_by(with_load)
async def test_tenant_waits_for_work_and_share(
    load: ServerLoad, kernel: Kernel, time: Time
) -> None:
    assert load.expected_wait("a") == ExpectedWait()
    tenants = {"a": [9_000, 1.0], "b": [1_000, 1.0]}
    await look(load, kernel, time, tenants=tenants, tokens=500, seconds=5.0)
    assert load.expected_wait("a") == ExpectedWait(90.0, 100.0), "at most all that waits"
    assert load.expected_wait("b") == ExpectedWait(10.0, 20.0)
    assert load.expected_wait("new") == ExpectedWait(0.0, 0.0), "others' floods are no reason"
    time.now += 10.0
    assert load.expected_wait("a") == ExpectedWait(), "an old answer says nothing"


@run_by(with_load)
async def test_heavier_tenant_waits_less(load: ServerLoad, kernel: Kernel, time: Time) -> None:
    tenants = {"a": [1_000, 1.0], "b": [1_000, 3.0]}
    await look(load, kernel, time, tenants=tenants, tokens=100, seconds=1.0)
    assert load.expected_wait("b").shared == pytest.approx(10.0 * 4 / 3)
    assert load.expected_wait("a").shared == pytest.approx(20.0)


@run_by(with_load)
async def test_best_rate_outlives_a_kernel(load: ServerLoad, kernel: Kernel, time: Time) -> None:
    kernel.answer["tenants"] = {"a": [1_000, 1.0]}
    waits = []
    for tokens, seconds in ((1_000, 1.0), (1_010, 2.0), (1_010, 2.0), (50, 0.5)):
        await look(load, kernel, time, tokens=tokens, seconds=seconds)
        waits.append(load.expected_wait("a").alone)
    assert waits[0] == pytest.approx(1.0)
    assert waits[1] == waits[2] == pytest.approx(1 / 0.95)
    assert waits[3] > waits[2]
    kernel.away = True
    await look(load, kernel, time)
    assert load.expected_wait("a").alone == waits[3]


@run_by(with_load)
async def test_slow_registrations_count_as_a_wait(load: ServerLoad, _: Kernel, time: Time) -> None:
    for seconds in (0.1, 40.0, 35.0):
        load.note_registration(seconds)
    assert load.expected_wait("a") == ExpectedWait(35.0, 35.0)
    time.now += 11.0
    assert load.expected_wait("a") == ExpectedWait()
