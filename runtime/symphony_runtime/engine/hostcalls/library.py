"""Where the compiled crossing of these sources belongs, and whether it is there."""

import os
import platform
import sys
from pathlib import Path

from symphony_kernel.platform.build_cache import NoCacheError, cache_directory, is_whole, name_of

SOURCE = Path(__file__).with_name("crossing.c")
FLAGS = (
    "-std=c11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-fstack-protector-strong",
    "-Wall", "-Wextra", "-Wno-cast-function-type",
)  # fmt: skip


class HostCallsUnavailable(Exception):  # noqa: N818 - a state of the machine more than an error
    """Calls cross through ctypes, for the reason in the message."""


def library_path() -> tuple[Path, bool]:
    """Return where the library of this source belongs, and whether it is there.

    Raises:
        CrossingUnavailable: SYMPHONY_CROSSING=0 asks for none, this is no Linux (elsewhere C and
            Python read different clocks), or there is no place for one.
    """
    if os.environ.get("SYMPHONY_CROSSING") == "0":
        raise HostCallsUnavailable("SYMPHONY_CROSSING=0 is set")
    if sys.platform != "linux":
        raise HostCallsUnavailable("it is for Linux alone")
    try:
        parts = sys.version, platform.machine(), " ".join(FLAGS), SOURCE.read_text("utf-8")
        target = cache_directory() / f"crossing-{name_of(*(part.encode() for part in parts))}.so"
    except (NoCacheError, OSError) as error:
        raise HostCallsUnavailable(str(error)) from error
    return target, is_whole(target)
