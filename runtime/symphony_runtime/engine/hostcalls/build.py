"""Compiles the crossing with the system's C compiler, once for each machine and Python."""

import tempfile
from pathlib import Path

from symphony_kernel.platform.build_cache import put
from symphony_kernel.platform.toolchain import (
    NoToolError,
    SourceError,
    find_compiler,
    python_headers,
    remove_others,
    run,
)

from symphony_runtime.engine.hostcalls.library import (
    FLAGS,
    SOURCE,
    HostCallsUnavailable,
    library_path,
)

_COMPILE_SECONDS_MAX = 120


def built_library() -> Path:
    """Return the path of the library, compiling it when it is not there.

    Raises:
        CrossingUnavailable: no compiler or no headers of Python, or it fails on our source.
    """
    target, there = library_path()
    if there:
        return target
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="build-") as scratch:
        made = Path(scratch) / "crossing.so"
        try:
            command = find_compiler(), *FLAGS, *python_headers(), str(SOURCE), "-o", str(made)
            run(*command, what="the crossing", seconds_max=_COMPILE_SECONDS_MAX)
        except (NoToolError, SourceError) as error:
            raise HostCallsUnavailable(str(error)) from error
        put(made, target)
    remove_others(target, "crossing-*.so")
    return target
