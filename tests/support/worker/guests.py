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


# --- Expressions ---------------------------------------------------------------------------------
Argument = int | str
_HELPERS = {
    "say": Signature(("i32",), ()),
    "await": Signature(("i32",), ()),
    "claim": Signature(("i32", "i32", "i32"), ("i32",)),
    "claim_within": allowed_imports()[LIP, "claim"],
    "abort": ABORT,
}


def _signature(name: str) -> Signature:
    return _HELPERS.get(name) or allowed_imports().get((LIP, name)) or WASI_CALLS[name]


def call(name: str, *arguments: Argument) -> str:
    """A call; its arguments are numbers or WAT expressions."""
    kinds = _signature(name).params
    pairs = zip(kinds, arguments, strict=True)
    given = [each if isinstance(each, str) else f"({kind}.const {each})" for kind, each in pairs]
    return f"(call ${' '.join([name, *given])})"


def drop(name: str, *arguments: Argument) -> str:
    """A call whose result is ignored."""
    return f"(drop {call(name, *arguments)})"


def say(result: Argument) -> str:
    """Send an i32, as four bytes."""
    return call("say", result)


def times(count: int, body: str) -> str:
    """Repeat something; the local $n counts, from 0."""
    more = f"(i32.lt_s {increased('$n')} (i32.const {count}))"
    return f"(loop $more {body} (br_if $more {more}))"


def increased(local: str) -> str:
    """Add 1 to a local; its new value."""
    return f"(local.tee {local} (i32.add (local.get {local}) (i32.const 1)))"


def forever(body: str) -> str:
    return f"(loop $on {body} (br $on))"


# --- Scripts: a list of calls, and what each returned --------------------------------------------
_RESULTS_AT = 60_000  # results of a script's calls, an i64 each
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
    if name == "show":  # the bytes of memory are the result
        return drop("send", *arguments)
    slot = _RESULTS_AT + 8 * index
    if name == "store":
        at, value = (a if isinstance(a, str) else f"(i32.const {a})" for a in arguments)
        made = f"(i32.store {at} {value}) (i64.const 0)"
    elif not (results := _signature(name).results):
        made = f"{call(name, *arguments)} (i64.const 0)"
    elif results == ("i64",):
        made = call(name, *arguments)
    else:
        made = f"(i64.extend_i32_s {call(name, *arguments)})"
    return f"(i32.const {slot}) {made} i64.store {drop('send', slot, 8)}"


# --- Ready-made guests ---------------------------------------------------------------------------
HELLO = main(f"{drop('send', 100, 5)} (i32.const 0)", data(100, "hello"))
SPIN = main(f"{forever('')} (i32.const 0)")
# Creates a file, decodes n greedy tokens one by one (n is the input's first byte), sends each.
DECODE = main(
    f"""
    {drop("input_read", 64, 64)}
    (local.set $n (i32.load8_u (i32.const 64)))
    (local.set $kv (call $kv_create))
    (i32.store (i32.const 0) (i32.const 7))
    (loop $next
      {drop("claim", call("pred", "(local.get $kv)", 0, 1, 0, 0, 0), 0, 8)}
      {say("(i32.load (i32.const 0))")}
      (br_if $next (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
    {drop("kv_close", "(local.get $kv)")}
    (i32.const 0)""",
    locals_="(local $n i32) (local $kv i32)",
)
