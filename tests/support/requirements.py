"""What tests need of a machine: without it they skip, or fail where `SYMPHONY_REQUIRE` names it.

A skip is silent: a machine without a compiler is green and has tested nothing of what is compiled.
So each test that skips for its machine's sake names here what it lacks, and nothing else calls
`pytest.skip` (`tests/test_requirements.py`). `tests/conftest.py` reads the switch.
"""

import functools
import importlib
import importlib.util
import os
from typing import NoReturn

import pytest

SWITCH = "SYMPHONY_REQUIRE"
MARK = "requires"

NEEDS = {
    "bf16": "a processor that multiplies bfloat16",
    "cc": "a C compiler",
    "cgroup": "the right to make a cgroup with a limit of memory",
    "chromium": "Chromium",
    "clang": "clang and wasm-ld, which compile C to WebAssembly",
    "claude-code": "Claude Code, as npm installs it into build/clients",
    "codex": "Codex, which `make test` installs where it has a package",
    "compiled": "a machine that compiles the kernel's modules with mypyc",
    "console": "what bundles the console, which `make console` installs",
    "containment": "every layer that contains a worker: seccomp, Landlock, namespaces, limits",
    "cores": "two processors or more",
    "curl": "the program curl",
    "descriptors": "a thousand connections in one process",
    "flashinfer": "FlashInfer",
    "gcc12": "gcc 12, whose warnings the native kernels are free of",
    "git": "a checkout whose files git lists",
    "gpu": "an NVIDIA GPU",
    "helm": "Helm, which `make build/deploy-tools` fetches",
    "linux": "Linux with /proc, timers as files, pidfds and SO_PEERCRED",
    "mount": "the right to mount a file system",
    "native": "a machine that compiles and runs the native kernels",
    "no-gpu": "a machine without an NVIDIA GPU",
    "otlp": "OpenTelemetry's SDK and exporter, of the extra `otlp`",
    "packages": "what pip installs from, and room for PyTorch",
    "plot": "matplotlib",
    "postgresql": "a PostgreSQL that runs here: the wheel's or the system's",
    "promtool": "promtool, which `make build/deploy-tools` fetches on Debian",
    "quiet": "times of a machine that is not too busy to measure",
    "root": "root",
    "rust": "Rust with the target wasm32-unknown-unknown",
    "rust-pinned": "the compiler that built the shipped program",
    "rustfmt": "Rust's formatter",
    "serde": "the crates of serde in Debian's folder",
    "systemd": "systemd-analyze",
    "triton": "Triton, whose interpreter runs the GPU's kernels on a CPU",
    "user": "a user other than root",
    "zig": "Zig, on the path or as the package ziglang",
}


@functools.cache
def required() -> frozenset[str]:
    """Return what the switch names.

    Raises:
        pytest.UsageError: It names something that no test asks for.
    """
    names = frozenset(name.strip() for name in os.environ.get(SWITCH, "").split(",")) - {""}
    if unknown := sorted(names - NEEDS.keys()):
        raise pytest.UsageError(
            f"{SWITCH} names {', '.join(unknown)}; there are {', '.join(sorted(NEEDS))}"
        )
    return names


def lacking(need: str, reason: str) -> NoReturn:
    """Skip the test or module that is running, or fail it where the switch names `need`."""
    words = f"{reason} (needs {need}: {NEEDS[need]})"
    if need in required():
        pytest.fail(f"{SWITCH} names {need}, and the test would skip: {words}", pytrace=False)
    pytest.skip(words, allow_module_level=True)


def requires(need: str, there: bool, reason: str) -> pytest.MarkDecorator:
    """Return a mark for tests that need what is there, or not."""
    assert need in NEEDS, need
    return getattr(pytest.mark, MARK)(need, there, reason)  # type: ignore[no-any-return]


def need_module(need: str, module: str) -> None:
    """Skip or fail a test that needs a module which is not installed."""
    if importlib.util.find_spec(module) is None:
        lacking(need, f"{module} is not installed")


def check_marks(item: pytest.Item) -> None:
    """Skip or fail a test whose marks say that it lacks something."""
    for mark in item.iter_markers(MARK):
        need, there, reason = mark.args
        if not there:
            lacking(need, reason)
