"""Parts of guests in WAT that several hostile ones have: a file, a pass, a sleep, a child.

A child's request lies at 100, its process's number comes to 200, and what it left to 300.
"""

import msgpack

from tests.support.worker.guests import call, drop

CHILD = msgpack.packb({"entry": "child", "input": b""})
SPAWN = call("spawn", 100, len(CHILD))
SLEEP = call("await", call("sleep", 0x7FFFFFFF))
CLAIM_PID = drop("claim", SPAWN, 200, 4)
JOIN = drop("claim", call("join", "(i32.load (i32.const 200))"), 300, 100)
CODE = "(i32.load8_u (i32.const 306))"  # of a child that was joined, if it is a small number
KV = "(local.get $kv)"
PRED = call("pred", KV, 0, 64, 0, 0, 0)
CREATE = "(local.set $kv (call $kv_create))"


def child(body: str, locals_: str = "") -> str:
    """An entry for children; its last value is the exit code."""
    return f'(func (export "child") (result i32) {locals_} {body})'
