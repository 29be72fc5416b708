"""Locks this process down, layer after layer."""

import contextlib
import ctypes
import fcntl
import os
import resource
import sys
import termios
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from symphony_kernel.platform.rlimits import lower_limit
from symphony_kernel.protocol.limits import WORKER_DESCRIPTORS_MAX, WORKER_THREADS_MAX

from symphony_runtime.sandboxing import landlock, seccomp

LAYERS = ("user", "namespaces", "limits", "landlock", "seccomp")
_OF_ROOT = ("user", "namespaces")

# Ids that no distribution assigns. Each worker is a user of its own, so that none can signal or
# trace another.
WORKERS_GROUP = 65_100

_PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 4, 38
_CLONE_NEWIPC, _CLONE_NEWNET, _CLONE_NEWUTS = 0x08000000, 0x40000000, 0x04000000


class ContainmentError(Exception):
    """A required layer is missing; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Contained:
    """The layers achieved, each with a note; the missing ones with the reason."""

    achieved: dict[str, str]
    missing: dict[str, str]

    def summary(self) -> str:
        """Return both in one line."""
        have = ", ".join(f"{layer} ({note})" for layer, note in self.achieved.items())
        lack = ", ".join(f"{layer} ({note})" for layer, note in self.missing.items())
        return (have or "nothing") + (f"; without {lack}" if lack else "")


def expected(*, root: bool) -> tuple[str, ...]:
    """Return the layers that a process can have if the system supports all."""
    return tuple(layer for layer in LAYERS if root or layer not in _OF_ROOT)


def contain(number: int, *, layers: Collection[str] = LAYERS, required: bool = False) -> Contained:
    """Lock this process down; `number` chooses its user, one for each process.

    Call it before the first thread: a thread that runs already would keep its files.

    Raises ContainmentError: a layer that this user could have is missing, and `required` is set.
    """
    achieved: dict[str, str] = {}
    missing: dict[str, str] = {}
    _leave_terminal()
    if sys.platform != "linux":
        missing = dict.fromkeys(layers, "only on Linux")
    else:
        libc = ctypes.CDLL(None, use_errno=True)
        rules: seccomp.Filter | None = None
        with contextlib.suppress(OSError):  # no libseccomp; it is read while files can be opened
            rules = seccomp.prepared()
        steps: dict[str, Callable[[], str]] = {
            "namespaces": lambda: _leave_namespaces(libc),
            "user": lambda: _become(WORKERS_GROUP + 1 + number),
            "limits": lambda: _limit(libc, alone="user" in achieved),
            "landlock": lambda: _without_files(libc),
            "seccomp": lambda: _without_calls(rules),
        }
        wanted = set(layers) & set(expected(root=os.geteuid() == 0))
        for layer, step in steps.items():
            if layer not in wanted:
                continue
            try:
                achieved[layer] = step()
            except OSError as error:
                missing[layer] = error.strerror or str(error)
    sys.audit("symphony.contained")  # from here on nothing can be imported
    found = Contained(achieved, missing)
    if required and missing:
        raise ContainmentError(f"containment was required, and there is {found.summary()}")
    return found


def open_to_workers(directory: Path) -> None:
    """Let workers of a server that is root reach the sockets in its private directory."""
    if os.geteuid() == 0:
        with contextlib.suppress(OSError):  # then workers stay root, and report it
            os.chown(directory, -1, WORKERS_GROUP)
            directory.chmod(0o2710)  # files in it get the workers' group


def _leave_terminal() -> None:
    """Give up the session's terminal."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except OSError:  # no terminal
        return
    try:
        fcntl.ioctl(terminal, termios.TIOCNOTTY)
    finally:
        os.close(terminal)


def _leave_namespaces(libc: ctypes.CDLL) -> str:
    if libc.unshare(_CLONE_NEWNET | _CLONE_NEWIPC | _CLONE_NEWUTS):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return "network, ipc, uts"


def _become(user: int) -> str:
    os.setgroups([])
    os.setresgid(WORKERS_GROUP, WORKERS_GROUP, WORKERS_GROUP)
    os.setresuid(user, user, user)  # capabilities go with it
    return str(user)


def _limit(libc: ctypes.CDLL, *, alone: bool) -> str:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    lower_limit(resource.RLIMIT_NOFILE, WORKER_DESCRIPTORS_MAX)
    for option, value in ((_PR_SET_NO_NEW_PRIVS, 1), (_PR_SET_DUMPABLE, 0)):
        if libc.prctl(option, value, 0, 0, 0):
            raise OSError(ctypes.get_errno(), f"prctl {option}")
    if alone:  # it is the only process of its user, whose threads are counted together
        lower_limit(resource.RLIMIT_NPROC, WORKER_THREADS_MAX)
    return f"{WORKER_DESCRIPTORS_MAX} descriptors, no new privileges"


def _without_files(libc: ctypes.CDLL) -> str:
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads != 1:
        raise OSError(0, f"{threads} threads run already")
    version = landlock.restrict(libc)
    if not version:
        raise OSError(0, "this system has no Landlock")
    return f"version {version}"


def _without_calls(rules: seccomp.Filter | None) -> str:
    if rules is None:
        raise OSError(0, "libseccomp is not installed")
    rules.load()
    return "calls on a list"
