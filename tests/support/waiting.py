"""Waiting for what another task, thread or process does."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable


async def wait_until(true: Callable[[], object | Awaitable[object]], seconds: float = 20) -> None:
    """Return when a condition holds, which may be asynchronous; TimeoutError."""
    async with asyncio.timeout(seconds):
        while True:
            found = true()
            if await found if inspect.isawaitable(found) else found:
                return
            await asyncio.sleep(0.005)


def spin(seconds: float) -> None:
    """Use so much processor time."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass
