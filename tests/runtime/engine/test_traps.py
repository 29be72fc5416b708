"""Traps in words: reasons, functions' names and what is left out of them."""

import pytest
from symphony_runtime.engine import traps
from symphony_runtime.engine.traps import demangle
from wasmtime import Engine, Func, Instance, Module, Store, Trap, wat2wasm

PANIC = "_ZN3std9panicking20rust_panic_with_hook17h0123456789abcdefE"


def trapped(source: str) -> Trap:
    """Run `f` of a module that must trap."""
    store = Store(Engine())
    entry = Instance(store, Module(store.engine, wat2wasm(f"(module {source})")), []).exports(store)
    function = entry["f"]
    assert isinstance(function, Func)
    with pytest.raises(Trap) as found:
        function(store)
    return found.value


def chain(*names: str, last: str = "unreachable") -> str:
    """Return functions of which each calls the next; the first is exported as `f`."""
    bodies = [f"(call ${name})" for name in names[1:]] + [last]
    functions = [f"(func ${name} {body})" for name, body in zip(names, bodies, strict=True)]
    return f'(export "f" (func ${names[0]})) {" ".join(functions)}'


@pytest.mark.parametrize(
    ("symbol", "path"),
    [
        ("_ZN4trap4deep17h4a60c82a72a4dbc4E", "trap::deep"),
        ("_ZN8symphony5kv..f17h4a60c82a72a4dbc4E", "symphony::kv::f"),
        (
            "_ZN5hello3run28_$u7b$$u7b$closure$u7d$$u7d$17h837c4805a4c37ba1E",
            "hello::run::{{closure}}",
        ),
        (
            "_ZN59_$LT$core..fmt..Arguments$u20$as$u20$core..fmt..Display$GT$3fmt17h18b4d4e055822751E.llvm.7",
            "<core::fmt::Arguments as core::fmt::Display>::fmt",
        ),
        ("_RNvNtCsbmNqQUJIY6D_7mycrate3foo3bar", "mycrate::foo::bar"),
        ("_RNCNvCs1234_5hello3run0B3_", "hello::run"),
        ("_ZN4trap", "_ZN4trap"),
        ("_ZN9999trap17h4a60c82a72a4dbc4E", "_ZN9999trap17h4a60c82a72a4dbc4E"),
        ("_ZN6$u7b$$E", "{$"),
        ("_ZN18$u110000$$uffffff$E", "$u110000$$uffffff$"),
        ("_R", "_R"),
        ("assembly/index/walk", "assembly/index/walk"),
    ],
)
def test_demangle_gives_the_path_of_rust_symbols_alone(symbol: str, path: str) -> None:
    assert demangle(symbol) == path


def test_trap_names_eight_functions_innermost_first() -> None:
    found = traps.where(trapped(chain(*[f"f{number}" for number in range(12)])))
    assert found == ", called by ".join(f"f{number}" for number in range(11, 3, -1))


def test_trap_leaves_out_what_a_panic_does() -> None:
    names = ["lip_main", "_ZN5hello3run17h0123456789abcdefE"]
    machinery = ["_ZN4core9panicking18panic_bounds_check17h0123456789abcdefE", PANIC, "rust_panic"]
    found = traps.where(trapped(chain(*names, *machinery)))
    assert found == "hello::run, called by lip_main"
    assert traps.where(trapped(chain("rust_panic"))) == "rust_panic"


def test_trap_leaves_out_a_script_library() -> None:
    found = traps.where(trapped(chain("assembly/index/run", "~lib/array/Array#__get")))
    assert found == "assembly/index/run"


def test_trap_names_are_cut_and_printable() -> None:
    found = traps.where(
        trapped(
            f'(func (export "f") (call $long)) (func ${"x" * 300} unreachable)'.replace(
                "$long", "$" + "x" * 300
            )
        )
    )
    assert found == "x" * 100 + "..."


def test_trap_without_names_has_a_reason_alone() -> None:
    trap = trapped('(func (export "f") unreachable)')
    assert (traps.reason(trap), traps.where(trap)) == ("unreachable instruction", "")


DOWN = "(drop (i32.load (i32.sub (local.get 0) (i32.const 16))))"


def test_trap_below_the_memory_in_a_deep_recursion_is_a_stack_overflow() -> None:
    """A Rust program's stack is below its data, and grows down to address 0."""
    source = f"""(memory 1) (func (export "f") (call $walk (i32.const 4096)))
        (func $walk (param i32) {DOWN} (call $visit (i32.sub (local.get 0) (i32.const 16))))
        (func $visit (param i32) {DOWN} (call $walk (i32.sub (local.get 0) (i32.const 16))))"""
    trap = trapped(source)
    assert traps.reason(trap).startswith("stack overflow: the recursion is too deep for")
    assert traps.where(trap).startswith(("walk, called by visit,", "visit, called by walk,"))


def test_trap_outside_the_memory_is_no_stack_overflow_otherwise() -> None:
    chained = chain(
        *[f"f{number}" for number in range(30)], last="(drop (i32.load (i32.const -4)))"
    )
    for source in (chained, '(func (export "f") (drop (i32.load (i32.const -4))))'):
        assert traps.reason(trapped(f"(memory 1) {source}")) == "out-of-bounds memory access"
