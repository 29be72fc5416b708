"""Compiles the native kernels with the system's C++ compiler, once a machine.

The library lies in a directory of the user (`SYMPHONY_CACHE_DIR`, else the XDG cache directory).
Its name follows from sources, flags, compiler and processor. Its digest lies next to it, so that a
truncated file is built again and not loaded.
"""

import logging
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from symphony_kernel.platform.build_cache import (
    NoCacheError,
    cache_directory,
    is_whole,
    name_of,
    put,
)
from symphony_kernel.platform.cpu_count import processes_at_once
from symphony_kernel.platform.toolchain import NoToolError, SourceError, find_compiler, run

_log = logging.getLogger(__name__)

SOURCES = Path(__file__).parent / "source"
FLAGS = (
    "-std=c++17", "-O3", "-march=native", "-fPIC", "-fno-math-errno", "-fno-trapping-math",
    # The code says where a product and a sum are fused, so that a number has the same bits in each
    # instance of a template.
    "-ffp-contract=off", "-fvisibility=hidden", "-Wall", "-Wextra",
    "-Wno-maybe-uninitialized",  # gcc 12 suspects its own intrinsics
)  # fmt: skip
_COMPILE_SECONDS_MAX = 300
_COMPILER_BYTES = 512 << 20  # for the largest source: gcc 12 took 300 MiB
_MACHINES = ("x86_64", "amd64")
_FLAGS_NEEDED = frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl", "fma"})


class NativeUnavailable(Exception):  # noqa: N818 - a state of the machine more than an error
    """This machine has no native kernels, for the reason in the message."""


def built_library(say: Callable[[str], None] = _log.info) -> Path:
    """Return the path of the compiled library; compile it if it is missing.

    Raises:
        NativeUnavailable: the processor is not supported, there is no compiler, it fails on our
            sources, or SYMPHONY_NATIVE=0 disables the kernels.
    """
    target, there = library_path()
    if there:
        return target
    compiler, directory = _compiler(), target.parent
    say(f"compiling the native kernels with {compiler} (once, some seconds)")
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=directory, prefix="build-") as scratch:
        made = compile_library(compiler, Path(scratch))
        put(made, target)
    say(f"compiled the native kernels in {time.perf_counter() - started:.1f} s: {target}")
    return target


def library_path() -> tuple[Path, bool]:
    """Return this machine's library path, and whether it exists; NativeUnavailable."""
    if os.environ.get("SYMPHONY_NATIVE") == "0":
        raise NativeUnavailable("SYMPHONY_NATIVE=0 is set")
    processor = _processor()
    target = _directory() / f"kernels-{_key(_compiler(), processor)}.so"
    return target, is_whole(target)


def compile_library(compiler: str, scratch: Path, flags: tuple[str, ...] = ()) -> Path:
    """Compile a library in `scratch` and return its path; NativeUnavailable."""
    sources = sorted(SOURCES.glob("*.cpp"))
    objects = [scratch / f"{source.stem}.o" for source in sources]

    def compile_one(source: Path, made: Path) -> None:
        _run(compiler, *FLAGS, *flags, "-c", str(source), "-o", str(made))

    with ThreadPoolExecutor(processes_at_once(_COMPILER_BYTES)) as pool:
        list(pool.map(compile_one, sources, objects))
    library = scratch / "kernels.so"
    _run(compiler, "-shared", "-pthread", *map(str, objects), "-o", str(library))
    return library


def _run(*command: str) -> None:
    try:
        run(*command, what="the native kernels", seconds_max=_COMPILE_SECONDS_MAX)
    except (NoToolError, SourceError) as error:
        raise NativeUnavailable(str(error)) from error


def _processor() -> str:
    """Return the processor's name and features."""
    if platform.system() != "Linux" or platform.machine().lower() not in _MACHINES:
        raise NativeUnavailable(f"no native kernels for {platform.system()} {platform.machine()}")
    told: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        told.setdefault(name.strip(), value.strip())
    missing = _FLAGS_NEEDED - set(told.get("flags", "").split())
    if missing:
        raise NativeUnavailable(f"this processor lacks {', '.join(sorted(missing))}")
    return "\n".join(told.get(name, "") for name in ("cpu family", "model", "model name", "flags"))


def _compiler() -> str:
    try:
        return find_compiler("CXX")
    except NoToolError as error:
        raise NativeUnavailable(str(error)) from error


def _key(compiler: str, processor: str) -> str:
    try:
        version = subprocess.run(  # noqa: S603
            [compiler, "--version"], check=True, capture_output=True, timeout=30
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise NativeUnavailable(f"{compiler} does not run: {error}") from error
    parts = [compiler.encode(), version, " ".join(FLAGS).encode(), processor.encode()]
    for path in sorted((*SOURCES.glob("*.cpp"), *SOURCES.glob("*.h"))):
        parts += [path.name.encode(), path.read_bytes()]
    return name_of(*parts)


def _directory() -> Path:
    """Return the directory of compiled libraries, which only the user can write."""
    try:
        return cache_directory()
    except NoCacheError as error:
        raise NativeUnavailable(str(error)) from error
