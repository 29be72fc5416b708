"""What a compiler takes is charged while it runs; it rests when its tenant has had its share."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from symphony_runtime.compiler import cpu_reporting
from symphony_runtime.compiler.compiler import Compiler
from symphony_runtime.compiler.cpu_reporting import Pace, _processor_seconds

from tests.e2e import programs as guests
from tests.support.server.server import descendants, still_alive


def _tells_of_processes() -> bool:
    """Whether this system, or what this process is in, gives files that stand for processes, sends
    signals by them, and lets another process's clock be read.
    """
    try:
        process = os.pidfd_open(os.getpid())
        try:
            signal.pidfd_send_signal(process, 0)
        finally:
            os.close(process)
    except (AttributeError, OSError):
        return False
    return _processor_seconds(os.getppid()) is not None


pytestmark = pytest.mark.skipif(
    not _tells_of_processes(), reason="processes cannot be looked at here: nobody is charged"
)
SPINS = "while True: pass"
SLEEPS = "import time; time.sleep(600)"


class Shares:
    """An account: tenants rest for `seconds` each time, past so much."""

    def __init__(self, past: float = float("inf"), seconds: float = 0.0) -> None:
        self.had: dict[str, float] = {}
        self._past, self._seconds = past, seconds

    def charge(self, tenant: str, seconds: float) -> None:
        assert seconds >= 0.0
        self.had[tenant] = self.had.get(tenant, 0.0) + seconds

    def rest(self, tenant: str) -> float:
        return self._seconds if self.had.get(tenant, 0.0) > self._past else 0.0


async def spawn(script: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(sys.executable, "-c", script, process_group=0)


async def end(child: asyncio.subprocess.Process) -> None:
    if child.returncode is None:
        child.kill()
    await child.wait()


async def wait_until(true: Callable[[], bool]) -> None:
    for _ in range(2_000):
        if true():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it has not come to that")


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def test_a_child_is_charged_while_it_runs() -> None:
    shares = Shares()
    child = await spawn(SPINS)
    async with asyncio.timeout(30), Pace(shares, "t").of(child.pid):
        await wait_until(lambda: shares.had.get("t", 0.0) >= 0.2)
    await end(child)


async def test_where_the_system_refuses_a_file_for_it_it_runs_and_nobody_is_charged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(_pid: int) -> int:
        raise PermissionError("a filter of system calls")

    shares = Shares(past=0.0, seconds=600.0)
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", "pass")
    # Not before: from Python 3.12 asyncio asks for such a file, too, when it starts a child.
    monkeypatch.setattr("os.pidfd_open", refused)
    async with asyncio.timeout(30), Pace(shares, "t").of(child.pid):
        assert await child.wait() == 0
    assert shares.had == {}


async def test_past_its_tenants_share_it_is_stopped_and_goes_on_as_it_was() -> None:
    shares = Shares(past=0.05, seconds=600.0)
    child = await spawn(SPINS)
    async with asyncio.timeout(30) as limit:
        before = limit.when()
        pace = Pace(shares, "t")
        async with pace.of(child.pid, limit):
            await wait_until(lambda: state(child.pid) == "T")
            had = shares.had["t"]
            assert before is not None
            assert limit.when() == before + pace.paused_seconds, "its limit of time waits, too"
            limit.reschedule(before)
        await wait_until(lambda: state(child.pid) != "T")
        again = Shares()
        async with Pace(again, "t").of(child.pid):
            await wait_until(lambda: again.had.get("t", 0.0) > had)
    await end(child)


async def test_one_that_would_not_end_with_its_parent_is_not_stopped() -> None:
    shares = Shares(past=0.0, seconds=600.0)
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", SPINS)
    pace = Pace(shares, "t")
    async with asyncio.timeout(30), pace.of(child.pid):
        await wait_until(lambda: shares.had.get("t", 0.0) >= 0.2)
    assert pace.paused_seconds == 0.0
    await end(child)


async def test_it_rests_no_longer_in_all_than_there_is_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu_reporting, "COMPILE_RESTS_SECONDS_MAX", 0.1)
    shares, child = Shares(past=0.0, seconds=0.06), await spawn(SPINS)
    pace = Pace(shares, "t")
    async with asyncio.timeout(30), pace.of(child.pid):
        await wait_until(lambda: shares.had.get("t", 0.0) >= 0.3)
    assert pace.paused_seconds == pytest.approx(0.1)
    await end(child)


async def test_a_child_that_ends_is_looked_at_no_more() -> None:
    for script in ("", SLEEPS):
        shares = Shares(past=-1.0, seconds=0.01)
        child = await spawn(script)
        async with asyncio.timeout(30), Pace(shares, "t").of(child.pid):
            await asyncio.sleep(0.1)
            if script:
                child.kill()
            await child.wait()
            await asyncio.sleep(0.1)


async def test_a_tenants_compilations_are_charged_to_it_and_lose_nothing_by_rests() -> None:
    compiler = Compiler()
    plain = await compiler.compile(guests.HELLO_WASM, tenant="a")
    shares = compiler.account = Shares(past=0.02, seconds=0.05)
    assert await compiler.compile(guests.HELLO_WASM, tenant="b") == plain
    assert shares.had.keys() == {"b"}
    assert shares.had["b"] > 0.02


async def test_nobody_rests_while_another_waits_for_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two tenants past their share would hold all turns for as long as they rest, for nothing."""
    compiler, stop, waiting = Compiler(at_once=2), Pace._stop, list[list[str]]()

    async def noted(pace: Pace, *given: Any) -> None:
        waiting.append(list(compiler._waiting))
        await stop(pace, *given)

    monkeypatch.setattr(Pace, "_stop", noted)
    shares = compiler.account = Shares(past=0.0, seconds=0.1)
    hostile = [compiler.compile(guests.HELLO_WASM, tenant=name) for name in "ab"]
    asked = [asyncio.create_task(each) for each in hostile]
    await wait_until(lambda: shares.had.keys() >= {"a", "b"})
    await asyncio.gather(*asked, compiler.compile(guests.HELLO_WASM, tenant="victim"))
    assert waiting, "they rest"
    assert not any(waiting)
    waiting.clear()
    shares.had["c"] = 1.0
    await asyncio.gather(*[compiler.compile(guests.HELLO_WASM, tenant=name) for name in "abc"])
    assert ["c"] in waiting, "one that would rest itself is no reason"


async def test_a_system_that_lets_nobody_be_stopped_lets_all_compile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(_process: int, _signal: int) -> None:
        raise PermissionError("a filter of system calls")

    compiler = Compiler()
    shares = compiler.account = Shares(past=0.0, seconds=0.01)
    monkeypatch.setattr(signal, "pidfd_send_signal", refused)
    await compiler.compile(guests.HELLO_WASM, tenant="a")
    assert shares.had["a"] > 0.0


GATEWAY = """
import asyncio
from symphony_runtime.compiler.compiler import Compiler

class Rests:
    def charge(self, tenant, seconds): pass
    def rest(self, tenant): return 600.0

async def main():
    compiler = Compiler()
    compiler.account = Rests()
    await compiler.compile(b"\\0asm\\x01\\0\\0\\0", tenant="a")

asyncio.run(main())
"""


async def test_one_that_rests_ends_with_its_gateway() -> None:
    gateway = await spawn(GATEWAY)
    stopped: set[int] = set()

    def is_stopped() -> bool:
        stopped.update(pid for pid in descendants(gateway.pid) if state(pid) == "T")
        return bool(stopped)

    await wait_until(is_stopped)
    gateway.kill()
    await gateway.wait()
    assert still_alive(stopped) == []
