"""The rules for an uploaded program, checked inside the compiler's process.

Every problem is a sentence for the program's author. Checks that need no compiler come first, so
that a wrong upload is cheap to refuse.
"""

from dataclasses import dataclass, field
from typing import TypeAlias

from symphony_kernel.protocol.limits import (
    PROGRAM_BYTES_MAX,
    PROGRAM_FUNCTIONS_MAX,
    RUN_MEMORY_BYTES_MAX,
    TABLE_ELEMENTS_MAX,
)
from wasmtime import (
    ExportType,
    FuncType,
    GlobalType,
    ImportType,
    MemoryType,
    Module,
    TableType,
    WasmtimeError,
)

from symphony_runtime.abi import LANGUAGE, Signature, allowed_imports
from symphony_runtime.compiler.manifest import read_manifest
from symphony_runtime.compiler.module_outline import (
    FUNCTION,
    HEADER,
    read_custom,
    read_outline,
    table_elements,
)
from symphony_runtime.engine.fiber import is_entry, new_engine
from symphony_runtime.engine.settings import seal
from symphony_runtime.engine.source_lines import BYTES_MAX, SECTION

COMPONENT_HEADER = b"\0asm\x0d\0\x01\0"
WASM_PAGE_BYTES = 65_536
_PROBLEM_MAX = 1_000  # characters
SUPPORTED = (
    "bulk memory, sign extension, non-trapping float-to-int, multi-value, reference types "
    "(functions only), mutable globals, extended constant expressions and fixed-width SIMD"
)

# A part of wasmtime's message -> the name of the proposal that the program needs.
PROPOSALS: tuple[tuple[str, str], ...] = (
    ("relaxed SIMD", "relaxed SIMD"),
    ("threads", "threads"),
    ("shared memor", "threads"),
    ("memory64", "memory64"),
    ("multiple memories", "multiple memories"),
    ("multi-memory", "multiple memories"),
    ("exceptions", "exceptions"),
    ("tail calls", "tail calls"),
    ("wide arithmetic", "wide arithmetic"),
    ("custom page sizes", "custom page sizes"),
    ("function references", "typed function references"),
    ("stack switching", "stack switching"),
    ("gc types", "garbage collection (externref included)"),
    ("gc feature", "garbage collection"),
    ("gc proposal", "garbage collection"),
    ("gc support", "garbage collection"),
    ("`gc` proposal", "garbage collection"),
    ("component model", "components"),
)

Type: TypeAlias = FuncType | GlobalType | MemoryType | TableType


@dataclass(slots=True)
class CompileOutcome:
    """The result of one upload: problems, or a manifest and an artefact."""

    problems: list[str] = field(default_factory=list)
    imports: list[str] = field(default_factory=list)
    exports: list[str] = field(default_factory=list)
    entries: list[str] = field(default_factory=list)
    artefact: bytes = b""
    declared: str = ""  # the program's own manifest as JSON


def check_and_compile(
    wasm: bytes, functions_max: int = PROGRAM_FUNCTIONS_MAX, *, own: bool = False
) -> CompileOutcome:
    """Return a valid program's artefact, or all its problems.

    `own`: it ships with the server, and may be a language module.
    """
    problems = check_shape(wasm, functions_max)
    if problems:
        return CompileOutcome(readable(problems))
    try:
        module = Module(new_engine(), wasm)
    except WasmtimeError as error:
        return CompileOutcome(readable([explain(str(error))]))
    imports, exports = module.imports, module.exports
    declared, problems = read_manifest(wasm)
    problems = check_imports(imports, own=own) + check_exports(exports) + problems
    if problems:
        return CompileOutcome(readable(problems))
    lines = read_custom(wasm, SECTION)
    return CompileOutcome(
        imports=[f"{i.module}.{i.name}" for i in imports],
        exports=[e.name for e in exports],
        entries=[
            e.name for e in exports if isinstance(e.type, FuncType) and is_entry(e.name, e.type)
        ],
        artefact=seal(bytes(module.serialize()), table_elements(wasm), lines[:BYTES_MAX]),
        declared=declared,
    )


