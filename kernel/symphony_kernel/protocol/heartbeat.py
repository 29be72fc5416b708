"""Heartbeats: a role reports to the supervisor that its event loop runs."""

import asyncio
import select
import sys
from collections.abc import Callable
from typing import Any

ALIVE: dict[str, Any] = {"event": "alive"}


async def beat(seconds: float, send: Callable[[], None]) -> None:
    """Send a heartbeat on stdout every `seconds` until cancelled; 0: never."""
    while seconds:
        await asyncio.sleep(seconds)
        # A stopped supervisor reads nothing: skip beats instead of blocking on a full pipe.
        if select.select([], [sys.stdout], [], 0)[1]:
            send()
