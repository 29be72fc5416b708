"""The programs that attackers upload, as WebAssembly modules made from text.

`branches` and `tokenizers` send one message when their load is complete, so that no measurement
begins before it. The others are at work as soon as they start.
"""

import secrets
from dataclasses import dataclass

import msgpack

from tests.e2e.programs import SPIN_WASM, wasm
from tests.support.worker.guests import data, main

LOOPS = SPIN_WASM
_LOCALS = "(local $kv i32) (local $other i32) (local $n i32)"

# A prompt of {n} tokens in the file $kv.
_PROMPT = """(drop (call $claim (call $pred (local.get $kv) (i32.const 4096) (i32.const {n})
  (i32.const 0) (i32.const 0) (i32.const 0)) (i32.const 64) (i32.const 8)))"""
# Prompts of 1,500 tokens without end.
PROMPTS = wasm(
    main(
        f"""(loop $next
          (local.set $kv (call $kv_create)) {_PROMPT.format(n=1500)}
          (drop (call $kv_close (local.get $kv))) (br $next)) (i32.const 0)""",
        locals_=_LOCALS,
    )
)
# Files without end: prompts, forks, appends, names. No file is closed before the table is full.
FILES = wasm(
    main(
        f"""(loop $next
          (local.set $kv (call $kv_create)) {_PROMPT.format(n=64)}
          (local.set $n (i32.const 32))
          (loop $more
            (local.set $other (call $kv_fork (local.get $kv)))
            (drop (call $kv_append (local.get $other) (local.get $kv) (i32.const 0) (i32.const 63)))
            (i32.store (i32.const 512) (local.get $other))
            (drop (call $kv_save (local.get $other) (i32.const 512) (i32.const 1) (i32.const 1)))
            (local.set $n (i32.sub (local.get $n) (i32.const 1)))
            (br_if $more (local.get $n)))
          (br $next)) (i32.const 0)""",
        data(512, "a"),
        locals_=_LOCALS,
    )
)
_CHILD = msgpack.packb({"entry": "child", "input": b"", "grants": []})
# Children that compute, as many as a run may have, and their own children likewise.
_FORKS = f"""(loop $next
  (drop (call $claim (call $spawn (i32.const 512) (i32.const {len(_CHILD)}))
                     (i32.const 64) (i32.const 4)))
  (local.set $n (i32.add (local.get $n) (i32.const 1)))
  (br_if $next (i32.lt_u (local.get $n) (i32.const 16)))) (loop $l (br $l)) (i32.const 0)"""
FORKS = wasm(
    main(
        _FORKS,
        data(512, _CHILD),
        f'(func (export "child") (result i32) {_LOCALS} {_FORKS})',
        locals_=_LOCALS,
    )
)
# Messages, lines and channel items without end.
TALK = wasm(
    main(
        """(loop $next
          (drop (call $send (i32.const 1024) (i32.const 32768)))
          (drop (call $log (i32.const 1) (i32.const 1024) (i32.const 4096)))
          (drop (call $channel_send (i32.const 512) (i32.const 1) (i32.const 0) (i32.const 32768)))
          (drop (call $claim (call $channel_recv (i32.const 512) (i32.const 1))
                             (i32.const 65600) (i32.const 60000)))
          (br $next)) (i32.const 0)""",
        data(512, "c"),
        locals_=_LOCALS,
    )
)

# Slow to compile: large functions of deep expressions.
_SUM = "(local.set 0 (i32.add (local.get 0) (i32.mul (local.get 0) (i32.const 7))))"
_LARGE = " ".join(f'(func (export "f{i}") (param i32) {_SUM * 2_000})' for i in range(40))
_START = '(module (memory (export "memory") 1) (func (export "_start"))'


def bomb() -> bytes:
    """Return a module that is slow to compile."""
    return wasm(f"{_START} {_LARGE})")


def unlike(module: bytes) -> bytes:
    """Return the module with a custom section that no other has: a program of its own."""
    mark = secrets.token_bytes(8)
    return module + bytes([0, 1 + len(mark), 0]) + mark


# -- Branches --------------------------------------------------------------------------------------
# Memory: the prompt's token at 512, extract's range at 600, options at 1024, tickets, handles and
# lengths at the places below, results from _BUFFER on (logits of 190,000 tokens fit).
_TICKETS, _HANDLES, _LENGTHS, _PROMPT_AT, _BUFFER = 4096, 16_384, 32_768, 131_072, 262_144
_PAGES, _BUFFER_BYTES = 16, 16 * 65_536 - _BUFFER
BRANCH_TOKENS = 120  # of one branch, until it is rolled back


@dataclass(frozen=True, slots=True)
class Branches:
    """What one LIP decodes in parallel.

    Attributes:
        number: Branches, at most 2,000.
        call: "generate" or "pred".
        options: Options of that call.
        base: Entries that each branch has at its start, as far as the model's context allows.
        share: How branches get them: "fork" (shared pages) or "extract" (pages of their own).
    """

    number: int
    call: str = "generate"
    options: tuple[tuple[str, object], ...] = ()
    base: int = 0
    share: str = "fork"


