"""Small guests in WAT: imports from the ABI's table, so that a test states only what it does."""

import struct
from dataclasses import dataclass

from symphony_runtime.abi import ABORT, LIP, WASI, WASI_CALLS, Signature, allowed_imports, table

PAGE_BYTES = 65_536


# `$claim` is the helper below, of three arguments and far older than the call.
_NAMES = {"claim": "claim_within"}


def _import(module: str, name: str, kind: Signature) -> str:
    params = f"(param {' '.join(kind.params)})" if kind.params else ""
    results = f"(result {' '.join(kind.results)})" if kind.results else ""
    return f'(import "{module}" "{name}" (func ${_NAMES.get(name, name)} {params} {results}))'


LIP_IMPORTS = [_import("lip", call.name, call.signature) for call in table().calls]
WASI_IMPORTS = [_import(WASI, name, kind) for name, kind in WASI_CALLS.items()]
ABORT_IMPORT = _import("env", "abort", ABORT)


def data(offset: int, content: bytes | str) -> str:
    """A data segment."""
    raw = content.encode() if isinstance(content, str) else content
    escaped = "".join(f"\\{byte:02x}" for byte in raw)
    return f'(data (i32.const {offset}) "{escaped}")'


def module(
    *parts: str, imports: list[str] | None = None, pages: int = 2, pages_max: int | None = None
) -> str:
    """A module with imports (by default all of `instance`), a memory and `parts`."""
    limit = "" if pages_max is None else str(pages_max)
    memory = f'(memory (export "memory") {pages} {limit})'
    listed = LIP_IMPORTS if imports is None else imports
    return "\n".join(["(module", *listed, memory, HELPERS, *parts, ")"])


def main(body: str, *parts: str, locals_: str = "", pages: int = 2) -> str:
    """A program whose `lip_main` has this body, which leaves the exit code on the stack."""
    function = f'(func (export "lip_main") (result i32) {locals_} {body})'
    return module(function, *parts, pages=pages)


def say(result: str) -> str:
    """Send the i32 that an expression gives, as four bytes."""
    return f"(call $say {result})"


# $say sends an i32; $await waits for one ticket for ever; $claim waits and takes into [p, p + n).
HELPERS = """
(func $say (param $value i32)
  (i32.store (i32.const 65000) (local.get $value))
  (drop (call $send (i32.const 65000) (i32.const 4))))
(func $await (param $ticket i32)
  (i32.store (i32.const 65004) (local.get $ticket))
  (drop (call $wait (i32.const 65004) (i32.const 1) (i64.const -1))))
(func $claim (param $ticket i32) (param $at i32) (param $room i32) (result i32)
  (call $await (local.get $ticket))
  (call $take (local.get $ticket) (local.get $at) (local.get $room)))
"""


# --- Scripts: a list of calls, and what each returned --------------------------------------------
_RESULTS_AT = 60_000  # results of a script's calls, an i64 each
_PSEUDO = {
    "await": Signature(("i32",), ()),
    "claim": Signature(("i32", "i32", "i32"), ("i32",)),
    "claim_within": allowed_imports()[LIP, "claim"],
    "show": Signature(("i32", "i32"), ()),  # the bytes of memory are the result
    "store": Signature(("i32", "i32"), ()),
}
Argument = int | str
Step = tuple[Argument, ...]


@dataclass(frozen=True)
class Script:
    """A program that makes calls one after the other and sends what each returned."""

    source: str
    names: list[str]

    def results(self, messages: list[bytes]) -> list[int | bytes]:
        """Return each step's result: a number, or bytes for a "show"."""
        assert len(messages) == len(self.names), f"{len(messages)} of {len(self.names)} steps"
        pairs = zip(self.names, messages, strict=True)
        return [m if name == "show" else struct.unpack("<q", m)[0] for name, m in pairs]


def name_of(call: str) -> str:
    """The name that a call of the ABI has in these guests."""
    return _NAMES.get(call, call)


def result(step: int) -> str:
    """The i32 that step number `step` of the same script returned."""
    return f"(i32.load (i32.const {_RESULTS_AT + 8 * step}))"


def script(*steps: Step, parts: tuple[str, ...] = ()) -> Script:
    """Steps are (call's name, argument, ...); arguments are numbers or WAT expressions."""
    body, names = [], []
    for index, (name, *arguments) in enumerate(steps):
        assert isinstance(name, str)
        names.append(name)
        body.append(_step(index, name, arguments))
    imports = LIP_IMPORTS + WASI_IMPORTS
    function = f'(func (export "lip_main") (result i32) {" ".join(body)} (i32.const 0))'
    return Script(module(function, *parts, imports=imports), names)


def _step(index: int, name: str, arguments: list[Argument]) -> str:
    kind = _PSEUDO.get(name) or allowed_imports().get((LIP, name)) or WASI_CALLS[name]
    assert len(arguments) == len(kind.params), name
    given = " ".join(
        a if isinstance(a, str) else f"({kind}.const {a})"
        for a, kind in zip(arguments, kind.params, strict=True)
    )
    if name == "show":
        return f"(drop (call $send {given}))"
    slot = _RESULTS_AT + 8 * index
    if name == "store":
        call = f"(i32.store {given}) (i64.const 0)"
    elif not kind.results:
        call = f"(call ${name} {given}) (i64.const 0)"
    elif kind.results == ("i64",):
        call = f"(call ${name} {given})"
    else:
        call = f"(i64.extend_i32_s (call ${name} {given}))"
    return (
        f"(i32.const {slot}) {call} i64.store (drop (call $send (i32.const {slot}) (i32.const 8)))"
    )


# --- Ready-made guests ---------------------------------------------------------------------------
HELLO = main("(drop (call $send (i32.const 100) (i32.const 5))) (i32.const 0)", data(100, "hello"))
SPIN = main("(loop $l (br $l)) (i32.const 0)")
# Creates a file, decodes n greedy tokens one by one (n is the input's first byte), sends each.
DECODE = main(
    """
    (drop (call $input_read (i32.const 64) (i32.const 64)))
    (local.set $n (i32.load8_u (i32.const 64)))
    (local.set $kv (call $kv_create))
    (i32.store (i32.const 0) (i32.const 7))
    (loop $next
      (drop (call $claim (call $pred (local.get $kv) (i32.const 0) (i32.const 1)
                                     (i32.const 0) (i32.const 0) (i32.const 0))
                         (i32.const 0) (i32.const 8)))
      (call $say (i32.load (i32.const 0)))
      (br_if $next (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
    (drop (call $kv_close (local.get $kv)))
    (i32.const 0)""",
    locals_="(local $n i32) (local $kv i32)",
)
