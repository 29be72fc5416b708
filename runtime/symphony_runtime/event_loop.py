"""The event loop of the roles that only carry messages: gateway and workers.

uvloop does in C what asyncio does in Python for each read and write: a fifth of what a worker's
message costs. Its timers count whole milliseconds, and its own time stands still during a turn. The
kernel's loop is the same with finer timers.
"""

from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")
EARLY_MS = 1  # by which a timer may be early, at most


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a role until it ends, as `asyncio.run`."""
    return uvloop.run(main)
