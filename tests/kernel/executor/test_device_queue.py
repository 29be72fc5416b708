"""A device's thread: order, one hop back, and errors that reach whoever waits."""

import asyncio
import os
import threading
import time

import pytest
from symphony_kernel.executor.device_queue import DeviceThread, StepFuture


async def test_works_are_done_in_order_on_one_thread_and_called_back_on_the_loop() -> None:
    thread = DeviceThread()
    seen: list[tuple[int, str, str]] = []
    ended = asyncio.Event()

    def note(outcome: StepFuture[tuple[int, str]]) -> None:
        number, where = outcome.value
        seen.append((number, where, threading.current_thread().name))
        assert 0 < outcome.began <= outcome.ended <= time.monotonic()
        if number == 9:
            ended.set()

    for number in range(10):
        work = thread.start(lambda n=number: (n, threading.current_thread().name))  # type: ignore[misc]
        work.then(note)
    await ended.wait()
    thread.stop()
    assert seen == [(n, "executor", threading.current_thread().name) for n in range(10)]


async def test_an_outcome_can_be_awaited_before_and_after_its_end() -> None:
    early: StepFuture[int] = StepFuture()
    asyncio.get_running_loop().call_soon(early.set_result, 1)
    late: StepFuture[int] = StepFuture()
    late.set_result(2)
    assert [await early, await late] == [1, 2]


async def test_what_goes_wrong_reaches_who_waits_and_the_thread_goes_on() -> None:
    thread = DeviceThread()

    def fail() -> int:
        raise ValueError("no power")

    with pytest.raises(ValueError, match="no power"):
        await thread.start(fail)
    assert await thread.start(lambda: 7) == 7
    with pytest.raises(ValueError, match="no power"):
        thread.call(fail)
    assert thread.call(lambda: 8) == 8
    thread.stop()


async def test_who_waited_may_have_been_cancelled() -> None:
    outcome: StepFuture[int] = StepFuture()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await outcome
    outcome.set_result(1)


# -- Works that follow -------------------------------------------------------------------------
async def test_what_follows_begins_without_the_loop_and_is_told_of_together() -> None:
    thread = DeviceThread(hold_seconds=60.0)
    gate = threading.Event()
    wakes: list[list[int]] = []
    ended = asyncio.Event()
    heard: list[int] = []

    def note(outcome: StepFuture[int]) -> None:
        if not heard:
            asyncio.get_running_loop().call_soon(lambda: wakes.append(list(heard)))
            asyncio.get_running_loop().call_soon(heard.clear)
        heard.append(outcome.value)
        if outcome.value == 4:
            asyncio.get_running_loop().call_soon(ended.set)

    def first() -> int:
        gate.wait()
        return 0

    def later(number: int) -> int:
        time.sleep(0.05 if number == 1 else 0.0)  # the loop hears of the first meanwhile
        return number

    thread.start(first).then(note)
    for number in range(1, 5):
        thread.start(lambda n=number: later(n), begin=lambda: True).then(note)  # type: ignore[misc]
    gate.set()
    await ended.wait()
    thread.stop()
    assert wakes == [[0], [1, 2, 3, 4]], "the first is told of at once"


async def test_what_is_not_for_a_lot_is_told_of_before_the_next_one_ends() -> None:
    thread = DeviceThread(hold_seconds=60.0)
    heard = [threading.Event() for _ in range(5)]

    def later(number: int) -> bool:
        return number == 0 or heard[number - 1].wait(20)

    outcomes = []
    ended = asyncio.Event()

    def note(number: int) -> None:
        heard[number].set()
        if number == 4:
            ended.set()

    for number in range(5):
        follows = (lambda: True) if number else None
        outcome = thread.start(lambda n=number: later(n), follows, may_batch_delivery=False)  # type: ignore[misc]
        outcome.then(lambda _, n=number: note(n))  # type: ignore[misc]
        outcomes.append(outcome)
    await ended.wait()
    assert [each.value for each in outcomes] == [True] * 5
    thread.stop()


async def test_nobody_hears_later_than_the_thread_may_hold() -> None:
    thread = DeviceThread(hold_seconds=0.05)
    late: list[float] = []
    ended = asyncio.Event()

    def note(outcome: StepFuture[bool]) -> None:
        late.append(time.monotonic() - outcome.ended)
        if outcome.value:
            ended.set()

    def work(last: bool) -> bool:
        time.sleep(0.02)
        return last

    for number in range(12):
        work_ = thread.start(lambda n=number: work(n == 11), begin=lambda: True)  # type: ignore[misc]
        work_.then(note)
    await ended.wait()
    thread.stop()
    assert len(late) == 12
    assert sorted(late)[6] < 0.05, "most, whatever else the machine does"
    assert max(late) > 0.01, "some were held"


async def test_what_does_not_begin_is_told_of_with_what_is_held() -> None:
    thread = DeviceThread(hold_seconds=60.0)
    works = [
        thread.start(lambda: 1, begin=lambda: True),
        thread.start(lambda: 2, begin=lambda: True),
        thread.start(lambda: 3, begin=lambda: False),
    ]
    assert [await work for work in works] == [1, 2, 3]
    thread.stop()


async def test_a_beginning_that_goes_wrong_is_the_works_error() -> None:
    thread = DeviceThread()

    def fail() -> bool:
        raise ValueError("no power")

    with pytest.raises(ValueError, match="no power"):
        await thread.start(lambda: 1, begin=fail)
    assert await thread.start(lambda: 2) == 2
    thread.stop()


def test_the_next_work_rings_and_what_it_fails_to_ring_is_heard_of_at_its_end() -> None:
    """The loop is not woken by the thread itself when what follows can do it."""
    thread = DeviceThread(hold_seconds=0.0)
    bells: list[int] = []
    thread.ring = bells.append
    heard: list[tuple[int, int]] = []
    at_work = threading.Event()

    def ringing(number: int) -> int:
        if number == 2:
            os.eventfd_write(bells.pop(), 1)
            at_work.wait()  # it is heard of while this one is under way
        return number

    async def main() -> None:
        ended = asyncio.Event()

        def note(outcome: StepFuture[int]) -> None:
            heard.append((outcome.value, len(bells)))
            if outcome.value == 1:
                at_work.set()
            if outcome.value == 4:
                ended.set()

        for number in range(1, 5):
            work = thread.start(lambda n=number: ringing(n), begin=lambda: True)  # type: ignore[misc]
            work.then(note)
        await ended.wait()

    asyncio.run(main())
    thread.stop()
    assert [number for number, _ in heard] == [1, 2, 3, 4]
    assert heard[0] == (1, 0)
