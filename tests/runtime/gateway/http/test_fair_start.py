"""A tenant's flood of requests begins a few at a time, so others' need not wait for it."""

import asyncio

import pytest
from symphony_runtime.gateway.http.fair_start import FairStart


async def begin(fair_start: FairStart, tenant: str, begun: list[str]) -> None:
    await fair_start.turn(tenant)
    begun.append(tenant)


async def test_request_begins_before_anothers_flood_has() -> None:
    fair_start, begun = FairStart(4), list[str]()
    flood = [asyncio.create_task(begin(fair_start, "flood", begun)) for _ in range(100)]
    for _ in range(3):
        await asyncio.sleep(0)
    await begin(fair_start, "other", begun)
    before = list(begun)
    await asyncio.gather(*flood)
    assert (len(begun), len(fair_start)) == (101, 0)
    assert before[-1] == "other"
    assert 4 <= len(before) <= 17, "four of the flood in a pass"


async def test_few_requests_begin_at_once() -> None:
    fair_start = FairStart(4)
    for _ in range(4):
        with pytest.raises(StopIteration):  # without a pass of the loop
            fair_start.turn("t").send(None)
    assert not len(fair_start)


async def test_cancelled_request_takes_no_turn() -> None:
    fair_start, begun = FairStart(1), list[str]()
    tasks = [asyncio.create_task(begin(fair_start, "t", begun)) for _ in range(10)]
    await asyncio.sleep(0)
    for task in tasks[:9]:
        task.cancel()
    await asyncio.wait(tasks)
    for _ in range(4):
        await asyncio.sleep(0)
    assert len(begun) >= 1
    assert begun.count("t") == sum(not task.cancelled() for task in tasks)
    assert not len(fair_start)
    await asyncio.wait_for(fair_start.turn("t"), 20)
