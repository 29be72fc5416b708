"""The check of a source program, inside the compiler's process: its syntax, and its manifest.

The language's own module checks the syntax: its export `check` calls `language.fail` with a
sentence for the author, or returns 0. It runs as in a worker, but no other call is answered.
"""

import json
from typing import Final

from symphony_kernel.protocol.limits import PROGRAM_REASON_BYTES_MAX, RUN_MEMORY_BYTES_MAX
from wasmtime import (
    Caller,
    Engine,
    Func,
    FuncType,
    Linker,
    Memory,
    Module,
    Store,
    Trap,
    ValType,
    WasmtimeError,
)

from symphony_runtime.abi import LANGUAGE
from symphony_runtime.compiler.manifest import PERMISSIONS, check_manifest
from symphony_runtime.compiler.validation import CompileOutcome, readable
from symphony_runtime.engine.fiber import new_engine
from symphony_runtime.engine.settings import unseal
from symphony_runtime.languages.language import CHECK, ENTRY, OUTSIDE
from symphony_runtime.languages.source import find_manifest

_NEVER: Final = 1 << 62  # epochs: the process's limits bound the check
_U32: Final = 0xFFFFFFFF


def check_source(text: bytes, module: bytes, comment: str) -> CompileOutcome:
    """Return a source's manifest, or all its problems; it has no artefact of its own."""
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return CompileOutcome([f"the source is not UTF-8: byte {error.start} is no text"])
    content = find_manifest(text, comment)
    declared, problems = check_manifest(content, OUTSIDE) if content else ("", [])
    engine = new_engine()
    language = Module.deserialize(engine, unseal(module)[0])
    if problem := _check_syntax(engine, language, text):
        problems = [problem, *problems]
    if problems:
        return CompileOutcome(readable(problems))
    permitted = json.loads(declared).get(PERMISSIONS, []) if declared else []
    refused = {
        f"lip.{call}" for name, calls in OUTSIDE.items() if name not in permitted for call in calls
    }
    imports = [f"{each.module}.{each.name}" for each in language.imports]
    return CompileOutcome(
        imports=[each for each in imports if each not in refused],
        exports=[ENTRY],
        entries=[ENTRY],
        declared=declared,
    )


class _FailedError(Exception):
    """The module has called `language.fail`."""


def _check_syntax(engine: Engine, language: Module, text: bytes) -> str:
    """Return the first mistake of a source, with its place; "" without one."""
    store, said = Store(engine), list[str]()
    store.set_epoch_deadline(_NEVER)
    store.set_limits(memory_size=RUN_MEMORY_BYTES_MAX)

    def source_read(caller: Caller, pointer: int, capacity: int) -> int:
        if len(text) <= capacity & _U32:
            _memory(caller).write(caller, text, pointer & _U32)
        return len(text)

    def fail(caller: Caller, pointer: int, length: int) -> None:
        end = (pointer & _U32) + min(length & _U32, PROGRAM_REASON_BYTES_MAX)
        words = bytes(_memory(caller).read(caller, pointer & _U32, end))
        said.append(words.decode("utf-8", "replace"))
        raise _FailedError

    linker, i32 = Linker(engine), ValType.i32()
    linker.define_func(
        LANGUAGE, "source_read", FuncType([i32, i32], [i32]), source_read, access_caller=True
    )
    linker.define_func(LANGUAGE, "fail", FuncType([i32, i32], []), fail, access_caller=True)
    linker.define_unknown_imports_as_traps(language)
    try:
        exports = linker.instantiate(store, language).exports(store)
        if isinstance(start := exports.get("_initialize"), Func):
            start(store)
        check = exports[CHECK]
        assert isinstance(check, Func), language
        return "" if check(store) == 0 else "the source cannot be run"
    except _FailedError:
        return said[0]
    except (Trap, WasmtimeError) as error:
        if said:
            return said[0]
        return f"the source cannot be checked: {str(error).splitlines()[0]}"


def _memory(caller: Caller) -> Memory:
    memory = caller["memory"]
    assert isinstance(memory, Memory), memory
    return memory
