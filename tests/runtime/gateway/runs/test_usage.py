from functools import partial
from typing import Any

import pytest
from symphony_runtime.gateway.runs.record import USAGE_KEYS
from symphony_runtime.gateway.runs.usage import (
    SUMMED,
    RunUsage,
    UsageQuery,
    add_usage,
    day_of,
    usage_page,
)
from symphony_runtime.gateway.storage.store import Store

from tests.support.gateway.stores import with_store
from tests.support.run_by import run_by

DAY_MS = 86_400_000
NOON = 1_795_262_400_000  # 2026-11-21, 12:00 UTC
USAGE = {name: number for number, name in enumerate(USAGE_KEYS, 1)}


async def days(store: Store, chosen: UsageQuery | None = None, limit: int = 100) -> list[Any]:
    rows = await store.read(lambda c: usage_page(c, chosen or UsageQuery(), limit))
    return [(row["tenant"], row["day"], row["runs"], row["prompt_tokens"]) for row in rows]


@run_by(with_store, "tmp_path", "store_url")
async def test_usage_adds_up_by_tenant_and_day(store: Store) -> None:
    for tenant, at in (("b", NOON), ("a", NOON), ("a", NOON + 1), ("a", NOON + DAY_MS)):
        await store.write(partial(add_usage, tenant=tenant, ended_ms=at, usage=USAGE))
    await store.write(lambda c: add_usage(c, "a", NOON, {"wall_ms": 5}))
    assert await days(store) == [
        ("a", "2026-11-21", 3, 2), ("b", "2026-11-21", 1, 1), ("a", "2026-11-22", 1, 1)
    ]  # fmt: skip
    first, *_ = await store.read(lambda c: usage_page(c, UsageQuery(), 1))
    assert first["wall_ms"] == 2 * USAGE["wall_ms"] + 5
    assert set(first) == {"tenant", "day", "runs", *SUMMED}


@run_by(with_store, "tmp_path", "store_url")
async def test_usage_query_selects_tenant_days_and_page(store: Store) -> None:
    for tenant in ("a", "b"):
        for day in range(3):
            at = NOON + day * DAY_MS
            await store.write(partial(add_usage, tenant=tenant, ended_ms=at, usage=USAGE))
    query = UsageQuery(tenant="b", first="2026-11-22")
    assert [row[:2] for row in await days(store, query)] == [
        ("b", "2026-11-22"), ("b", "2026-11-23")
    ]  # fmt: skip
    assert [row[:2] for row in await days(store, UsageQuery(last="2026-11-21"))] == [
        ("a", "2026-11-21"), ("b", "2026-11-21")
    ]  # fmt: skip
    page = await days(store, UsageQuery(after=("2026-11-21", "b")), limit=1)
    assert [row[:2] for row in page] == [("a", "2026-11-22")]


@run_by(with_store, "tmp_path", "store_url")
async def test_usage_of_short_runs_is_written_in_batches(store: Store) -> None:
    now = NOON
    ledger = RunUsage(store, lambda: now)
    before = store.statistics()["writes"]
    for _ in range(50):
        ledger.count("a", USAGE)
    now += DAY_MS
    ledger.count("a", USAGE)
    assert await days(store) == []
    await ledger.flush()
    assert await days(store) == [("a", "2026-11-21", 50, 50), ("a", "2026-11-22", 1, 1)]
    await ledger.flush()
    assert store.statistics()["writes"] - before == 1


@run_by(with_store, "tmp_path", "store_url")
async def test_usage_that_could_not_be_written_is_kept(store: Store) -> None:
    ledger = RunUsage(store, lambda: NOON)
    ledger.count("a", USAGE)
    await store.write(lambda c: c.execute("ALTER TABLE tenant_usage RENAME TO away") and None)
    with pytest.raises(store.errors):
        await ledger.flush()
    ledger.count("a", USAGE)
    await store.write(lambda c: c.execute("ALTER TABLE away RENAME TO tenant_usage") and None)
    await ledger.flush()
    assert await days(store) == [("a", "2026-11-21", 2, 2)]


def test_summed_usage_is_all_but_peak_memory() -> None:
    assert set(SUMMED) == set(USAGE_KEYS) - {"peak_memory_bytes"}
    assert day_of(NOON) == "2026-11-21"
