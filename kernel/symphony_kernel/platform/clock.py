"""Clocks: the real one, and a virtual one that lets tests skip all waiting."""

import asyncio
import selectors
import time
from collections.abc import Coroutine
from concurrent.futures import Executor
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Clock(Protocol):
    """A source of time that can also sleep; injected, so that tests choose it."""

    def now(self) -> float:
        """Return seconds since a fixed moment. They never decrease."""

    async def sleep(self, seconds: float) -> None:
        """Return once `now()` has grown by `seconds`. Other tasks run even if that is 0."""


class RealClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        # In a thread, because the loop's own timers have a resolution of a millisecond.
        await asyncio.to_thread(time.sleep, max(seconds, 0.0))


class VirtualClock:
    """Discrete-event time: when no task can run, it jumps to the next timer.

    `run` runs a coroutine in an event loop whose time is this clock's. So timeouts and
    `asyncio.sleep` are virtual too, and the same program always runs in the same order. It works
    only for programs that wait for nothing outside the loop (no sockets, no threads).
    """

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, _VirtualLoop), "a virtual clock sleeps only under its own run()"
        assert loop.clock is self, "the running loop is another clock's"
        await asyncio.sleep(seconds)

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run `main` to its end in virtual time and return its result.

        Raises RuntimeError: a deadlock: all tasks wait, and no timer is set.
        """
        with asyncio.Runner(loop_factory=lambda: _VirtualLoop(self)) as runner:
            return runner.run(main)

    def _jump(self, seconds: float) -> None:
        self._now += seconds


class _JumpingSelector(selectors.SelectSelector):
    """Advances the clock where a loop would sleep."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("deadlock in virtual time: every task waits and no timer is set")
        if timeout > 0:
            self._clock._jump(timeout)  # noqa: SLF001 - the clock's own selector
        return super().select(0)


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self._threads: Executor | None = None
        super().__init__(_JumpingSelector(clock))

    def time(self) -> float:
        return self.clock.now()

    def set_default_executor(self, executor: Executor) -> None:
        self._threads = executor
        super().set_default_executor(executor)  # type: ignore[arg-type]

    async def shutdown_default_executor(
        self,
        timeout: float | None = None,  # noqa: ARG002, ASYNC109
    ) -> None:
        # asyncio's own version waits for a helper thread. On a busy machine that thread is late,
        # and virtual time would find a deadlock.
        if self._threads is not None:
            self._threads.shutdown(wait=True)
