"""Clocks: the real one, and a virtual one on which an hour of scheduling takes a moment to test."""

import asyncio
import selectors
import time
from collections.abc import Coroutine
from concurrent.futures import Executor
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Clock(Protocol):
    """What tells the time and waits; injected, so that tests choose it."""

    def now(self) -> float:
        """Return seconds since some fixed moment; never goes back."""

    async def sleep(self, seconds: float) -> None:
        """Return once `now()` has grown by `seconds`; lets others run even when that is 0."""


class RealClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        """Return monotonic seconds."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait in real time, in a thread: the loop's own timers are a millisecond coarse."""
        await asyncio.to_thread(time.sleep, max(seconds, 0.0))


class VirtualClock:
    """Discrete-event time: when nothing can run now, it jumps to the next timer's moment.

    `run` gives a coroutine an event loop of its own whose time is this clock's, so that timeouts
    and `asyncio.sleep` are virtual too, and the same program always takes the same course. Only
    for programs that wait for nothing outside the loop (no sockets, no threads).
    """

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        """Return virtual seconds since the clock was made."""
        return self._now

    async def sleep(self, seconds: float) -> None:
        """Wait in virtual time; the running loop must be this clock's."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, _VirtualLoop), "a virtual clock sleeps only under its own run()"
        assert loop.clock is self, "the running loop is another clock's"
        await asyncio.sleep(seconds)

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run `main` to its end in virtual time and return its result.

        Raises:
            RuntimeError: `main` waits for something that can never happen.
        """
        with asyncio.Runner(loop_factory=lambda: _VirtualLoop(self)) as runner:
            return runner.run(main)

    def _jump(self, seconds: float) -> None:
        self._now += seconds


class _JumpingSelector(selectors.SelectSelector):
    """Where a loop would sleep, time jumps; where it would sleep for ever, that is a deadlock."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("virtual time stands still: every task waits and no timer is set")
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

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ARG002, ASYNC109 - asyncio's
        # asyncio's own waits for a thread that waits for these: where that is late, as on a busy
        # machine, nothing is left that could happen in virtual time.
        if self._threads is not None:
            self._threads.shutdown(wait=True)
