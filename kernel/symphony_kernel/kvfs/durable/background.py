"""Tasks of the kernel's loop that nobody awaits: kept until they end, their faults told."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class BackgroundTasks:
    """Works under way. `failed` hears of what one of them raises: it is a fault of ours."""

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self._failed = failed
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin a work."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)

    async def end(self, *, cancel: bool) -> None:
        """Wait until there is none, or drop those that there are, and what they begin meanwhile."""
        while self._tasks:
            if cancel:
                for task in tuple(self._tasks):
                    task.cancel()
            await asyncio.wait(tuple(self._tasks))

    def _over(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)
