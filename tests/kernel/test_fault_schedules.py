"""Random crashes and faults of storage, against the kernel's journal and durable names.

SYMPHONY_SCHEDULES=N runs N of them, others each time; 2,000 take about a quarter of a minute.
"""

import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.faults.faults import Faults

WANTED = int(os.environ.get("SYMPHONY_SCHEDULES", "0"))


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory, where there is one: the faults are ours, and a disk's flushes slow."""
    memory = Path("/dev/shm")
    made = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
    yield made
    shutil.rmtree(made)


def run(
    folder: Path, first: int, count: int, planted: str = ""
) -> subprocess.CompletedProcess[str]:
    (folder / "work").mkdir()
    faults = Faults(folder / "control", folder / "work")
    command = [sys.executable, "-m", "tests.support.faults.schedules", str(folder / "work"),
               str(first), str(count), *filter(None, [planted])]  # fmt: skip
    return subprocess.run(
        command,
        env={**os.environ, **faults.environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_acknowledged_change_is_durable_exactly_once(folder: Path) -> None:
    first = random.randrange(1 << 40) if WANTED else 0
    ended = run(folder, first, WANTED or 1_200)
    assert ended.returncode == 0, ended.stdout[-4_000:] + ended.stderr[-2_000:]


@pytest.mark.parametrize("bug", ["early", "stale"])
@pytest.mark.slow
def test_planted_bug_is_found(folder: Path, bug: str) -> None:
    ended = run(folder, 0, 100, bug)
    assert ended.returncode == 1, ended.stderr[-2_000:]
    assert "schedule " in ended.stdout
