"""A tenant's flood of slices is spread over passes of the loop, so others' need not wait for it."""

import asyncio

from symphony_runtime.gateway.admission.fair_passes import FairPasses

SLICE = 1e-3


async def work(passes: FairPasses, tenant: str, done: list[str], slices: int = 1) -> None:
    """Do slices of a millisecond, as a request's handler does them."""
    for _ in range(slices):
        if passes.is_used_up(tenant):
            await passes.turn(tenant)
        passes.spend(tenant, SLICE)
        done.append(tenant)


async def test_slice_comes_before_anothers_flood_is_done() -> None:
    passes, done = FairPasses(4 * SLICE), list[str]()
    flood = [asyncio.create_task(work(passes, "flood", done)) for _ in range(100)]
    for _ in range(3):
        await asyncio.sleep(0)
    await work(passes, "other", done)
    before = list(done)
    await asyncio.gather(*flood)
    assert (len(done), len(passes)) == (101, 0)
    assert before[-1] == "other"
    assert 4 <= len(before) <= 17, "four of the flood in a pass"


async def test_long_slices_come_one_in_a_pass() -> None:
    passes, done = FairPasses(SLICE / 10), list[str]()
    flood = [asyncio.create_task(work(passes, "flood", done)) for _ in range(100)]
    for passed in range(1, 20):
        await asyncio.sleep(0)
        assert len(done) <= passed
    await asyncio.gather(*flood)
    assert len(done) == 100


async def test_request_of_many_slices_lets_others_pass() -> None:
    passes, done = FairPasses(2 * SLICE), list[str]()
    long = asyncio.create_task(work(passes, "long", done, 50))
    await asyncio.sleep(0)
    await work(passes, "other", done)
    assert done.count("long") == 2
    await long


async def test_few_slices_need_no_turn() -> None:
    passes, done = FairPasses(4 * SLICE), list[str]()
    await work(passes, "t", done, 4)
    assert passes.is_used_up("t")
    assert not passes.is_used_up("other")
    await asyncio.sleep(0)
    assert not passes.is_used_up("t")


async def test_cancelled_slice_takes_no_turn() -> None:
    passes, done = FairPasses(SLICE), list[str]()
    tasks = [asyncio.create_task(work(passes, "t", done)) for _ in range(10)]
    await asyncio.sleep(0)
    for task in tasks[:9]:
        task.cancel()
    await asyncio.wait(tasks)
    assert len(done) == sum(not task.cancelled() for task in tasks) >= 1
    for _ in range(2):
        await asyncio.sleep(0)
    assert not len(passes)
    await asyncio.wait_for(work(passes, "t", done), 20)
