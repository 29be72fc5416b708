"""How many processors there are, as the system's files and this process's affinity say it."""

import os
import sys
from pathlib import Path

import pytest
from symphony_kernel.platform.cpu_count import processes_at_once, usable_processors


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight processors of the machine that this process may be put on."""
    if sys.platform == "linux":
        monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))
    else:
        monkeypatch.setattr(os, "cpu_count", lambda: 8)


@pytest.mark.skipif(sys.platform != "linux", reason="a process has an affinity on Linux")
def test_a_process_uses_what_it_may_be_put_on(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    assert usable_processors(tmp_path, tmp_path) == len(before)
    os.sched_setaffinity(0, {min(before)})
    try:
        if len(os.sched_getaffinity(0)) > 1:
            pytest.skip("this system takes an affinity, and does nothing about it")
        assert usable_processors(tmp_path, tmp_path) == 1
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.usefixtures("many")
def test_the_smallest_quota_above_counts_and_a_part_is_a_whole_one(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    put(proc / "self" / "cgroup", "0::/service/symphony\n")
    put(groups / "service" / "symphony" / "cpu.max", "max 100000\n")
    assert usable_processors(proc, groups) == 8
    put(groups / "service" / "cpu.max", "250000 100000\n")
    assert usable_processors(proc, groups) == 3
    put(groups / "service" / "symphony" / "cpu.max", "20000 100000\n")
    assert usable_processors(proc, groups) == 1
    put(groups / "service" / "symphony" / "cpu.max", "1600000 100000\n")
    assert usable_processors(proc, groups) == 3


@pytest.mark.usefixtures("many")
def test_the_first_version_of_groups_has_quotas_too(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    put(proc / "self" / "cgroup", "4:cpu,cpuacct:/away/from/here\n3:memory:/\n")
    put(groups / "cpu" / "cpu.cfs_quota_us", "-1\n")
    put(groups / "cpu" / "cpu.cfs_period_us", "100000\n")
    assert usable_processors(proc, groups) == 8
    put(groups / "cpu" / "cpu.cfs_quota_us", "400000\n")
    assert usable_processors(proc, groups) == 4


@pytest.mark.usefixtures("many")
def test_memory_bounds_processes_and_one_there_always_is(tmp_path: Path) -> None:
    assert processes_at_once(1 << 30, tmp_path, tmp_path) == 8
    put(tmp_path / "meminfo", f"MemAvailable: {3 << 20} kB\n")
    assert processes_at_once(1 << 30, tmp_path, tmp_path) == 3
    assert processes_at_once(4 << 30, tmp_path, tmp_path) == 1