def branches(shape: Branches, context: int) -> bytes:
    """Return a LIP that decodes such branches without end, for a model with this context."""
    base = min(shape.base, context - BRANCH_TOKENS - 8)
    options = dict(shape.options) | ({"max": BRANCH_TOKENS} if shape.call == "generate" else {})
    packed = msgpack.packb(options) if options else b""
    values: dict[str, object] = {
        "number": shape.number, "base": base, "options": len(packed), "most": BRANCH_TOKENS,
        "tickets": _TICKETS, "handles": _HANDLES, "lengths": _LENGTHS, "at": _PROMPT_AT,
        "buffer": _BUFFER, "room": _BUFFER_BYTES, "open": _OPEN[shape.share if base else "create"],
    }  # fmt: skip
    values["fill"] = _FILL.format(**values) if base else ""
    values["ended"] = _ENDED[shape.call].format(**values)
    return wasm(
        main(
            _BRANCHES.format(**values),
            _BEGIN[shape.call].format(**values),
            data(512, b"\x07\0\0\0"),
            data(600, (0).to_bytes(4, "little") + base.to_bytes(4, "little")),
            data(1024, packed),
            locals_="(local $kv i32) (local $i i32) (local $n i32)",
            pages=_PAGES,
        )
    )


_OPEN = {
    "create": "(call $kv_create)",
    "fork": "(call $kv_fork (local.get $kv))",
    "extract": "(call $kv_extract (local.get $kv) (i32.const 600) (i32.const 1))",
}
# The file $kv gets {base} entries.
_FILL = """
    (local.set $kv (call $kv_create))
    (loop $token
      (i32.store (i32.add (i32.const {at}) (i32.shl (local.get $i) (i32.const 2)))
                 (i32.add (i32.const 3) (i32.rem_u (local.get $i) (i32.const 200))))
      (local.set $i (i32.add (local.get $i) (i32.const 1)))
      (br_if $token (i32.lt_u (local.get $i) (i32.const {base}))))
    (local.set $n (call $claim (call $pred (local.get $kv) (i32.const {at}) (i32.const {base})
      (i32.const 0) (i32.const 0) (i32.const 0)) (i32.const 64) (i32.const 8)))
    (if (i32.ne (local.get $n) (i32.const 8)) (then (return (local.get $n))))
    (local.set $i (i32.const 0))"""
# $begin starts a branch's next call.
_BEGIN = {
    "generate": """(func $begin (param $at i32)
      (i32.store (i32.add (i32.const {tickets}) (local.get $at))
        (call $generate (i32.load (i32.add (i32.const {handles}) (local.get $at)))
          (i32.const 512) (i32.const 1) (i32.const 1024) (i32.const {options}))))""",
    "pred": """(func $begin (param $at i32)
      (i32.store (i32.add (i32.const {lengths}) (local.get $at))
        (i32.add (i32.const 1) (i32.load (i32.add (i32.const {lengths}) (local.get $at)))))
      (i32.store (i32.add (i32.const {tickets}) (local.get $at))
        (call $pred (i32.load (i32.add (i32.const {handles}) (local.get $at)))
          (i32.const 512) (i32.const 1) (i32.const 0) (i32.const 1024) (i32.const {options}))))
    (func $full (param $at i32) (result i32)
      (local $of i32)
      (local.set $of (i32.add (i32.const {lengths}) (local.get $at)))
      (if (i32.lt_u (i32.load (local.get $of)) (i32.const {most})) (then (return (i32.const 0))))
      (i32.store (local.get $of) (i32.const 0))
      (i32.const 1))""",
}
_ROLL_BACK = """(drop (call $kv_truncate
  (i32.load (i32.add (i32.const {handles}) (local.get $i))) (i32.const {base})))"""
# A generation has ended when a take gives no bytes. A pred ends with its take.
_ENDED = {
    "generate": f"(if (i32.eqz (local.get $n)) (then {_ROLL_BACK} (call $begin (local.get $i))))",
    "pred": f"(if (call $full (local.get $i)) (then {_ROLL_BACK})) (call $begin (local.get $i))",
}
_BRANCHES = """{fill}
    (loop $open
      (i32.store (i32.add (i32.const {handles}) (local.get $i)) {open})
      (call $begin (local.get $i))
      (local.set $i (i32.add (local.get $i) (i32.const 4)))
      (br_if $open (i32.lt_u (local.get $i) (i32.shl (i32.const {number}) (i32.const 2)))))
    (call $await (i32.load (i32.sub (i32.add (i32.const {tickets}) (local.get $i)) (i32.const 4))))
    (drop (call $send (i32.const 512) (i32.const 1)))
    (loop $next
      (local.set $i (call $wait (i32.const {tickets}) (i32.const {number}) (i64.const -1)))
      (if (i32.lt_s (local.get $i) (i32.const 0)) (then (return (local.get $i))))
      (local.set $i (i32.shl (local.get $i) (i32.const 2)))
      (local.set $n (call $take (i32.load (i32.add (i32.const {tickets}) (local.get $i)))
                                (i32.const {buffer}) (i32.const {room})))
      (if (i32.lt_s (local.get $n) (i32.const 0)) (then (return (local.get $n))))
      {ended}
      (br $next))
    (i32.const 0)"""


# -- Tokenizers ------------------------------------------------------------------------------------
def tokenizers(letter: str, size: int = 1 << 20) -> bytes:
    """Return a LIP that tokenizes a text of one letter without end."""
    return wasm(
        main(
            f"""(memory.fill (i32.const 65536) (i32.const {ord(letter)}) (i32.const {size}))
            (drop (call $send (i32.const 65536) (i32.const 1)))
            (loop $next
              (drop (call $tokenize (i32.const 65536) (i32.const {size})
                                    (i32.const 0) (i32.const 0)))
              (br $next)) (i32.const 0)""",
            pages=1 + -(-size // 65_536),
        )
    )
