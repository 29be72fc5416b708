"""The passes over an interpreter's Wasm, on modules that are small enough to read."""

import hashlib
import json
from typing import Any

import pytest
from wasmtime import Instance, Module, Store, wat2wasm

from tools.python_module import RECORD, WASM, source_hash
from tools.wasm_passes.module import encode, read
from tools.wasm_passes.spill import spill
from tools.wasm_passes.unwind import unwind

UNWINDING = """(module
  (global $stack (mut i32) (i32.const 1024))
  (global $flag (mut i32) (i32.const 0))
  (global $after (export "after") (mut i32) (i32.const 0))
  (func $nlr_set_unwinding (param i32) (global.set $flag (local.get 0)))
  (func $raise (call $nlr_set_unwinding (i32.const 1)) unreachable)
  (func $middle (param i32) (result f64)
    (if (local.get 0) (then (call $raise)))
    (global.set $after (i32.const 1))
    (f64.const 2))
  (func $nlr_try (export "try") (param i32) (result i32)
    (drop (call $middle (local.get 0)))
    (if (result i32) (global.get $flag)
      (then (global.set $flag (i32.const 0)) (i32.const 7))
      (else (i32.const 3)))))"""
SPILLING = """(module
  (memory (export "memory") 1)
  (global $stack (export "stack") (mut i32) (i32.const 1024))
  (func $gc_collect (export "collect") (result i32) (i32.load (global.get $stack)))
  (func $f (export "f") (param i32) (result i32)
    (local $seen i32)
    (local.set $seen (call $gc_collect))
    (return (i32.add (local.get $seen) (local.get 0)))))"""
NESTED = """(module
  (memory 1) (global $stack (mut i32) (i32.const 1024))
  (func $gc_collect (result i32) (i32.const 1))
  (func $f (param i32) (result i32) (i32.add (local.get 0) (call $gc_collect))))"""


def instance(wasm: bytes) -> tuple[Store, Any]:
    store = Store()
    return store, Instance(store, Module(store.engine, wasm), []).exports(store)


def test_functions_between_are_left_while_the_flag_is_set() -> None:
    data = bytes(wat2wasm(UNWINDING))
    module = read(data)
    assert unwind(module) == 2
    store, exports = instance(encode(data, module))
    run, after = exports["try"], exports["after"]
    assert run(store, 1) == 7
    assert after.value(store) == 0
    assert run(store, 0) == 3
    assert after.value(store) == 1


def test_collector_sees_a_local_that_is_used_behind_it() -> None:
    data = bytes(wat2wasm(SPILLING))
    module = read(data)
    assert spill(module) == 1
    store, exports = instance(encode(data, module))
    assert exports["f"](store, 21) == 42
    assert exports["stack"].value(store) == 1024


def test_module_that_is_not_flat_is_refused() -> None:
    module = read(bytes(wat2wasm(NESTED)))
    with pytest.raises(ValueError, match="f is not flat"):
        spill(module)


def test_module_without_names_is_refused() -> None:
    with pytest.raises(ValueError, match="no section of names"):
        read(b"\0asm\1\0\0\0")


def test_committed_python_module_is_of_these_sources() -> None:
    record = json.loads(RECORD.read_text())
    assert record["source"] == source_hash(), "run `python -m tools.python_module`"
    assert record["wasm"] == hashlib.sha256(WASM.read_bytes()).hexdigest()
