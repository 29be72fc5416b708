"""A tenant's flood of requests begins in turns: others' need not wait for it."""

import asyncio

import pytest
from symphony_runtime.gateway.http.fair_start import Arrivals


async def begin(arrivals: Arrivals, tenant: str, begun: list[str]) -> None:
    await arrivals.turn(tenant)
    begun.append(tenant)


def test_others_begin_before_a_flood_has() -> None:
    async def main() -> list[str]:
        arrivals, begun = Arrivals(4), list[str]()
        flood = [asyncio.create_task(begin(arrivals, "flood", begun)) for _ in range(100)]
        for _ in range(3):
            await asyncio.sleep(0)
        await begin(arrivals, "other", begun)
        before = list(begun)
        await asyncio.gather(*flood)
        assert (len(begun), len(arrivals)) == (101, 0)
        return before

    before = asyncio.run(main())
    assert before[-1] == "other"
    assert 4 <= len(before) <= 17, "four of the flood in a pass"


def test_a_few_begin_at_once() -> None:
    async def main() -> None:
        arrivals = Arrivals(4)
        for _ in range(4):
            with pytest.raises(StopIteration):  # without a pass of the loop
                arrivals.turn("t").send(None)
        assert not len(arrivals)

    asyncio.run(main())


def test_who_goes_away_takes_no_turn() -> None:
    async def main() -> None:
        arrivals, begun = Arrivals(1), list[str]()
        tasks = [asyncio.create_task(begin(arrivals, "t", begun)) for _ in range(10)]
        await asyncio.sleep(0)
        for task in tasks[:9]:
            task.cancel()
        await asyncio.wait(tasks)
        for _ in range(4):
            await asyncio.sleep(0)
        assert len(begun) >= 1
        assert begun.count("t") == sum(not task.cancelled() for task in tasks)
        assert not len(arrivals)
        await asyncio.wait_for(arrivals.turn("t"), 20)

    asyncio.run(main())
