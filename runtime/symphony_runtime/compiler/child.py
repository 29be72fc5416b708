"""The child in which a program is compiled: `python -m symphony_runtime.compiler.child`.

Its arguments are its bounds (functions, seconds of processor time, bytes of memory, with commas
between them) and options; the module, or a source, is on stdin; one framed result goes to stdout.
It starts for each upload, so it imports little: asyncio alone takes a quarter of a start.
"""

import ctypes
import os
import resource
import signal
import struct
import sys
from dataclasses import asdict
from typing import Final

import msgpack
from symphony_kernel.platform.rlimits import lower_limit
from symphony_kernel.protocol.limits import (
    COMPILE_CPU_SECONDS_MAX,
    COMPILE_MEMORY_BYTES_MAX,
    PROGRAM_BYTES_MAX,
    RUN_MEMORY_BYTES_MAX,
)

from symphony_runtime.sandboxing.contain import contain
from symphony_runtime.sandboxing.seccomp import PR_SET_PDEATHSIG

LENGTH: Final = struct.Struct("<Q")  # of the result, before it
REQUIRED: Final = "--require-containment"
OWN: Final = "--own"  # the module ships with the server
SOURCE: Final = "--source"  # stdin is a `SourceJob`
_NUMBER = 99  # of its user, after the workers'
_INPUT_BYTES_MAX = 4 * PROGRAM_BYTES_MAX  # machine code is larger than its module
_LAYERS = ("user", "limits", "landlock", "seccomp")  # making a network namespace takes longer


def limit_process(
    cpu_seconds: int = COMPILE_CPU_SECONDS_MAX,
    memory_bytes: int = COMPILE_MEMORY_BYTES_MAX,
    file_bytes: int = 0,
) -> None:
    """Limit this process to what a compiler needs; it cannot be undone.

    `file_bytes`: of one file. A language module's memory begins as an image, a file without a name.
    """
    lower_limit(resource.RLIMIT_AS, memory_bytes)
    lower_limit(resource.RLIMIT_CORE, 0)
    lower_limit(resource.RLIMIT_FSIZE, file_bytes)
    lower_limit(resource.RLIMIT_NOFILE, 64)
    # The soft limit's signal tells why it died; the hard limit ends a process that ignores it.
    lower_limit(resource.RLIMIT_CPU, cpu_seconds, cpu_seconds + 1)


def end_with_parent(libc: ctypes.CDLL, parent: int) -> None:
    """Let the system kill this process when its parent ends.

    It has a process group of its own, which a kill of the parent's group does not reach. Call it
    after `contain`, since a process that changes its user loses the setting. On other systems than
    Linux its limits end it.
    """
    if sys.platform == "linux":
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the gateway has ended")


def main() -> None:
    """Read a module or a source from stdin, and write the framed outcome to stdout."""
    os.setpgid(0, 0)  # from now on it may be stopped (`cpu_reporting`)
    functions, cpu_seconds, memory_bytes = map(int, sys.argv[1].split(","))
    limit_process(cpu_seconds, memory_bytes, RUN_MEMORY_BYTES_MAX if SOURCE in sys.argv else 0)
    parent, libc = os.getppid(), ctypes.CDLL(None)
    # A library's output must not get between the frame's bytes.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    data = sys.stdin.buffer.read(_INPUT_BYTES_MAX + 1)
    # Only the child needs wasmtime; the gateway imports this module too.
    from symphony_runtime.abi import allowed_imports
    from symphony_runtime.compiler.source_check import check_source
    from symphony_runtime.compiler.validation import check_and_compile

    allowed_imports()  # it reads a file, which is not possible later
    contain(_NUMBER, layers=_LAYERS, required=REQUIRED in sys.argv)
    end_with_parent(libc, parent)
    if SOURCE in sys.argv:
        outcome = check_source(*msgpack.unpackb(data))
    else:
        outcome = check_and_compile(data, functions, own=OWN in sys.argv)
    body: bytes = msgpack.packb(asdict(outcome), use_bin_type=True)
    out.write(LENGTH.pack(len(body)) + body)
    out.close()


if __name__ == "__main__":
    main()
