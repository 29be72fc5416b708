"""Landlock: a process gives up files, ports and signals (Linux 5.13 and later).

The numbers come from the kernel's `Documentation/userspace-api/landlock.rst`; they are the same on
every architecture. Rights that a kernel is too old for are left out.
"""

import ctypes
import os
import struct

_CREATE_RULESET, _RESTRICT_SELF = 444, 446
_CREATE_RULESET_VERSION = 1

# Rights by the version that introduced them: on files, on ports, and beyond the process.
_FILES = {1: (1 << 13) - 1, 2: 1 << 13, 3: 1 << 14, 5: 1 << 15}
_PORTS = {4: 0b11}  # bind and connect, TCP
_SCOPES = {6: 0b11}  # abstract sockets and signals of processes outside


def restrict(libc: ctypes.CDLL) -> int:
    """Forbid this thread and its children to open any file; return the version.

    Open descriptors stay. 0: the system has no Landlock, and nothing changed. It requires
    no_new_privs. Raise OSError.
    """
    found: int = libc.syscall(_CREATE_RULESET, None, 0, _CREATE_RULESET_VERSION)
    if found <= 0:
        return 0
    rights = [
        sum(right for since, right in kind.items() if since <= found)
        for kind in (_FILES, _PORTS, _SCOPES)
    ]
    attributes = struct.pack("=3Q", *rights)
    # Fields that the version does not know must be absent.
    size = 24 if found >= min(_SCOPES) else 16 if found >= min(_PORTS) else 8
    ruleset = libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(size), 0)
    if ruleset < 0:
        raise OSError(ctypes.get_errno(), "landlock_create_ruleset")
    try:
        if libc.syscall(_RESTRICT_SELF, ruleset, 0):
            raise OSError(ctypes.get_errno(), "landlock_restrict_self")
    finally:
        os.close(ruleset)
    return found
