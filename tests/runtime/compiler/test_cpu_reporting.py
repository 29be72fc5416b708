"""A compiler is charged while it runs, and stopped while its tenant is throttled."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from symphony_runtime.compiler import cpu_reporting
from symphony_runtime.compiler.compiler import Compiler
from symphony_runtime.compiler.cpu_reporting import Pace, _processor_seconds

from tests.e2e import programs as guests
from tests.support.requirements import requires
from tests.support.server.server import descendants, still_alive
from tests.support.waiting import wait_until


def _has_pidfds() -> bool:
    """Whether this system has pidfds, sends signals by them and shows another process's clock."""
    try:
        process = os.pidfd_open(os.getpid())
        try:
            signal.pidfd_send_signal(process, 0)
        finally:
            os.close(process)
    except (AttributeError, OSError):
        return False
    return _processor_seconds(os.getppid()) is not None


pytestmark = requires("linux", _has_pidfds(), "no pidfd here, so that no compiler is charged")
SPINS = "while True: pass"
SLEEPS = "import time; time.sleep(600)"


class Shares:
    """An account: past so much a tenant is throttled for `seconds` each time."""

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


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def test_compiler_is_charged_while_it_runs() -> None:
    shares = Shares()
    child = await spawn(SPINS)
    async with asyncio.timeout(30), Pace(shares, "t").of(child.pid):
        await wait_until(lambda: shares.had.get("t", 0.0) >= 0.2)
    await end(child)


async def test_compiler_without_a_pidfd_is_not_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_pid: int) -> int:
        raise PermissionError("a filter of system calls")

    shares = Shares(past=0.0, seconds=600.0)
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", "pass")
    # Not before: from Python 3.12 asyncio asks for such a file, too, when it starts a child.
    monkeypatch.setattr("os.pidfd_open", refused)
    async with asyncio.timeout(30), Pace(shares, "t").of(child.pid):
        assert await child.wait() == 0
    assert shares.had == {}


async def test_compiler_past_its_tenants_share_is_stopped_and_continued() -> None:
    shares = Shares(past=0.05, seconds=600.0)
    child = await spawn(SPINS)
    async with asyncio.timeout(30) as limit:
        before = limit.when()
        pace = Pace(shares, "t")
        async with pace.of(child.pid, limit):
            await wait_until(lambda: state(child.pid) == "T")
            had = shares.had["t"]
            assert before is not None
            assert limit.when() == before + pace.paused_seconds, "its time limit moves, too"
            limit.reschedule(before)
        await wait_until(lambda: state(child.pid) != "T")
        again = Shares()
        async with Pace(again, "t").of(child.pid):
            await wait_until(lambda: again.had.get("t", 0.0) > had)
    await end(child)


async def test_compiler_in_its_parents_process_group_is_not_stopped() -> None:
    shares = Shares(past=0.0, seconds=600.0)
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", SPINS)
    pace = Pace(shares, "t")
    async with asyncio.timeout(30), pace.of(child.pid):
        await wait_until(lambda: shares.had.get("t", 0.0) >= 0.2)
    assert pace.paused_seconds == 0.0
    await end(child)


async def test_compiler_is_stopped_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_reporting, "COMPILE_RESTS_SECONDS_MAX", 0.1)
    shares, child = Shares(past=0.0, seconds=0.06), await spawn(SPINS)
    pace = Pace(shares, "t")
    async with asyncio.timeout(30), pace.of(child.pid):
        await wait_until(lambda: shares.had.get("t", 0.0) >= 0.3)
    assert pace.paused_seconds == pytest.approx(0.1)
    await end(child)


async def test_compiler_that_ended_is_not_looked_at_again() -> None:
    for script in ("", SLEEPS):
        shares = Shares(past=-1.0, seconds=0.01)
        child = await spawn(script)
        async with asyncio.timeout(30), Pace(shares, "t").of(child.pid):
            await asyncio.sleep(0.1)
            if script:
                child.kill()
            await child.wait()
            await asyncio.sleep(0.1)


async def test_compilation_is_charged_to_its_tenant_and_unchanged_by_stops() -> None:
    compiler = Compiler()
    plain = await compiler.compile(guests.HELLO_WASM, tenant="a")
    shares = compiler.account = Shares(past=0.02, seconds=0.05)
    assert await compiler.compile(guests.HELLO_WASM, tenant="b") == plain
    assert shares.had.keys() == {"b"}
    assert shares.had["b"] > 0.02


async def test_compiler_is_not_stopped_while_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert waiting, "they are stopped"
    assert not any(waiting)
    waiting.clear()
    shares.had["c"] = 1.0
    await asyncio.gather(*[compiler.compile(guests.HELLO_WASM, tenant=name) for name in "abc"])
    assert ["c"] in waiting, "one that is throttled itself is no reason"


async def test_compiler_that_cannot_be_stopped_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_stopped_compiler_ends_with_its_gateway() -> None:
    gateway = await spawn(GATEWAY)
    stopped: set[int] = set()

    def is_stopped() -> bool:
        stopped.update(pid for pid in descendants(gateway.pid) if state(pid) == "T")
        return bool(stopped)

    await wait_until(is_stopped)
    gateway.kill()
    await gateway.wait()
    assert still_alive(stopped) == []
