"""Stopping, counting and ending a server's processes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from benchmarks.serving import processes
from tests.support.server.server import still_alive

# A parent that computes, with a child that does; the child ignores SIGTERM. Neither outlives a
# killed test for long: they may take a minute of processor time.
BUSY = """
import resource, signal, subprocess, sys
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
child = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\\nwhile True: pass"
subprocess.Popen([sys.executable, "-c", child])
while True: pass
"""


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def busy() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", BUSY])
    wait_until(lambda: len(processes.tree(process.pid)) == 2)
    wait_until(lambda: processes.cpu_seconds(process.pid) > 0.2)
    yield process
    if process.poll() is None:
        for pid in processes.tree(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.wait()


def test_paused_process_takes_no_time(busy: subprocess.Popen[bytes]) -> None:
    processes.pause(busy.pid)
    time.sleep(0.1)
    before = processes.cpu_seconds(busy.pid)
    time.sleep(0.3)
    assert processes.cpu_seconds(busy.pid) == before
    processes.resume(busy.pid)
    wait_until(lambda: processes.cpu_seconds(busy.pid) > before)


def test_process_memory_and_machine_are_counted(busy: subprocess.Popen[bytes]) -> None:
    assert 1 << 20 < processes.memory_bytes(busy.pid) < 1 << 30
    before = processes.machine_cpu_seconds()
    wait_until(lambda: processes.machine_cpu_seconds() > before)


def test_paused_server_ends_with_its_children(busy: subprocess.Popen[bytes]) -> None:
    child = processes.tree(busy.pid)[1]
    processes.pause(busy.pid)
    processes.end(busy, orphan_seconds=0.5)
    assert busy.poll() is not None
    assert not still_alive([child])
