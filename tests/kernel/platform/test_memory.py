"""The memory that is available, as the system's files say it."""

from pathlib import Path

from symphony_kernel.platform.memory import attainable_bytes, available_bytes


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_available_bytes_are_the_least_of_machine_and_cgroups(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    assert available_bytes(proc, groups) is None
    put(proc / "meminfo", "MemTotal:  9000 kB\nMemAvailable:    4000 kB\n")
    assert available_bytes(proc, groups) == 4_000 << 10
    put(proc / "self" / "cgroup", "0::/service/symphony\n")
    put(groups / "service" / "symphony" / "memory.max", "max\n")
    put(groups / "service" / "symphony" / "memory.current", "1000\n")
    assert available_bytes(proc, groups) == 4_000 << 10
    put(groups / "service" / "memory.max", "100000\n")
    put(groups / "service" / "memory.current", "90000\n")
    assert available_bytes(proc, groups) == 10_000
    put(groups / "service" / "memory.stat", "anon 5\ninactive_file 7000\n")
    assert available_bytes(proc, groups) == 17_000


def test_available_bytes_follow_limits_of_cgroups_v1(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    put(proc / "self" / "cgroup", "5:cpu,memory:/away/from/here\n")
    put(groups / "memory" / "memory.limit_in_bytes", "5000\n")
    put(groups / "memory" / "memory.usage_in_bytes", "6000\n")
    assert available_bytes(proc, groups) == 0
    put(groups / "memory" / "memory.stat", "total_inactive_file 1500\n")
    assert available_bytes(proc, groups) == 500


def test_attainable_bytes_count_swap_and_reclaimable_memory(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    assert attainable_bytes(proc, groups) is None
    put(proc / "meminfo", "MemTotal:  9000 kB\nMemAvailable:    4000 kB\nSwapFree:   1000 kB\n")
    assert attainable_bytes(proc, groups) == 5_000 << 10
    put(proc / "self" / "cgroup", "0::/\n")
    put(groups / "memory.max", "100000\n")
    put(groups / "memory.current", "90000\n")
    stat = "anon 5\nactive_file 20000\ninactive_file 7000\nslab_reclaimable 3000\n"
    put(groups / "memory.stat", stat)
    assert attainable_bytes(proc, groups) == 40_000 + (1_000 << 10)
    assert available_bytes(proc, groups) == 17_000
