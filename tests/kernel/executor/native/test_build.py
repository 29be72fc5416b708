"""Compiling, finding and refusing the native kernels."""

import logging
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from symphony_kernel.executor.models.config import load_config
from symphony_kernel.executor.native.build import (
    FLAGS,
    SOURCES,
    built_library,
    compile_library,
)
from symphony_kernel.executor.native.library import load_library
from symphony_kernel.executor.native.network import NativeNetwork
from symphony_kernel.executor.reference.network import TorchNetwork
from symphony_kernel.executor.torch_executor import TorchExecutor
from symphony_kernel.platform.build_cache import LibraryUnavailable

from tests.support.executor.models import (
    ALL_LOGITS,
    ExecutorRig,
    load,
    make_checkpoint,
    make_row,
    random_tokens,
)
from tests.support.executor.native import native_library


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


@pytest.fixture
def no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that answers --version and fails at all else."""
    native_library()
    compiler = tmp_path / "broken-c++"
    compiler.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = --version ]; then echo broken 1.0; exit 0; fi\n'
        "echo 'kernels.cpp:1: fatal error: the disk is full' >&2\n"
        "exit 1\n"
    )
    compiler.chmod(0o700)
    monkeypatch.setenv("CXX", str(compiler))
    return compiler


def test_what_is_compiled_is_found_again(cache: Path) -> None:
    said: list[str] = []
    first = built_library(said.append)
    assert first.parent == cache
    assert said == []
    load_library()


@pytest.fixture
def copying_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that gives what the real one made, in no time."""
    native_library()
    made = built_library()
    compiler = tmp_path / "copying-c++"
    compiler.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = --version ]; then echo copying 1.0; exit 0; fi\n'
        "for last; do :; done\n"
        f'cp {made} "$last"\n'
    )
    compiler.chmod(0o700)
    monkeypatch.setenv("CXX", str(compiler))
    return compiler


@pytest.mark.parametrize("lost", ["half of it", "its digest", "all of it"])
def test_a_damaged_library_is_not_loaded_but_built_again(
    cache: Path, copying_compiler: Path, lost: str
) -> None:
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


def test_a_compiler_that_fails_is_named_with_its_message(cache: Path, no_compiler: Path) -> None:
    with pytest.raises(LibraryUnavailable, match=r"broken-c.*the disk is full"):
        built_library()
    assert [path.suffix for path in sorted(cache.iterdir())] == [".sha256", ".so"]


def test_a_compiler_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    native_library()
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(LibraryUnavailable, match=r"no C.. compiler is called no-such-compiler"):
        built_library()


def test_a_directory_that_others_may_write_to_holds_no_code(cache: Path) -> None:
    cache.chmod(0o777)
    with pytest.raises(LibraryUnavailable, match="writable by other users"):
        built_library()
    cache.chmod(0o700)


def test_the_cache_directory_is_made_for_its_user_alone(
    tmp_path: Path, no_compiler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYMPHONY_CACHE_DIR", str(tmp_path / "new"))
    with pytest.raises(LibraryUnavailable):
        built_library()
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700


def test_without_kernels_torch_computes_and_says_so_once(
    tmp_path: Path, no_compiler: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setenv("SYMPHONY_CACHE_DIR", str(tmp_path / "cache"))
    checkpoint = make_checkpoint(tmp_path / "model")
    with caplog.at_level(logging.WARNING):
        rig = load(checkpoint)
    assert isinstance(rig.executor.network, TorchNetwork)
    assert [r.message for r in caplog.records if "torch computes" in r.message] != []
    assert "the disk is full" in caplog.text
    assert_computes(rig)


def test_the_environment_switches_kernels_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYMPHONY_NATIVE", "0")
    rig = load(make_checkpoint(tmp_path / "model"))
    assert isinstance(rig.executor.network, TorchNetwork)
    assert_computes(rig)


def test_kernels_compute_where_they_compile(tmp_path: Path) -> None:
    native_library()
    checkpoint = make_checkpoint(tmp_path / "model")
    rig = load(checkpoint)
    assert isinstance(rig.executor.network, NativeNetwork)
    assert rig.executor.network.config == load_config(checkpoint.directory)
    assert_computes(rig)


def assert_computes(rig: ExecutorRig) -> None:
    [logits] = rig.logits([make_row(random_tokens(9), rig.table(9), options=ALL_LOGITS)])
    assert logits.shape[0] == 9
    assert abs(logits).max() > 0
    rig.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_sources_have_no_warnings(tmp_path: Path) -> None:
    native_library()
    compiler = os.environ.get("CXX", "c++")
    asked = [compiler, "-E", "-dM", "-x", "c++", os.devnull]
    named = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()
    if "#define __GNUC__ 12" not in named:
        pytest.skip(f"{compiler} is not gcc 12, and each compiler has warnings of its own")
    # gcc 12 finds that its own intrinsics use what they leave open on purpose.
    flags = ("-Werror", "-Wno-uninitialized")
    assert compile_library(compiler, tmp_path, flags).exists()
    assert "-Wall" in FLAGS
    assert list(SOURCES.glob("*.cpp"))


def test_compiling_ahead_says_where_the_library_is(cache: Path) -> None:
    command = [sys.executable, "-m", "symphony_kernel.executor.native"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"ready: {built_library()}" in done.stdout


def test_a_look_says_what_a_server_would_find(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_model_that_does_not_load_gives_everything_back(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "model")
    weights = checkpoint.directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(Exception, match="safetensors"):
        TorchExecutor.load(checkpoint.directory, pool_bytes=1 << 20)
