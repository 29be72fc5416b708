"""A database for tests, opened and closed around a scenario."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from symphony_runtime.gateway.runs.record import LIMITS_MAX, Record
from symphony_runtime.gateway.storage.store import Store

Scenario = Callable[[Store], Awaitable[None]]


def make_record(seq: int, **fields: Any) -> Record:
    """Return the record of a live run, or one with these fields."""
    usual: dict[str, Any] = {
        "id": f"run_{seq}", "tenant": "t", "program": "sha256:00", "program_name": None,
        "entry": "lip_main", "status": "running", "exit_code": None, "reason": "", "priority": 4,
        "limits": LIMITS_MAX, "usage": None, "created_ms": 1, "ended_ms": None,
    }  # fmt: skip
    return Record(seq, **usual | fields)


@asynccontextmanager
async def open_store(folder: Path, url: str = "") -> AsyncIterator[Store]:
    store = Store(folder / "db", url)
    try:
        yield store
    finally:
        await store.close()


def with_store(folder: Path, url: str, scenario: Scenario) -> None:
    async def main() -> None:
        async with open_store(folder, url) as store:
            await scenario(store)

    asyncio.run(main())


async def count_rows(store: Store, rows: str) -> int:
    """Return the number of rows of a table, or of what follows FROM."""
    found = await store.read(lambda c: c.execute(f"SELECT COUNT(*) FROM {rows}").fetchone())
    return int(found[0])


def with_sqlite(folder: Path, scenario: Scenario) -> None:
    with_store(folder, "", scenario)
