"""Signs of life: a role tells the supervisor now and then that its event loop turns."""

import asyncio
from collections.abc import Callable
from typing import Any

ALIVE: dict[str, Any] = {"event": "alive"}


async def beat(
    seconds: float, say: Callable[[], None], well: Callable[[], bool] = lambda: True
) -> None:
    """Say so every so many seconds while all is `well`, until it is cancelled; 0: never."""
    while seconds:
        await asyncio.sleep(seconds)
        if well():
            say()
