"""Parts of guests in WAT that several hostile ones have: a file, a pass, a sleep, a child.

A child's request lies at 100, its process's number comes to 200.
"""

import msgpack

CHILD = msgpack.packb({"entry": "child", "input": b""})
SPAWN = f"(call $spawn (i32.const 100) (i32.const {len(CHILD)}))"
SLEEP = "(call $await (call $sleep (i64.const 0x7fffffff)))"
CLAIM_PID = f"(drop (call $claim {SPAWN} (i32.const 200) (i32.const 4)))"
PRED = """(call $pred (local.get $kv) (i32.const 0) (i32.const 64) (i32.const 0) (i32.const 0)
  (i32.const 0))"""
CREATE = "(local.set $kv (call $kv_create))"


def child(body: str, locals_: str = "") -> str:
    """An entry for children; its last value is the exit code."""
    return f'(func (export "child") (result i32) {locals_} {body})'
