"""Waiting for what another task, thread or process does."""

import asyncio
from collections.abc import Callable
from inspect import isawaitable
from typing import Any


async def until(condition: Callable[[], Any], seconds: float = 20) -> None:
    """Look again and again until a condition holds; what it returns may be awaitable."""
    async with asyncio.timeout(seconds):
        while True:
            holds = condition()
            if await holds if isawaitable(holds) else holds:
                return
            await asyncio.sleep(0.01)
