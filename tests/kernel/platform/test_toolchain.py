"""Compilers: how they are found and run, and which of their libraries are kept."""

from pathlib import Path

import pytest
from symphony_kernel.platform import build_cache
from symphony_kernel.platform.build_cache import LibraryUnavailable
from symphony_kernel.platform.toolchain import (
    CompileError,
    find_compiler,
    python_headers,
    remove_others,
    run,
)


def test_old_libraries_of_a_kind_are_removed(tmp_path: Path) -> None:
    for number in range(9):
        made = tmp_path / "made"
        made.write_bytes(b"x")
        build_cache.put(made, tmp_path / f"modules-{number}.so")
    (tmp_path / "kernels-1.so").write_bytes(b"x")
    remove_others(tmp_path / "modules-8.so", "modules-*.so")
    left = {path.name for path in tmp_path.iterdir()}
    assert len(left) == 9
    assert {"modules-8.so", "modules-8.sha256", "kernels-1.so"} <= left


def test_library_that_another_process_removes_is_skipped(tmp_path: Path) -> None:
    for number in range(9):
        (tmp_path / f"modules-{number}.so").write_bytes(b"x")
    gone = tmp_path / "modules-gone.so"
    gone.symlink_to(tmp_path / "nowhere")  # is listed, and its target is missing
    remove_others(tmp_path / "modules-8.so", "modules-*.so")
    left = {path.name for path in tmp_path.iterdir()}
    assert len(left) == 4
    assert gone.name not in left


@pytest.mark.parametrize(("variable", "language"), [("CC", "C"), ("CXX", r"C\+\+")])
def test_compiler_that_is_not_there_is_named(
    variable: str, language: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "no-such-compiler")
    with pytest.raises(
        LibraryUnavailable, match=f"no {language} compiler is called no-such-compiler"
    ):
        find_compiler(variable)
    monkeypatch.delenv(variable)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LibraryUnavailable, match=f"there is no {language} compiler"):
        find_compiler(variable)


def test_headers_that_are_not_there_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = {"include": str(tmp_path), "platinclude": str(tmp_path)}
    monkeypatch.setattr("sysconfig.get_paths", lambda: nowhere)
    with pytest.raises(LibraryUnavailable, match="headers are not installed"):
        python_headers()


def test_compiler_error_has_its_message(tmp_path: Path) -> None:
    words = "echo hm >&2; echo 'one.c:1: error: no' >&2; exit 1"
    with pytest.raises(CompileError, match=r"sh failed on all: one.c:1: error: no"):
        run("sh", "-c", words, what="all", seconds_max=20)
    with pytest.raises(LibraryUnavailable, match="cannot compile all"):
        run(str(tmp_path / "nowhere"), what="all", seconds_max=20)
