"""Where compiled modules are kept, and what a kernel says without them."""

import importlib
import inspect
import pkgutil
import shutil
import sys
from pathlib import Path

import pytest
import symphony_kernel
from symphony_kernel.compiled import build, library
from symphony_kernel.compiled.__main__ import main
from symphony_kernel.compiled.library import compiled_modules, library_path
from symphony_kernel.compiled.loading import prefer_compiled
from symphony_kernel.platform import build_cache
from symphony_kernel.platform.toolchain import CompileError, find_compiler
from symphony_kernel.scheduler.scheduler import Scheduler


@pytest.fixture(autouse=True)
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "cache"
    directory.mkdir(mode=0o700)
    monkeypatch.setenv("SYMPHONY_CACHE_DIR", str(directory))
    monkeypatch.delenv("SYMPHONY_COMPILED", raising=False)
    return directory


def what_runs() -> str:
    """Return what a kernel's process would say; this process must not change."""
    before = list(sys.meta_path)
    said = prefer_compiled()
    assert sys.meta_path == before
    return said


def test_process_of_tests_runs_interpreted_modules() -> None:
    assert not hasattr(Scheduler, "__mypyc_attrs__")


def test_changed_source_has_another_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = tmp_path / "symphony_kernel"
    shutil.copytree(library.SOURCES, copied, ignore=shutil.ignore_patterns("weights", "*.pyc"))
    first, there = library_path()
    assert not there
    monkeypatch.setattr(library, "SOURCES", copied)
    assert library_path()[0] == first
    with (copied / "protocol/errno.py").open("a") as source:
        source.write("# another line\n")
    assert library_path()[0] != first


def test_kernel_without_a_library_is_interpreted(
    empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert what_runs().startswith("interpreted: not compiled yet")
    monkeypatch.setenv("SYMPHONY_COMPILED", "0")
    assert what_runs() == "interpreted: SYMPHONY_COMPILED=0 is set"
    monkeypatch.delenv("SYMPHONY_COMPILED")
    empty.chmod(0o777)
    assert "writable by other users" in what_runs()


def test_damaged_library_is_not_used(empty: Path) -> None:
    target, _ = library_path()
    target.write_bytes(b"half of a library")
    assert what_runs().startswith("interpreted: not compiled yet")  # without its digest
    made = empty / "made"
    made.write_bytes(b"no library at all")
    build_cache.put(made, target)
    assert library_path() == (target, True)
    assert str(target) in what_runs()


def test_machine_without_a_compiler_is_told_why(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(check=True) == 1
    assert "not compiled" in capsys.readouterr().out
    monkeypatch.setenv("CC", "no-such-compiler")
    assert main(check=False) == 0
    assert "no C compiler is called no-such-compiler" in capsys.readouterr().out


def test_compiler_that_fails_is_quoted(tmp_path: Path) -> None:
    source = tmp_path / "one.c"
    source.write_text("int one(void) { return two; }\n")
    with pytest.raises(CompileError, match=r"error: .two. undeclared"):
        build._compile(find_compiler(), [source], [], tmp_path)


def test_interpreted_class_inherits_from_no_compiled_one() -> None:
    compiled, wrong = compiled_modules(), []
    assert "symphony_kernel.scheduler.scheduler" in compiled
    for found in pkgutil.walk_packages(symphony_kernel.__path__, "symphony_kernel."):
        if found.name in compiled or found.name.endswith("__main__") or ".executor" in found.name:
            continue
        for _, cls in inspect.getmembers(importlib.import_module(found.name), inspect.isclass):
            bases = [base for base in cls.__mro__ if base.__module__ in compiled]
            if cls.__module__ == found.name and bases:
                wrong.append((cls, bases))
    assert wrong == []
