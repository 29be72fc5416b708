"""The compiled crossing by itself: where it belongs, and what it refuses."""

from pathlib import Path

import pytest
from symphony_runtime.abi import Signature
from symphony_runtime.engine.fiber import Fiber, FiberHost, Import, new_engine
from symphony_runtime.engine.hostcalls import library
from symphony_runtime.engine.hostcalls.__main__ import main
from symphony_runtime.engine.hostcalls.build import built_library
from symphony_runtime.engine.hostcalls.compiled_calls import CompiledHostCalls, compiled_crossing
from symphony_runtime.engine.hostcalls.ctypes_calls import CALLED, PREEMPTED
from symphony_runtime.engine.hostcalls.library import HostCallsUnavailable, library_path
from wasmtime import Module, wat2wasm

from tests.support.worker import hostcalls

IMPORTS = [Import("lip", "call", Signature(("i32",), ("i32",)))]
GUEST = """(module (import "lip" "call" (func $call (param i32) (result i32)))
  (memory (export "memory") 1)
  (func (export "lip_main") (result i32) (call $call (call $call (i32.const 1)))))"""


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "cache"
    directory.mkdir(mode=0o700)
    monkeypatch.setenv("SYMPHONY_CACHE_DIR", str(directory))
    monkeypatch.delenv("SYMPHONY_CROSSING", raising=False)
    return directory


def called() -> tuple[FiberHost, Fiber]:
    """A guest whose first call is pending."""
    host = FiberHost(IMPORTS, hostcalls.compiled())
    artefact = bytes(Module(new_engine(), wat2wasm(GUEST)).serialize())
    guest = Fiber(host, host.load(artefact), "lip_main", 1 << 20)
    while guest.poll() != CALLED:
        pass
    return host, guest


def test_nobody_need_have_it(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not library_path()[1]
    with pytest.raises(HostCallsUnavailable, match="not compiled"):
        compiled_crossing()
    assert main(check=True) == 1
    monkeypatch.setenv("SYMPHONY_CROSSING", "0")
    with pytest.raises(HostCallsUnavailable, match="SYMPHONY_CROSSING=0"):
        compiled_crossing()
    assert main(check=False) == 0
    assert not list(empty.iterdir())


@pytest.mark.usefixtures("empty")
def test_what_cannot_be_compiled_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(HostCallsUnavailable):
        built_library()
    assert main(check=False) == 0
    assert "through ctypes" in capsys.readouterr().out
    monkeypatch.delenv("CC")
    broken = tmp_path / "crossing.c"
    broken.write_text("int broken(\n")
    before = library_path()[0]
    monkeypatch.setattr(library, "SOURCE", broken)
    assert library_path()[0] != before


def test_what_is_no_library_is_refused(tmp_path: Path) -> None:
    made = tmp_path / "crossing.so"
    made.write_bytes(b"no library")
    with pytest.raises(HostCallsUnavailable, match="cannot be loaded"):
        CompiledHostCalls(made)


def test_only_a_pending_call_takes_a_result() -> None:
    host, guest = called()
    guest.resume(2)
    while guest.poll() != CALLED:
        pass
    assert guest.args == (2,)
    guest.resume(5)
    assert guest.poll() != CALLED
    with pytest.raises(RuntimeError, match="no call is pending"):
        guest.resume(1)
    with pytest.raises(RuntimeError, match="no call is pending"):
        guest.resume_void()
    guest.close()
    host.close()


def test_a_guest_that_waits_stays_where_it_is_and_ends_there() -> None:
    host, guest = called()
    assert [guest.poll() for _ in range(3)] == [PREEMPTED] * 3
    assert guest.close() == 65_536
    with pytest.raises(RuntimeError, match="no call is pending"):
        guest.resume(1)
    with pytest.raises(RuntimeError, match="nothing to poll"):
        guest.poll()
    assert (guest.base, guest.size) == (0, 0)
    host.close()


def test_arguments_of_another_kind_are_refused() -> None:
    host, guest = called()
    for wrong in (
        lambda: guest.read(-1, 4),
        lambda: guest.read(0, -1),
        lambda: guest.write(-1, b""),
        lambda: guest.check(1 << 64, 0),
    ):
        with pytest.raises(OverflowError):
            wrong()
    guest.close()
    host.close()
