"""A device's thread: order, one hop back, and errors that reach whoever waits."""

import asyncio
import threading
import time

import pytest
from symphony_kernel.executor.outcome import DeviceThread, Outcome


def test_works_are_done_in_order_on_one_thread_and_called_back_on_the_loop() -> None:
    thread = DeviceThread()
    seen: list[tuple[int, str, str]] = []

    async def main() -> None:
        ended = asyncio.Event()

        def note(outcome: Outcome[tuple[int, str]]) -> None:
            number, where = outcome.value
            seen.append((number, where, threading.current_thread().name))
            assert 0 < outcome.began <= outcome.ended <= time.monotonic()
            if number == 9:
                ended.set()

        for number in range(10):
            work = thread.start(lambda n=number: (n, threading.current_thread().name))  # type: ignore[misc]
            work.then(note)
        await ended.wait()

    asyncio.run(main())
    thread.stop()
    assert seen == [(n, "executor", threading.current_thread().name) for n in range(10)]


def test_an_outcome_can_be_awaited_before_and_after_its_end() -> None:
    async def main() -> list[int]:
        early: Outcome[int] = Outcome()
        asyncio.get_running_loop().call_soon(early.finish, 1)
        late: Outcome[int] = Outcome()
        late.finish(2)
        return [await early, await late]

    assert asyncio.run(main()) == [1, 2]


def test_what_goes_wrong_reaches_who_waits_and_the_thread_goes_on() -> None:
    thread = DeviceThread()

    def fail() -> int:
        raise ValueError("no power")

    async def main() -> int:
        with pytest.raises(ValueError, match="no power"):
            await thread.start(fail)
        return await thread.start(lambda: 7)

    assert asyncio.run(main()) == 7
    with pytest.raises(ValueError, match="no power"):
        thread.call(fail)
    assert thread.call(lambda: 8) == 8
    thread.stop()


def test_who_waited_may_have_been_cancelled() -> None:
    async def main() -> None:
        outcome: Outcome[int] = Outcome()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await outcome
        outcome.finish(1)

    asyncio.run(main())
