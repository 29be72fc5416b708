"""A database for tests, opened and closed around a scenario."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from symphony_runtime.gateway.store import Store


def with_store(folder: Path, scenario: Callable[[Store], Awaitable[None]]) -> None:
    """Run a scenario with a store in a folder."""

    async def main() -> None:
        store = Store(folder / "db")
        try:
            await scenario(store)
        finally:
            await store.close()

    asyncio.run(main())
