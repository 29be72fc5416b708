"""Make functions return while a flag is set: exceptions without Wasm's exceptions.

Interpreters in C leave many functions at once by `longjmp`, which Wasm has only with its
exceptions; the server keeps these off. Here the C code sets a flag (the global that the function
`nlr_set_unwinding` sets) and returns. This pass adds a return behind each call that may come back
with the flag set: the functions between are left one by one, up to one that looks at the flag
itself. These are known by name: `nlr_try` stays as it is, and nothing is added behind a call of a
function whose name begins with `nlr_try_`. The values that are returned mean nothing.
"""

from tools.wasm_passes.module import (
    CALL,
    CALL_INDIRECT,
    F32,
    F64,
    GLOBAL_SET,
    I32,
    I64,
    Module,
    Reader,
    callers_of,
    code_at,
    instructions,
    leb,
)

SETTER = "nlr_set_unwinding"
CATCHER = "nlr_try"
CAUGHT = "nlr_try_"  # what such names begin with
_ZERO = {
    I32: b"\x41\x00", I64: b"\x42\x00", F32: b"\x43" + bytes(4), F64: b"\x44" + bytes(8),
}  # fmt: skip


def unwind(module: Module) -> int:
    """Add the checks; return how many."""
    named = {name: index for index, name in module.names.items()}
    flag = _flag(module, named[SETTER])
    caught = {index for index, name in module.names.items() if name.startswith(CAUGHT)}
    # Functions that call only such functions may not come back with the flag set; these may.
    stops = caught | {named[CATCHER]}
    may = callers_of(module, {named[SETTER]}, stops)
    checks = 0
    for index in may | caught:
        if index != named[CATCHER]:
            checks += _rewrite(module, index, flag, may)
    return checks


def _flag(module: Module, setter: int) -> int:
    """Return the index of the global that is set to unwind."""
    body = module.bodies[setter - module.imports]
    for opcode, start, _ in instructions(body, code_at(body)):
        if opcode == GLOBAL_SET:
            return Reader(body, start + 1).u32()
    raise ValueError(f"{SETTER} sets no global")


def _rewrite(module: Module, index: int, flag: int, may: set[int]) -> int:
    body = module.bodies[index - module.imports]
    values = b"".join(_ZERO[kind] for kind in module.results[module.types[index]])
    check = b"\x23" + leb(flag) + b"\x04\x40" + values + b"\x0f\x0b"
    out, copied, checks = bytearray(), 0, 0
    for opcode, start, end in instructions(body, code_at(body)):
        if opcode == CALL_INDIRECT or (opcode == CALL and Reader(body, start + 1).u32() in may):
            out += body[copied:end] + check
            copied, checks = end, checks + 1
    module.bodies[index - module.imports] = bytes(out + body[copied:])
    return checks
