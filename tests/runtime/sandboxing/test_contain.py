"""A process that contained itself can do nothing that its layers take away, in no thread."""

import errno
import json
import os
import subprocess
import sys
from functools import lru_cache
from typing import Any

import pytest
from symphony_runtime.sandboxing.contain import LAYERS, WORKERS_GROUP, expected

from tests.support.requirements import lacking, requires

# What a process tries when an attacker has taken it over; each answer is an errno, or what it got.
PROBE = """
import ctypes, json, mmap, os, resource, signal, socket, sys, threading
from symphony_runtime.sandboxing.contain import contain

neighbour = int(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
ours = open("/proc/self/status")
found = contain(3)

def attempt(what):
    try:
        return repr(what())
    except OSError as error:
        return error.errno
    except ValueError as error:  # how `resource` tells of EPERM
        return str(error)

def call(name, *arguments):
    result = getattr(libc, name)(*arguments)
    return ctypes.get_errno() if result < 0 else repr(result)

def in_a_thread(what):
    got = []
    thread = threading.Thread(target=lambda: got.append(attempt(what)))
    thread.start()
    thread.join()
    return got[0]

print(json.dumps({
    "achieved": found.achieved, "missing": found.missing,
    "read": attempt(lambda: open("/etc/passwd")),
    "read in a thread": in_a_thread(lambda: open("/etc/passwd")),
    "write": attempt(lambda: open("/tmp/symphony-was-here", "w")),
    "list": attempt(lambda: os.listdir("/")),
    "memory of others": attempt(lambda: open(f"/proc/{neighbour}/mem", "rb")),
    "internet": attempt(lambda: socket.socket(socket.AF_INET)),
    "netlink": attempt(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)),
    "exec": attempt(lambda: os.execv("/bin/true", ["true"])),
    "fork": attempt(lambda: os.fork() or os._exit(0)),
    "kill": attempt(lambda: os.kill(neighbour, signal.SIGTERM)),
    "trace": call("ptrace", 16, neighbour, None, None),
    "mount": call("mount", b"none", b"/tmp", b"tmpfs", 0, None),
    "namespace": call("unshare", 0x10000000),
    "root again": attempt(lambda: os.setuid(0)),
    "more descriptors": attempt(
        lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (100_000, 100_000))),
    "this machine": attempt(lambda: socket.socket(socket.AF_UNIX).close()),
    "memory": attempt(lambda: mmap.mmap(-1, 1 << 20).close()),
    "a thread": in_a_thread(lambda: 1),
    "ids": [os.getuid(), os.geteuid(), os.getgid(), os.getegid(), os.getgroups()],
    "status": ours.read(),
}))
"""
REFUSED = (1, 13)  # EPERM, EACCES


@lru_cache(maxsize=1)
def probe() -> dict[str, Any]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as neighbour:
        command = [sys.executable, "-c", PROBE, str(neighbour.pid)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert neighbour.poll() is None
        neighbour.kill()
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def said(script: str, *arguments: str) -> str:
    """Run a script in a process of its own; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return done.stdout


def with_layer(layer: str) -> dict[str, Any]:
    found = probe()
    if layer not in found["achieved"]:
        lacking("containment", f"no {layer}: {found['missing'].get(layer, 'not root')}")
    return found


def test_containment_reports_each_layer_as_achieved_or_missing() -> None:
    found = probe()
    told = {**found["achieved"], **found["missing"]}
    assert set(told) == set(expected(root=os.geteuid() == 0))
    assert all(told.values())
    assert set(told) <= set(LAYERS)


@pytest.mark.parametrize("what", ["read", "read in a thread", "write", "list", "memory of others"])
def test_contained_process_can_open_no_file(what: str) -> None:
    assert with_layer("landlock")[what] in REFUSED


@pytest.mark.parametrize(
    "what", ["internet", "netlink", "exec", "fork", "kill", "trace", "mount", "namespace"]
)
def test_contained_process_fails_at_calls_that_are_not_listed(what: str) -> None:
    assert with_layer("seccomp")[what] in REFUSED


def test_contained_process_keeps_what_a_worker_needs() -> None:
    found = with_layer("seccomp")
    assert [found[what] for what in ("this machine", "memory", "a thread")] == ["None", "None", "1"]


def test_contained_process_gives_up_root_for_good() -> None:
    found = with_layer("user")
    user, group = WORKERS_GROUP + 4, WORKERS_GROUP
    assert found["ids"] == [user, user, group, group, []]
    assert found["root again"] in REFUSED


def test_contained_process_cannot_raise_its_limits() -> None:
    found = with_layer("limits")
    assert "NoNewPrivs:\t1" in found["status"]
    assert found["more descriptors"] == "not allowed to raise maximum limit"


@requires("root", os.geteuid() == 0, "only root becomes another user")
def test_containment_counts_no_processes_of_an_ordinary_user() -> None:
    """Also one with a large number, as a directory service gives."""
    script = f"""
import os, resource
from symphony_runtime.sandboxing.contain import contain
os.setresuid({WORKERS_GROUP + 5_000}, {WORKERS_GROUP + 5_000}, {WORKERS_GROUP + 5_000})
before = resource.getrlimit(resource.RLIMIT_NPROC)
print(*contain(0, layers=("user", "limits")).achieved)
print(resource.getrlimit(resource.RLIMIT_NPROC) == before)
"""
    assert said(script) == "limits\nTrue\n"


def test_containment_with_a_running_thread_is_refused() -> None:
    script = """
import threading
from symphony_runtime.sandboxing.contain import ContainmentError, contain
threading.Thread(target=threading.Event().wait, daemon=True).start()
try:
    contain(0, required=True)
except ContainmentError as error:
    print(error)
"""
    found = said(script)
    assert "landlock (2 threads run already)" in found
    assert found.startswith("containment was required, and there is ")


def test_contained_process_gives_up_its_terminal() -> None:
    """A worker shares its session, which may have one. Without layers: any would refuse it."""
    worker = (
        "from symphony_runtime.sandboxing.contain import contain\n"
        "open('/dev/tty').close()\n"
        "contain(3, layers=())\n"
        "try:\n    open('/dev/tty')\n"
        "except OSError as error:\n    print('errno', error.errno, flush=True)\n"
    )
    leader = (
        "import os, pty, subprocess, sys\n"
        "pid, terminal = pty.fork()\n"
        "if not pid:\n"
        "    subprocess.run([sys.executable, '-c', sys.argv[1]], process_group=0)\n"
        "    os._exit(0)\n"
        "while True:\n"
        "    try:\n        said = os.read(terminal, 4096)\n"
        "    except OSError:\n        break\n"  # how a terminal ends
        "    if not said:\n        break\n"
        "    os.write(1, said)\n"
    )
    assert said(leader, worker).split() == ["errno", str(errno.ENXIO)]
