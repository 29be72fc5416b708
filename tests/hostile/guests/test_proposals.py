"""Each proposal to WebAssembly is on or off, as abi.md says; a module that needs it shows."""

import re
from pathlib import Path

import pytest
from symphony_runtime.engine.settings import PROPOSALS_OFF, PROPOSALS_ON

from tests.support.worker.binary import MEMORY, START, problems

ABI = (Path(__file__).parents[3] / "docs/reference/abi.md").read_text()
V128 = "(v128.const i32x4 0 0 0 0)"

# What the page calls it -> a part of a module that needs it.
ON = {
    "bulk memory": "(func (memory.fill (i32.const 0) (i32.const 0) (i32.const 0)))",
    "sign extension": "(func (drop (i32.extend8_s (i32.const 200))))",
    "non-trapping float-to-int": "(func (drop (i32.trunc_sat_f32_s (f32.const 1))))",
    "multi-value": "(func (result i32 i32) (i32.const 1) (i32.const 2))",
    "reference types": "(table 1 funcref) (table 2 funcref) (func (drop (ref.null func)))",
    "fixed-width SIMD": f"(func (drop (i32x4.add {V128} {V128})))",
    "mutable globals": '(global (export "g") (mut i32) (i32.const 0))',
    "extended constant expressions": (
        "(global i32 (i32.add (i32.const 40) (i32.mul (i32.const 1) (i32.const 2))))"
        ' (data (offset (i32.sub (i32.const 9) (i32.const 1))) "x")'
    ),
}
OFF = {
    "GC": "(type $s (struct)) (func (drop (struct.new $s)))",
    "threads": "(func (drop (i32.atomic.load (i32.const 0))))",
    "memory64": "",
    "exceptions": "(tag)",
    "relaxed SIMD": f"(func (drop (f32x4.relaxed_madd {3 * V128})))",
    "tail calls": "(func $f (return_call $f))",
    "multiple memories": "(memory 1)",
    "typed function references": (
        "(type $t (func)) (func (param (ref null $t)) (call_ref $t (local.get 0)))"
    ),
    "stack switching": "(type $f (func)) (type $c (cont $f)) (func (param (ref null $c)))",
    "custom page sizes": "",
    "wide arithmetic": (
        "(func (result i64 i64)"
        " (i64.add128 (i64.const 0) (i64.const 0) (i64.const 0) (i64.const 0)))"
    ),
    "components": "",
}
WHOLE = {
    "memory64": f'(module (memory (export "memory") i64 1) {START})',
    "custom page sizes": f'(module (memory (export "memory") 1 (pagesize 1)) {START})',
    "components": "(component)",
}
# The engine's switches that no module of its own shows: what they go with, or why.
OTHERS = {
    "shared_memory": "threads",
    "gc_support": "GC",
    "concurrency_support": "components",
    "wasm_branch_hinting": "a section that need not be read",
    "wasm_compact_imports": "another way to write the same imports",
}
SWITCHES = {
    "wasm_bulk_memory": "bulk memory", "wasm_multi_value": "multi-value",
    "wasm_reference_types": "reference types", "wasm_simd": "fixed-width SIMD",
    "wasm_threads": "threads", "wasm_tail_call": "tail calls", "wasm_gc": "GC",
    "wasm_function_references": "typed function references", "wasm_memory64": "memory64",
    "wasm_relaxed_simd": "relaxed SIMD", "wasm_multi_memory": "multiple memories",
    "wasm_wide_arithmetic": "wide arithmetic", "wasm_exceptions": "exceptions",
    "wasm_custom_page_sizes": "custom page sizes", "wasm_stack_switching": "stack switching",
    "wasm_component_model": "components",
}  # fmt: skip


def listed(words: str) -> set[str]:
    """Return the proposals that the page lists behind these words."""
    found = re.search(rf"\b{words}: ([^.]*)\.", " ".join(ABI.split()))
    assert found is not None
    return {re.sub(r" \(.*?\)", "", each).strip() for each in found[1].split(", ")}


def problems_of(what: str, body: str) -> list[str]:
    return problems(WHOLE.get(what, f"(module {MEMORY} {body} {START})"))


def test_proposals_are_all_listed_by_page_and_switches() -> None:
    assert listed("On") == set(ON)
    assert listed("Off, and refused at upload") == set(OFF)
    assert set(SWITCHES) | set(OTHERS) == {*PROPOSALS_ON, *PROPOSALS_OFF}
    for switch in PROPOSALS_ON:
        assert SWITCHES[switch] in ON
    for switch in set(PROPOSALS_OFF) & set(SWITCHES):
        assert SWITCHES[switch] in OFF


@pytest.mark.parametrize("what", ON)
def test_proposal_that_is_on_is_accepted(what: str) -> None:
    assert problems_of(what, ON[what]) == []


@pytest.mark.parametrize("what", OFF)
def test_proposal_that_is_off_is_refused_by_name(what: str) -> None:
    (problem,) = problems_of(what, OFF[what])
    name = {"GC": "garbage collection", "components": "component"}.get(what, what)
    assert name in problem, problem
    assert problem.startswith(("the module needs ", "this is a WebAssembly component"))
