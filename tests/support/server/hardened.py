"""Runs a command as systemd would by a unit: `hardened.py UNIT [FOLDER ...] -- COMMAND`.

What it takes from the unit: CapabilityBoundingSet, NoNewPrivileges, SystemCallFilter (systemd's own
groups of calls), RestrictNamespaces, RestrictAddressFamilies, UMask, and ProtectSystem=strict with
the folders as the only ones to write to. It needs root.
"""

import ctypes
import os
import socket
import subprocess
import sys
from pathlib import Path

from symphony_runtime.sandboxing.seccomp import Filter

_CLONE_NEWNS = 0x00020000
_NAMESPACES = {"cgroup": 0x02000000, "ipc": 0x08000000, "mnt": _CLONE_NEWNS, "net": 0x40000000,
               "pid": 0x20000000, "time": 0x80, "user": 0x10000000, "uts": 0x04000000}  # fmt: skip
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 24, 38
_EQUAL, _MASKED_EQUAL = 4, 7
_ENOSYS = 0x00050000 | 38
# Those of <linux/capability.h> that a server needs.
CAPABILITIES = {"CAP_CHOWN": 0, "CAP_FSETID": 4, "CAP_KILL": 5, "CAP_SETGID": 6, "CAP_SETUID": 7,
                "CAP_SYS_ADMIN": 21}  # fmt: skip


def read_unit(path: Path) -> dict[str, list[str]]:
    """Return the settings of a unit; one that is given several times has several values."""
    found: dict[str, list[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        name, given, value = line.partition("=")
        if given and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def capability_mask(unit: dict[str, list[str]]) -> int:
    [names] = unit["CapabilityBoundingSet"]
    return sum(1 << CAPABILITIES[name] for name in names.split())


def _calls(unit: dict[str, list[str]]) -> set[str]:
    """Return the system calls that a unit allows, its groups resolved by systemd-analyze."""
    groups = ["systemd-analyze", "syscall-filter"]
    listed = subprocess.run(groups, check=True, capture_output=True, text=True).stdout
    members: dict[str, list[str]] = {}
    for line in listed.splitlines():
        if line.startswith("@"):
            here = members.setdefault(line, [])
        elif line.strip() and not line.strip().startswith("#"):
            here.append(line.strip())
    waiting, calls = [word for each in unit["SystemCallFilter"] for word in each.split()], set()
    waiting.append("@default")
    while waiting:
        name = waiting.pop()
        if name.startswith("@"):
            waiting += members[name]
        else:
            calls.add(name)
    return calls


def _filter(unit: dict[str, list[str]]) -> Filter:
    """Return a filter of calls, namespaces and address families: any other is EPERM."""
    rules, calls = Filter(), _calls(unit)
    [namespaces], [families] = unit["RestrictNamespaces"], unit["RestrictAddressFamilies"]
    refused = sum(bit for name, bit in _NAMESPACES.items() if name not in namespaces.split())
    for name in calls - {"unshare", "clone", "clone3", "setns", "socket"}:
        rules.add(name)
    rules.add("unshare", (0, _MASKED_EQUAL, refused, 0))
    rules.add("clone", (0, _MASKED_EQUAL, refused, 0))
    rules.add("clone3", action=_ENOSYS)  # as systemd does: a filter cannot see its flags
    for family in families.split():
        rules.add("socket", (0, _EQUAL, int(getattr(socket, family)), 0))
    return rules


def _protect(libc: ctypes.CDLL, folders: list[str]) -> None:
    """Make every file read-only for this process and its children, but those in the folders."""
    if libc.unshare(_CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "unshare")
    commands = [["--make-rprivate", "/"], *(["--bind", each, each] for each in folders)]
    for command in [*commands, ["-o", "remount,bind,ro", "/"]]:
        subprocess.run(["mount", *command], check=True)


def main(unit_path: str, *arguments: str) -> None:
    split = arguments.index("--")
    folders, command = list(arguments[:split]), list(arguments[split + 1 :])
    unit = read_unit(Path(unit_path))
    assert unit["NoNewPrivileges"] == ["yes"]
    assert unit["ProtectSystem"] == ["strict"]
    libc = ctypes.CDLL(None, use_errno=True)
    rules, kept = _filter(unit), capability_mask(unit)
    _protect(libc, folders)
    os.umask(int(unit["UMask"][0], 8))
    for number in range(int(Path("/proc/sys/kernel/cap_last_cap").read_text()) + 1):
        if not kept >> number & 1:
            libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    rules.load()
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
