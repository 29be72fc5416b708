"""Turns: one at a time of a tenant, whoever else there is."""

import asyncio

import pytest
from symphony_runtime.gateway.admission.tenant_lock import TenantLocks


async def test_a_tenant_has_one_at_a_time_and_in_order() -> None:
    turns, told = TenantLocks(), list[str]()
    may_end = asyncio.Event()

    async def call(tenant: str, name: str) -> None:
        async with turns.of(tenant):
            told.append(name)
            await may_end.wait()

    calls = [asyncio.create_task(call(t, t + n)) for t, n in ("a1", "a2", "b1", "a3")]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert told == ["a1", "b1"]
    assert len(turns) == 2
    may_end.set()
    await asyncio.gather(*calls)
    assert told == ["a1", "b1", "a2", "a3"]
    assert len(turns) == 0


async def test_who_gives_up_or_fails_leaves_its_turn_to_the_next() -> None:
    turns = TenantLocks()

    async def fail() -> None:
        async with turns.of("a"):
            await asyncio.sleep(0)
            raise KeyError("mine")

    async def wait() -> bool:
        async with turns.of("a"):
            return True

    failing, waiting, last = (asyncio.create_task(f()) for f in (fail, wait, wait))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(KeyError):
        await failing
    assert await last
    assert len(turns) == 0
