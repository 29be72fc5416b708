"""Slots: so many requests of a tenant and of all, in turn."""

import asyncio

from symphony_runtime.gateway.batches.slots import Slots


async def take(slots: Slots, tenant: str) -> bool:
    """Take a slot if one is free."""
    try:
        async with asyncio.timeout(0.02):
            await slots.take(tenant)
    except TimeoutError:
        return False
    return True


async def test_slots_are_bounded_by_tenant_and_in_total() -> None:
    most = {"a": 2, "b": 2, "c": 2}
    slots = Slots(lambda tenant: most[tenant], 5)
    assert [await take(slots, tenant) for tenant in "aaabbc"] == [True, True, False] + [True] * 3
    assert not await take(slots, "c"), "five in total"
    slots.give_back("b")
    assert await take(slots, "c")
    assert slots.used("a") == 2
    most["a"] = 1  # changed while they are used
    slots.give_back("a")
    assert not await take(slots, "a")
    slots.give_back("a")
    assert await take(slots, "a")


async def test_slots_go_to_waiting_batches_in_turn() -> None:
    slots, order = Slots(lambda _: 1, 1), list[str]()

    async def batch(name: str) -> None:
        for _ in range(3):
            await slots.take("a")
            order.append(name)
            await asyncio.sleep(0.001)
            slots.give_back("a")

    await asyncio.gather(batch("x"), batch("y"))
    assert order in (list("xyxyxy"), list("yxyxyx"))
