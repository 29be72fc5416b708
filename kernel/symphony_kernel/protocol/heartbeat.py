"""Signs of life: a role tells the supervisor a few times a second that its event loop turns."""

import asyncio
import select
import sys
from collections.abc import Callable
from typing import Any

ALIVE: dict[str, Any] = {"event": "alive"}


async def beat(seconds: float, say: Callable[[], None]) -> None:
    """Say so every so many seconds, until it is cancelled; 0: never.

    A supervisor that is stopped reads nothing: what would wait for it on stdout is left out.
    """
    while seconds:
        await asyncio.sleep(seconds)
        if select.select([], [sys.stdout], [], 0)[1]:
            say()
