"""The number of processors, from the system's files and the process's affinity."""

import os
import sys
from pathlib import Path

import pytest
from symphony_kernel.platform.cpu_count import processes_at_once, usable_processors

from tests.support.requirements import lacking, requires


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow this process to run on eight processors."""
    if sys.platform == "linux":
        monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))
    else:
        monkeypatch.setattr(os, "cpu_count", lambda: 8)


@requires("linux", sys.platform == "linux", "a process has an affinity on Linux only")
def test_usable_processors_are_those_of_the_affinity(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    assert usable_processors(tmp_path, tmp_path) == len(before)
    os.sched_setaffinity(0, {min(before)})
    try:
        if len(os.sched_getaffinity(0)) > 1:
            lacking("linux", "this system accepts an affinity and ignores it")
        assert usable_processors(tmp_path, tmp_path) == 1
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.usefixtures("many")
def test_usable_processors_are_the_smallest_quota_rounded_up(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    put(proc / "self" / "cgroup", "0::/service/symphony\n")
    parent, own = "service", "service/symphony"
    for group, quota, usable in (
        (own, "max", 8), (parent, "250000", 3), (own, "20000", 1), (own, "1600000", 3)
    ):  # fmt: skip
        put(groups / group / "cpu.max", f"{quota} 100000\n")
        assert usable_processors(proc, groups) == usable


@pytest.mark.usefixtures("many")
def test_usable_processors_follow_quotas_of_cgroups_v1(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    put(proc / "self" / "cgroup", "4:cpu,cpuacct:/away/from/here\n3:memory:/\n")
    put(groups / "cpu" / "cpu.cfs_quota_us", "-1\n")
    put(groups / "cpu" / "cpu.cfs_period_us", "100000\n")
    assert usable_processors(proc, groups) == 8
    put(groups / "cpu" / "cpu.cfs_quota_us", "400000\n")
    assert usable_processors(proc, groups) == 4


@pytest.mark.usefixtures("many")
def test_processes_at_once_fit_into_memory_and_are_at_least_one(tmp_path: Path) -> None:
    assert processes_at_once(1 << 30, tmp_path, tmp_path) == 8
    put(tmp_path / "meminfo", f"MemAvailable: {3 << 20} kB\n")
    assert processes_at_once(1 << 30, tmp_path, tmp_path) == 3
    assert processes_at_once(4 << 30, tmp_path, tmp_path) == 1
