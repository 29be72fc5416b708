"""A device's thread: the order of works, how their ends are delivered, and errors."""

import asyncio
import os
import threading
import time

import pytest
from symphony_kernel.executor.device_queue import DeviceThread, StepFuture


async def test_works_run_in_order_and_call_back_on_the_loop() -> None:
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


async def test_outcome_can_be_awaited_before_and_after_its_end() -> None:
    early: StepFuture[int] = StepFuture()
    asyncio.get_running_loop().call_soon(early.set_result, 1)
    late: StepFuture[int] = StepFuture()
    late.set_result(2)
    assert [await early, await late] == [1, 2]


async def test_work_or_beginning_that_raises_raises_in_its_caller_alone() -> None:
    thread = DeviceThread()

    def fail() -> bool:
        raise ValueError("no power")

    for work, begin in ((fail, None), (lambda: True, fail)):
        with pytest.raises(ValueError, match="no power"):
            await thread.start(work, begin)
        assert await thread.start(lambda: 7) == 7
    with pytest.raises(ValueError, match="no power"):
        thread.call(fail)
    assert thread.call(lambda: 8) == 8
    thread.stop()


async def test_outcome_whose_caller_was_cancelled_can_be_set() -> None:
    outcome: StepFuture[int] = StepFuture()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await outcome
    outcome.set_result(1)


# -- Chained works -----------------------------------------------------------------------------
async def test_chained_works_begin_without_the_loop_and_end_together() -> None:
    thread = DeviceThread(hold_seconds=60.0)
    gate = threading.Event()
    wakes: list[list[int]] = []
    ended = asyncio.Event()
    delivered: list[int] = []

    def note(outcome: StepFuture[int]) -> None:
        if not delivered:
            asyncio.get_running_loop().call_soon(lambda: wakes.append(list(delivered)))
            asyncio.get_running_loop().call_soon(delivered.clear)
        delivered.append(outcome.value)
        if outcome.value == 4:
            asyncio.get_running_loop().call_soon(ended.set)

    def first() -> int:
        gate.wait()
        return 0

    def later(number: int) -> int:
        time.sleep(0.05 if number == 1 else 0.0)  # the first end is delivered meanwhile
        return number

    thread.start(first).then(note)
    for number in range(1, 5):
        thread.start(lambda n=number: later(n), begin=lambda: True).then(note)  # type: ignore[misc]
    gate.set()
    await ended.wait()
    thread.stop()
    assert wakes == [[0], [1, 2, 3, 4]], "the first end is delivered at once"


async def test_chained_works_without_batched_delivery_end_one_by_one() -> None:
    thread = DeviceThread(hold_seconds=60.0)
    delivered = [threading.Event() for _ in range(5)]

    def later(number: int) -> bool:
        return number == 0 or delivered[number - 1].wait(20)

    outcomes = []
    ended = asyncio.Event()

    def note(number: int) -> None:
        delivered[number].set()
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


async def test_held_ends_are_delivered_within_the_limit() -> None:
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
    assert sorted(late)[6] < 0.05, "most, even on a busy machine"
    assert max(late) > 0.01, "some were held"


async def test_work_that_does_not_begin_ends_with_those_held() -> None:
    thread = DeviceThread(hold_seconds=60.0)
    works = [
        thread.start(lambda: 1, begin=lambda: True),
        thread.start(lambda: 2, begin=lambda: True),
        thread.start(lambda: 3, begin=lambda: False),
    ]
    assert [await work for work in works] == [1, 2, 3]
    thread.stop()


def test_next_work_wakes_the_loop_or_the_end_does() -> None:
    """The thread itself does not wake the loop while a chained work can do it."""
    thread = DeviceThread(hold_seconds=0.0)
    bells: list[int] = []
    thread.ring = bells.append
    delivered: list[tuple[int, int]] = []
    at_work = threading.Event()

    def ringing(number: int) -> int:
        if number == 2:
            os.eventfd_write(bells.pop(), 1)
            at_work.wait()  # its end is delivered while this one is under way
        return number

    async def main() -> None:
        ended = asyncio.Event()

        def note(outcome: StepFuture[int]) -> None:
            delivered.append((outcome.value, len(bells)))
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
    assert [number for number, _ in delivered] == [1, 2, 3, 4]
    assert delivered[0] == (1, 0)
