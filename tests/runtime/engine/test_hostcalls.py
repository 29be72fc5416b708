"""The extension for host calls by itself: how it is found, and what it refuses."""

import importlib
import sys

import pytest
import symphony_runtime.engine
from symphony_runtime.abi import Signature
from symphony_runtime.engine import _hostcalls
from symphony_runtime.engine.fiber import (
    CALLED,
    PREEMPTED,
    Fiber,
    FiberHost,
    new_engine,
)
from wasmtime import Module, wat2wasm

IMPORTS = {("lip", "call"): Signature(("i32",), ("i32",))}
GUEST = """(module (import "lip" "call" (func $call (param i32) (result i32)))
  (memory (export "memory") 1)
  (func (export "lip_main") (result i32) (call $call (call $call (i32.const 1)))))"""


def called() -> tuple[FiberHost, Fiber]:
    """A guest whose first call is pending."""
    host = FiberHost(IMPORTS)
    artefact = bytes(Module(new_engine(), wat2wasm(GUEST)).serialize())
    guest = Fiber(host, host.load(artefact), "lip_main", 1 << 20)
    while guest.poll() != CALLED:
        pass
    return host, guest


def test_hostcalls_missing_extension_says_how_to_build_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "symphony_runtime.engine._hostcalls", None)
    monkeypatch.delattr(symphony_runtime.engine, "_hostcalls")
    monkeypatch.delitem(sys.modules, "symphony_runtime.engine.fiber")
    with pytest.raises(ImportError, match=r"`make install`.* C compiler and Python's headers"):
        importlib.import_module("symphony_runtime.engine.fiber")


def test_hostcalls_outdated_extension_says_how_to_build_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_hostcalls, "layout", (1, 2, 3))
    monkeypatch.delitem(sys.modules, "symphony_runtime.engine.fiber")
    with pytest.raises(ImportError, match=r"outdated.*`make install`"):
        importlib.import_module("symphony_runtime.engine.fiber")


def test_hostcalls_take_a_result_only_while_a_call_is_pending() -> None:
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


def test_hostcalls_guest_that_waits_may_be_closed_there() -> None:
    host, guest = called()
    assert [guest.poll() for _ in range(3)] == [PREEMPTED] * 3
    assert guest.close() == 65_536
    with pytest.raises(RuntimeError, match="no call is pending"):
        guest.resume(1)
    with pytest.raises(RuntimeError, match="nothing to poll"):
        guest.poll()
    assert (guest.base, guest.size) == (0, 0)
    host.close()


def test_hostcalls_with_arguments_out_of_range_are_refused() -> None:
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
