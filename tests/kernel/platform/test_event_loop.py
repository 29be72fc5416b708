"""The kernel's loop: timers below a millisecond come in order, and cancelled ones never."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from tests.support.requirements import lacking

if sys.platform != "linux":
    lacking("linux", "there is no timerfd")

from symphony_kernel.platform.event_loop import PreciseTimerLoop

from tests.support.run_by import run_by

PATIENCE_S = 20


def run(main: Callable[[asyncio.AbstractEventLoop], Awaitable[None]]) -> None:
    """Run a test on a loop of its own."""

    async def within() -> None:
        await asyncio.wait_for(main(asyncio.get_running_loop()), PATIENCE_S)

    with asyncio.Runner(loop_factory=PreciseTimerLoop) as runner:
        runner.run(within())


@run_by(run)
async def test_timers_come_in_order_and_never_early(loop: asyncio.AbstractEventLoop) -> None:
    delays = [0.004, 0.0003, 0.02, 0.00005, 0.0011, 0.0004]
    came: list[int] = []
    early: list[float] = []
    over = asyncio.Event()

    def ring(number: int) -> None:
        came.append(number)
        if loop.time() < timers[number].when():
            early.append(delays[number])
        if len(came) == len(delays):
            over.set()

    # A busy machine may stop between two of these for longer than they are apart.
    timers = [loop.call_later(delay, ring, number) for number, delay in enumerate(delays)]
    await over.wait()
    assert came == sorted(range(len(delays)), key=lambda number: timers[number].when())
    assert not early


@run_by(run)
async def test_timer_that_is_cancelled_never_comes(loop: asyncio.AbstractEventLoop) -> None:
    came: list[str] = []
    first = loop.call_later(0.0005, came.append, "first")
    middle = loop.call_later(0.002, came.append, "middle")
    loop.call_later(0.004, came.append, "last")
    first.cancel()
    first.cancel()
    middle.cancel()
    await asyncio.sleep(0.006)
    assert came == ["last"]
    assert first.cancelled()


@run_by(run)
async def test_timer_can_set_and_cancel_others(loop: asyncio.AbstractEventLoop) -> None:
    came: list[int] = []
    over = asyncio.Event()
    doomed = loop.call_later(0.05, came.append, -1)

    def again(left: int) -> None:
        came.append(left)
        doomed.cancel()  # by the first call, which is due earlier even on a busy machine
        if left:
            loop.call_later(0.0002, again, left - 1)
        else:
            loop.call_later(0.06, over.set)

    loop.call_later(0.0002, again, 20)
    await over.wait()
    assert came == list(range(20, -1, -1))


@run_by(run)
async def test_timer_that_fails_affects_no_other(loop: asyncio.AbstractEventLoop) -> None:
    failures: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _loop, context: failures.append(context))

    def fail() -> None:
        raise ValueError("as it should")

    loop.call_later(0.001, fail)
    await asyncio.sleep(0.001)
    assert [str(each["exception"]) for each in failures] == ["as it should"]


@run_by(run)
async def test_timers_of_a_busy_loop_come(loop: asyncio.AbstractEventLoop) -> None:
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    busy = asyncio.create_task(turn())
    began = loop.time()
    await asyncio.sleep(0.0005)
    assert loop.time() >= began + 0.0005
    await asyncio.sleep(0.15)
    busy.cancel()
    assert turns


def test_loop_with_pending_timers_can_be_closed() -> None:
    loop = PreciseTimerLoop()
    loop.call_later(0.01, print, "never")
    loop.close()
    loop.close()
    assert loop.is_closed()
