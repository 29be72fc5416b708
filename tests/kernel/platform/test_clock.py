"""Virtual time: order, jumps, and errors."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from symphony_kernel.platform.clock import RealClock, VirtualClock


def test_virtual_hour_passes_at_once_and_in_order() -> None:
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


def test_virtual_timeout_ends_in_virtual_time() -> None:
    clock = VirtualClock()

    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1000):
                await asyncio.Event().wait()
        return clock.now()

    assert clock.run(main()) == pytest.approx(1000)


def test_virtual_deadlock_is_an_error() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="deadlock in virtual time"):
        VirtualClock().run(main())


def test_virtual_run_waits_for_its_threads_at_the_end() -> None:
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


async def test_virtual_clock_in_another_loop_refuses_to_sleep() -> None:
    with pytest.raises(AssertionError, match="its own run"):
        await VirtualClock().sleep(1)


async def test_real_clock_advances_by_the_time_slept() -> None:
    clock = RealClock()
    before = clock.now()
    await clock.sleep(0.01)
    assert 0.009 < clock.now() - before < 5
