"""Small guests in WAT: imports from the ABI's table, so that a test states only what it does."""

from symphony_runtime.abi import ABORT, WASI, WASI_CALLS, Signature, table

PAGE_BYTES = 65_536


def _import(module: str, name: str, kind: Signature) -> str:
    params = f"(param {' '.join(kind.params)})" if kind.params else ""
    results = f"(result {' '.join(kind.results)})" if kind.results else ""
    return f'(import "{module}" "{name}" (func ${name} {params} {results}))'


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
    """A module with imports (by default all of `lip`), a memory and `parts`."""
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
