"""Who would wait for how long is told from what waits, and whose it is."""

import asyncio
from typing import Any

import pytest
from symphony_runtime.gateway.admission.load import ExpectedWait, ServerLoad
from symphony_runtime.gateway.links.links import KernelAwayError

from tests.runtime.gateway.admission.test_retry_estimates import Time


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


async def looked(load: ServerLoad, kernel: Kernel, time: Time) -> None:
    time.now += 1.0
    before = kernel.asked
    load.refresh()
    load.refresh()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert kernel.asked == before + 1


async def test_a_tenant_waits_for_its_own_and_for_its_share() -> None:
    time, kernel = Time(), Kernel()
    load = ServerLoad(kernel.ask, time)
    assert load.expected_wait("a") == ExpectedWait()
    kernel.answer = {
        "tenants": {"a": [9_000, 1.0], "b": [1_000, 1.0]}, "tokens": 500, "seconds": 5.0
    }  # fmt: skip
    await looked(load, kernel, time)
    assert load.expected_wait("a") == ExpectedWait(90.0, 100.0), "no more than everybody's"
    assert load.expected_wait("b") == ExpectedWait(10.0, 20.0)
    assert load.expected_wait("new") == ExpectedWait(0.0, 0.0), "others' floods are no reason"
    time.now += 10.0
    assert load.expected_wait("a") == ExpectedWait(), "an old answer says nothing"
    await load.stop()


async def test_a_heavier_tenant_waits_less() -> None:
    time, kernel = Time(), Kernel()
    load = ServerLoad(kernel.ask, time)
    tenants = {"a": [1_000, 1.0], "b": [1_000, 3.0]}
    kernel.answer = {"tenants": tenants, "tokens": 100, "seconds": 1.0}
    await looked(load, kernel, time)
    assert load.expected_wait("b").shared == pytest.approx(10.0 * 4 / 3)
    assert load.expected_wait("a").shared == pytest.approx(20.0)
    await load.stop()


async def test_the_rate_is_the_best_of_late_and_outlives_a_kernel() -> None:
    time, kernel = Time(), Kernel()
    load = ServerLoad(kernel.ask, time)
    tenants = {"a": [1_000, 1.0]}
    waits = []
    for tokens, seconds in ((1_000, 1.0), (1_010, 2.0), (1_010, 2.0), (50, 0.5)):
        kernel.answer = {"tenants": tenants, "tokens": tokens, "seconds": seconds}
        await looked(load, kernel, time)
        waits.append(load.expected_wait("a").alone)
    assert waits[0] == pytest.approx(1.0)
    assert waits[1] == waits[2] == pytest.approx(1 / 0.95)
    assert waits[3] > waits[2]
    kernel.away = True
    await looked(load, kernel, time)
    assert load.expected_wait("a").alone == waits[3]
    await load.stop()


async def test_a_kernel_that_takes_runs_in_slowly_is_waited_for() -> None:
    time = Time()
    load = ServerLoad(Kernel().ask, time)
    for seconds in (0.1, 40.0, 35.0):
        load.note_registration(seconds)
    assert load.expected_wait("a") == ExpectedWait(35.0, 35.0)
    time.now += 11.0
    assert load.expected_wait("a") == ExpectedWait()