# --- Before the compiler -------------------------------------------------------------------------
def check_shape(wasm: bytes, functions_max: int = PROGRAM_FUNCTIONS_MAX) -> list[str]:
    """Return problems of the bytes themselves: size, header, counts."""
    if len(wasm) > PROGRAM_BYTES_MAX:
        return [f"the program has {len(wasm)} bytes; the limit is {PROGRAM_BYTES_MAX}"]
    if wasm.startswith(COMPONENT_HEADER):
        return ["this is a WebAssembly component; upload a core module"]
    if not wasm.startswith(HEADER):
        return ["this is not a WebAssembly module (it does not begin with \\0asm, version 1)"]
    try:
        outline = read_outline(wasm)
    except ValueError as error:
        return [f"the module is damaged: {error}"]
    functions = outline.counts[FUNCTION]
    if functions > functions_max:
        return [f"the program has {functions} functions; the limit is {functions_max}"]
    return outline.problems()


# --- Afterwards ----------------------------------------------------------------------------------
def explain(message: str) -> str:
    """Return wasmtime's refusal of a module as a sentence for its author."""
    detail = " ".join(line.strip() for line in message.splitlines() if line.strip())
    for part, proposal in PROPOSALS:
        if part in message:
            return f"the module needs {proposal}, which is off ({detail}); on are {SUPPORTED}"
    return f"the module is not valid WebAssembly: {detail}"


def check_imports(imports: list[ImportType], *, own: bool = False) -> list[str]:
    """Return a problem for each import that is unknown or has a wrong type.

    Only the server's own modules may import the calls of language modules.
    """
    allowed = allowed_imports()
    problems = []
    for item in imports:
        name = f"{item.module}.{item.name}"
        wanted = allowed.get((item.module, item.name or ""))
        if wanted is None or (item.module == LANGUAGE and not own):
            problems.append(f"import {name} is refused: there is no such call")
        elif not isinstance(item.type, FuncType):
            problems.append(f"import {name} must be a function, not a {_kind(item.type)}")
        elif signature_of(item.type) != wanted:
            problems.append(f"import {name} is {signature_of(item.type)}; it must be {wanted}")
    return problems


def check_exports(exports: list[ExportType]) -> list[str]:
    """Return a problem for each export that is missing or has a wrong type."""
    types: dict[str, Type] = {item.name: item.type for item in exports}
    problems = _check_memory(types.get("memory"))
    for name, wanted in (("_start", START), ("lip_main", MAIN), ("_initialize", START)):
        found = types.get(name)
        if found is not None and (not isinstance(found, FuncType) or signature_of(found) != wanted):
            problems.append(f"export {name} must be a function {wanted}")
    if "_start" not in types and "lip_main" not in types:
        problems.append("the module exports neither _start: () -> () nor lip_main: () -> (i32)")
    for name, found in types.items():
        if isinstance(found, TableType) and found.limits.min > TABLE_ELEMENTS_MAX:
            problems.append(f"table {name} starts with more than {TABLE_ELEMENTS_MAX} elements")
    return problems


def signature_of(kind: FuncType) -> Signature:
    return Signature(tuple(map(str, kind.params)), tuple(map(str, kind.results)))


START = Signature((), ())
MAIN = Signature((), ("i32",))


def _check_memory(memory: Type | None) -> list[str]:
    if not isinstance(memory, MemoryType):
        return ["the module does not export its memory under the name memory"]
    needed = memory.limits.min * WASM_PAGE_BYTES
    if needed > RUN_MEMORY_BYTES_MAX:
        return [f"the memory starts with {needed} bytes; the limit is {RUN_MEMORY_BYTES_MAX}"]
    return []


def readable(problems: list[str]) -> list[str]:
    """Return problems, cut and printable: a module may choose any import names."""
    return ["".join(c if c.isprintable() else "?" for c in p[:_PROBLEM_MAX]) for p in problems]


def _kind(item: Type) -> str:
    names = {GlobalType: "global", MemoryType: "memory", TableType: "table"}
    return names.get(type(item), "thing of another kind")
