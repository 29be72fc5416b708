"""Virtual time: order, jumps, and what it refuses."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from symphony_kernel.platform.clock import RealClock, VirtualClock


def test_an_hour_passes_at_once_and_in_order() -> None:
    clock = VirtualClock()
    woken: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((name, clock.now()))

    async def main() -> None:
        await asyncio.gather(sleeper("c", 3600), sleeper("a", 1), sleeper("b", 1.5))

    started = time.monotonic()
    clock.run(main())
    assert [name for name, _ in woken] == ["a", "b", "c"]
    assert [at for _, at in woken] == pytest.approx([1, 1.5, 3600])
    assert time.monotonic() - started < 5


def test_timeouts_are_virtual_too() -> None:
    clock = VirtualClock()

    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1000):
                await asyncio.Event().wait()
        return clock.now()

    assert clock.run(main()) == pytest.approx(1000)


def test_waiting_for_what_cannot_happen_is_an_error_and_not_a_hang() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="deadlock in virtual time"):
        VirtualClock().run(main())


def test_the_end_waits_for_threads_that_are_late() -> None:
    class Late(ThreadPoolExecutor):
        over = False

        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            time.sleep(0.05)  # as on a busy machine
            super().shutdown(wait, cancel_futures=cancel_futures)
            self.over = True

    threads = Late(1)

    async def main() -> str:
        asyncio.get_running_loop().set_default_executor(threads)
        return "done"

    assert VirtualClock().run(main()) == "done"
    assert threads.over


async def test_a_virtual_clock_does_not_sleep_in_another_loop() -> None:
    with pytest.raises(AssertionError, match="its own run"):
        await VirtualClock().sleep(1)


async def test_the_real_clock_grows_by_what_was_slept() -> None:
    clock = RealClock()
    before = clock.now()
    await clock.sleep(0.01)
    assert 0.009 < clock.now() - before < 5
