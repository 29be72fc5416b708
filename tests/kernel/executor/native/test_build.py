"""Compiling, finding and refusing the native kernels."""

import logging
import os
import platform
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from symphony_kernel.executor.models.config import load_config
from symphony_kernel.executor.native.build import (
    FLAGS,
    SOURCES,
    built_library,
    compile_library,
    emulates_bf16,
)
from symphony_kernel.executor.native.library import load_library
from symphony_kernel.executor.native.network import NativeNetwork
from symphony_kernel.executor.reference.network import TorchNetwork
from symphony_kernel.platform.build_cache import LibraryUnavailable

from tests.support.executor.models import Checkpoint, load, make_row, random_tokens
from tests.support.executor.native import native_library
from tests.support.requirements import lacking


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache directory of the test's own, with what is compiled for this machine already."""
    native_library()
    made = built_library()
    directory = tmp_path / "cache"
    directory.mkdir(mode=0o700)
    for path in (made, made.with_suffix(".sha256")):
        shutil.copy(path, directory)
    monkeypatch.setenv("SYMPHONY_CACHE_DIR", str(directory))
    return directory


def write_compiler(path: Path, *lines: str) -> None:
    """Write a compiler that answers --version and does `lines` for all else."""
    version = f'if [ "$1" = --version ]; then echo {path.name} 1.0; exit 0; fi'
    path.write_text("\n".join(("#!/bin/sh", version, *lines, "")))
    path.chmod(0o700)


@pytest.fixture
def no_compiler(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that always fails."""
    compiler = tmp_path / "broken-c++"
    write_compiler(compiler, "echo 'kernels.cpp:1: fatal error: the disk is full' >&2", "exit 1")
    monkeypatch.setenv("CXX", str(compiler))


@pytest.fixture
def copying_compiler(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that copies the library that the real one has made."""
    compiler = tmp_path / "copying-c++"
    write_compiler(compiler, "for last; do :; done", f'cp {built_library()} "$last"')
    monkeypatch.setenv("CXX", str(compiler))


def test_compiled_library_is_found_again(cache: Path) -> None:
    said: list[str] = []
    assert built_library(said.append).parent == cache
    assert said == []
    load_library()


@pytest.mark.usefixtures("copying_compiler")
@pytest.mark.parametrize("lost", ["half of it", "its digest", "all of it"])
def test_damaged_library_is_built_again(cache: Path, lost: str) -> None:
    path = built_library()
    whole = path.read_bytes()
    if lost == "half of it":
        path.write_bytes(whole[: len(whole) // 2])
    elif lost == "its digest":
        path.with_suffix(".sha256").unlink()
    else:
        path.unlink()
    said: list[str] = []
    assert built_library(said.append) == path
    assert path.read_bytes() == whole
    assert any("compiling" in line for line in said)
    assert [p.name for p in cache.iterdir() if p.name.startswith("build-")] == []
    built_library(said.append)
    assert len(said) == 2  # and then it is there


@pytest.mark.usefixtures("no_compiler")
def test_compiler_that_fails_is_named_with_its_message(cache: Path) -> None:
    with pytest.raises(LibraryUnavailable, match=r"broken-c.*the disk is full"):
        built_library()
    assert [path.suffix for path in sorted(cache.iterdir())] == [".sha256", ".so"]


def test_compiler_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    native_library()
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(LibraryUnavailable, match=r"no C.. compiler is called no-such-compiler"):
        built_library()


def test_cache_that_others_may_write_to_is_refused(cache: Path) -> None:
    cache.chmod(0o777)
    with pytest.raises(LibraryUnavailable, match="writable by other users"):
        built_library()
    cache.chmod(0o700)


@pytest.mark.usefixtures("no_compiler")
def test_cache_that_is_new_is_for_its_user_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYMPHONY_CACHE_DIR", str(tmp_path / "new"))
    with pytest.raises(LibraryUnavailable):
        built_library()
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700


@pytest.mark.usefixtures("no_compiler")
def test_model_without_kernels_computes_in_torch_and_warns(
    llama: Checkpoint, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        check_network(llama, TorchNetwork)
    assert "torch computes" in caplog.text
    assert "the disk is full" in caplog.text


def test_model_with_kernels_computes_natively_unless_disabled(
    llama: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    native_library()
    check_network(llama, NativeNetwork)
    monkeypatch.setenv("SYMPHONY_NATIVE", "0")
    check_network(llama, TorchNetwork)


def check_network(checkpoint: Checkpoint, kind: type) -> None:
    """Check that a model is loaded into this kind of network, and computes."""
    rig = load(checkpoint)
    assert isinstance(rig.executor.network, kind)
    if isinstance(rig.executor.network, NativeNetwork):
        assert rig.executor.network.config == load_config(checkpoint.directory)
    [logits] = rig.logits([make_row(random_tokens(9), rig.table(9))])
    assert logits.shape[0] == 9
    assert abs(logits).max() > 0
    rig.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_sources_compile_without_warnings(tmp_path: Path) -> None:
    native_library()
    compiler = os.environ.get("CXX", "c++")
    command = [compiler, "-E", "-dM", "-x", "c++", os.devnull]
    macros = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    if "#define __GNUC__ 12" not in macros:
        lacking("gcc12", f"{compiler} is not gcc 12, and each compiler has warnings of its own")
    # gcc 12 finds that its own intrinsics use what they leave open on purpose.
    flags = ("-Werror", "-Wno-uninitialized")
    assert compile_library(compiler, tmp_path, flags).exists()
    assert "-Wall" in FLAGS
    assert list(SOURCES.glob("*.cpp"))


def test_compiling_ahead_prints_the_path_of_the_library(cache: Path) -> None:
    command = [sys.executable, "-m", "symphony_kernel.executor.native"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"ready: {built_library()}" in done.stdout


def test_check_says_what_a_server_would_find(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-m", "symphony_kernel.executor.native", "--check"]

    def look() -> tuple[int, str]:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    assert look() == (0, f"{built_library()}\n")
    built_library().unlink()
    assert look() == (0, "not compiled yet: the first start of a server does it\n")
    assert list(cache.glob("*.so")) == []
    monkeypatch.setenv("SYMPHONY_NATIVE", "0")
    assert look() == (1, "SYMPHONY_NATIVE=0 is set; torch computes, several times slower\n")


def test_bf16_is_emulated_without_kernels_where_onednn_has_no_products_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SYMPHONY_NATIVE", "0")
    known = platform.machine() == "x86_64"
    assert emulates_bf16() is (known and not torch.ops.mkldnn._is_mkldnn_bf16_supported())


def test_bf16_is_not_emulated_with_kernels() -> None:
    native_library()
    assert not emulates_bf16()
