"""The processes of a server: all of them stopped, continued, counted and ended."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

_TICK = 1.0 / os.sysconf("SC_CLK_TCK")
STOP_SECONDS_MAX = 30.0


def tree(pid: int) -> list[int]:
    """Return a process and all below it, parents first."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))) is not None:
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [pid]
    for parent in found:
        found.extend(parents.get(parent, ()))
    return found


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat after the name, or None when it is gone."""
    try:
        # The name, in parentheses, may hold anything.
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def pause(pid: int) -> None:
    """Let a process and all below it take no processor time until `resume`."""
    for each in tree(pid):
        _signal(each, signal.SIGSTOP)


def resume(pid: int) -> None:
    """Let them go on, children first, so that no parent misses them."""
    for each in reversed(tree(pid)):
        _signal(each, signal.SIGCONT)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process and all below it have taken, ended children too."""
    total = 0
    for each in tree(pid):
        if (fields := _stat(each)) is not None:
            total += sum(int(field) for field in fields[11:15])  # utime, stime, and its children's
    return total * _TICK


def memory_bytes(pid: int) -> int:
    """Return the memory of a process and all below it, shared pages divided among their users."""
    total = 0
    for each in tree(pid):
        with contextlib.suppress(OSError):
            text = (Path("/proc") / str(each) / "smaps_rollup").read_text()
            total += sum(
                int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")
            )
    return total * 1024


def machine_cpu_seconds() -> float:
    """Return the processor time that all of the machine has taken."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = (
        int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) * _TICK


def divided(
    taken: float | None, client: float, machine: float, seconds: float
) -> tuple[float | None, float | None]:
    """Return what a server took of a measurement, and others' share of the machine.

    Args:
        taken: The server's processor time, in seconds; None where it is not known.
        client: The client's own.
        machine: The whole machine's.
        seconds: How long it was.
    """
    if taken is None:
        return None, None
    return taken, max(0.0, machine - taken - client) / (seconds * (os.cpu_count() or 1))


def end(process: subprocess.Popen[bytes], orphan_seconds: float = 5.0) -> None:
    """Ask a server to end; kill what is left of it after a while."""
    below = tree(process.pid)
    resume(process.pid)
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS_MAX)
    for each in below[1:]:
        _end_orphan(each, orphan_seconds)
    if process.poll() is None:
        process.kill()
        process.wait()


def _end_orphan(pid: int, seconds: float) -> None:
    """Wait for a child that its parent has left, then kill it."""
    deadline = time.monotonic() + seconds
    while (fields := _stat(pid)) is not None and fields[0] != "Z":
        if time.monotonic() > deadline:
            _signal(pid, signal.SIGKILL)
            return
        time.sleep(0.05)
