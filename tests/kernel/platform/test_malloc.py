"""Freed memory returns to the system although live blocks lie between."""

import subprocess
import sys

from tests.support.requirements import requires

HOLES = """
import os, sys, time
from pathlib import Path
from symphony_kernel.platform.malloc import trim_regularly

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20

blocks = [bytes(16_000) for _ in range(8_000)]  # 122 MiB of the heap
most = resident()
kept = blocks[99::100]
del blocks
held = resident()
assert held > most - 20, (most, held)
trim_regularly(0.05)
end = time.monotonic() + 20
while resident() > most - 100 and time.monotonic() < end:
    time.sleep(0.05)
assert resident() <= most - 100, (most, held, resident())
"""


@requires("linux", sys.platform == "linux", "of glibc's allocator")
def test_memory_freed_between_live_blocks_returns_to_the_system() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HOLES], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
