"""The event loop of gateway and workers.

uvloop does in C what asyncio does in Python for each read and write: a fifth of the cost of a
worker's message. Its timers count whole milliseconds, and its time stands still during a turn. The
kernel's loop is the same with finer timers.
"""

from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")
EARLY_MS = 1  # a timer may be early by at most so much


def run(main: Coroutine[Any, Any, T]) -> T:
    return uvloop.run(main)
