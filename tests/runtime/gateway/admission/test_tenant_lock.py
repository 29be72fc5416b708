"""One call at a time of each tenant."""

import asyncio

import pytest
from symphony_runtime.gateway.admission.tenant_lock import TenantLocks


async def test_lock_admits_one_call_of_a_tenant_in_order() -> None:
    locks, told = TenantLocks(), list[str]()
    may_end = asyncio.Event()

    async def call(tenant: str, name: str) -> None:
        async with locks.of(tenant):
            told.append(name)
            await may_end.wait()

    calls = [asyncio.create_task(call(t, t + n)) for t, n in ("a1", "a2", "b1", "a3")]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert told == ["a1", "b1"]
    assert len(locks) == 2
    may_end.set()
    await asyncio.gather(*calls)
    assert told == ["a1", "b1", "a2", "a3"]
    assert len(locks) == 0


async def test_lock_of_a_failed_or_cancelled_call_goes_to_the_next() -> None:
    locks = TenantLocks()

    async def fail() -> None:
        async with locks.of("a"):
            await asyncio.sleep(0)
            raise KeyError("mine")

    async def wait() -> bool:
        async with locks.of("a"):
            return True

    failing, waiting, last = (asyncio.create_task(f()) for f in (fail, wait, wait))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(KeyError):
        await failing
    assert await last
    assert len(locks) == 0
