"""Compiles the native kernels with the system's C++ compiler, once a machine.

The library lies in the user's cache (`build_cache`). Its name follows from sources, flags, compiler
and processor. A wheel brings one for each level of processors (`LEVELS`), which needs no compiler.
"""

import logging
import os
import platform
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from symphony_kernel.platform import toolchain
from symphony_kernel.platform.build_cache import (
    SHIPPED,
    LibraryUnavailable,
    cache_directory,
    is_whole,
    name_of,
)

_log = logging.getLogger(__name__)

SOURCES = Path(__file__).parent / "source"
FLAGS = (
    "-std=c++17", "-O3", "-fPIC", "-fno-math-errno", "-fno-trapping-math",
    # The code says where a product and a sum are fused, so that a number has the same bits in each
    # instance of a template.
    "-ffp-contract=off", "-fvisibility=hidden", "-Wall", "-Wextra",
    "-Wno-maybe-uninitialized",  # gcc 12 suspects its own intrinsics
)  # fmt: skip
_WHAT = "the native kernels"
_COMPILE_SECONDS_MAX = 300
_MACHINES = ("x86_64", "amd64")
_NATIVE = ("-march=native",)
# What x86-64-v3 and v4 allow a compiler to use, by Linux' names (psABI of x86-64, table 3.1). The
# first is what the sources need.
_V3 = frozenset({"avx2", "fma", "f16c", "bmi1", "bmi2", "abm", "movbe"})
_AVX512 = frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl"})
_V4 = _V3 | _AVX512 | {"avx512cd"}


class Level(NamedTuple):
    """Processors that can use one library: the compiler's flags, and features that they have."""

    flags: tuple[str, ...]
    needed: frozenset[str]


# The first that fits is used. The sources use no other feature that has a flag of its own.
LEVELS = (
    Level(
        ("-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16"),
        _V4 | {"avx512_vnni", "avx512_bf16"},
    ),
    Level(("-march=x86-64-v4", "-mavx512vnni"), _V4 | {"avx512_vnni"}),
    Level(("-march=x86-64-v4",), _V4),
    Level(("-march=x86-64-v3",), _V3),
)


def built_library(say: Callable[[str], None] = _log.info) -> Path:
    """Return the path of the compiled library; compile it if it is missing.

    Raises LibraryUnavailable: the processor is not supported, there is no compiler, it fails on our
    sources, or SYMPHONY_NATIVE=0 disables the kernels.
    """
    target, there = library_path()
    if there:
        return target
    compiler = toolchain.find_compiler("CXX")
    make = partial(compile_library, compiler)
    return toolchain.build(target, make, say, what=_WHAT, how=f"{compiler} (once, some seconds)")


def library_path() -> tuple[Path, bool]:
    """Return this machine's library path, and whether it exists; LibraryUnavailable."""
    if os.environ.get("SYMPHONY_NATIVE") == "0":
        raise LibraryUnavailable("SYMPHONY_NATIVE=0 is set")
    processor, features = _processor()
    for level in LEVELS:
        shipped = SHIPPED / shipped_name(level)
        if level.needed <= features and is_whole(shipped):
            return shipped, True
    target = cache_directory() / f"kernels-{_key(processor)}.so"
    return target, is_whole(target)


def shipped_name(level: Level) -> str:
    """Return the file name of a level's library of these sources."""
    return f"kernels-{name_of(*_inputs(level.flags))}.so"


def compile_library(
    compiler: str,
    scratch: Path,
    flags: tuple[str, ...] = (),
    machine: tuple[str, ...] = _NATIVE,
) -> Path:
    """Compile a library in `scratch` for a machine; return its path; LibraryUnavailable."""
    return toolchain.compile_library(
        compiler, sorted(SOURCES.glob("*.cpp")), scratch,
        flags=(*FLAGS, *machine, *flags), link_flags=("-pthread",),
        what=_WHAT, seconds_max=_COMPILE_SECONDS_MAX,
    )  # fmt: skip


def emulates_bf16() -> bool:
    """Return whether bfloat16 is multiplied by software here, far more slowly than float32.

    So does torch on x86-64 without AVX-512: oneDNN has no such products for it (measured: a prompt
    takes four times as long). The kernels widen it instead, where they are to be had. Of processors
    that are not known it is not said.
    """
    if not _is_x86_64() or _features(_read_processor()) >= _AVX512:
        return False
    try:
        built_library()
    except LibraryUnavailable:
        return True
    return False


def _processor() -> tuple[str, frozenset[str]]:
    """Return the processor's name with its features, and the features."""
    if not _is_x86_64():
        raise LibraryUnavailable(f"no native kernels for {platform.system()} {platform.machine()}")
    told = _read_processor()
    features = _features(told)
    missing = _V3 - features
    if missing:
        raise LibraryUnavailable(f"this processor lacks {', '.join(sorted(missing))}")
    names = ("cpu family", "model", "model name", "flags")
    return "\n".join(told.get(name, "") for name in names), features


def _is_x86_64() -> bool:
    return platform.system() == "Linux" and platform.machine().lower() in _MACHINES


def _read_processor() -> dict[str, str]:
    """Return what Linux tells of the first processor, by its names."""
    told: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        told.setdefault(name.strip(), value.strip())
    return told


def _features(told: dict[str, str]) -> frozenset[str]:
    return frozenset(told.get("flags", "").split())


def _key(processor: str) -> str:
    compiler = toolchain.find_compiler("CXX")
    try:
        version = subprocess.run(  # noqa: S603
            [compiler, "--version"], check=True, capture_output=True, timeout=30
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise LibraryUnavailable(f"{compiler} does not run: {error}") from error
    return name_of(compiler.encode(), version, processor.encode(), *_inputs(_NATIVE))


def _inputs(machine: tuple[str, ...]) -> list[bytes]:
    """Return what a library is made of: flags, and the sources with their names."""
    parts = [" ".join((*FLAGS, *machine)).encode()]
    for path in sorted((*SOURCES.glob("*.cpp"), *SOURCES.glob("*.h"))):
        parts += [path.name.encode(), path.read_bytes()]
    return parts
