"""A database for tests, opened and closed around a scenario."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from symphony_runtime.gateway.storage.store import Store


def with_store(folder: Path, url: str, scenario: Callable[[Store], Awaitable[None]]) -> None:
    async def main() -> None:
        store = Store(folder / "db", url)
        try:
            await scenario(store)
        finally:
            await store.close()

    asyncio.run(main())
