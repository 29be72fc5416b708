"""Two guests without an SDK for comparing the server with transformers, token by token."""

import msgpack

from tests.support.worker.guests import call, data, increased, main
from tests.support.worker.snippets import CREATE, KV

# 1 KiB: the prompt; 64 KiB: its tokens; 256 KiB: what comes out.
PROMPT = call("tokenize", 1024, call("input_read", 1024, 60000), 65536, 40000)
AT, N = "(local.get $at)", "(local.get $n)"


def greedy(count: int, *, waits: bool = False) -> str:
    """Return a guest that decodes `count` tokens after its input and sends them as u32.

    One that waits begins when it gets a message.
    """
    return main(
        f"""(local.set $n {PROMPT}) {call("await", "(call $recv)") if waits else ""} {CREATE}
    (local.set $at (i32.const 65536))
    (loop $next
      (if (i32.ne {call("claim", call("pred", KV, AT, N, 0, 0, 0), 8, 8)} (i32.const 8))
        (then (return (i32.const 1))))
      (local.set $at (i32.add (i32.const 262144) (i32.shl (local.get $i) (i32.const 2))))
      (i32.store {AT} (i32.load (i32.const 8)))
      (local.set $n (i32.const 1))
      (br_if $next (i32.lt_u {increased("$i")} (i32.const {count}))))
    (i32.shr_s {call("send", 262_144, 4 * count)} (i32.const 31))""",
        locals_="(local $kv i32) (local $n i32) (local $i i32) (local $at i32)",
        pages=8,
    )


def logits(place: str) -> str:
    """Return a guest that sends the logits over its input; `place` is "last" or "all"."""
    options = msgpack.packb({"at": place, "get": "logits"})
    pred = call("pred", "(call $kv_create)", 65536, PROMPT, 0, 16, len(options))
    return main(
        f"""(local.set $size {call("claim", pred, 262_144, 1_048_576)})
    (if (i32.lt_s (local.get $size) (i32.const 0)) (then (return (local.get $size))))
    (i32.shr_s {call("send", 262_144, "(local.get $size)")} (i32.const 31))""",
        data(16, options),
        locals_="(local $size i32)",
        pages=48,
    )
