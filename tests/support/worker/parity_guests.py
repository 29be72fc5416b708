"""Two guests without an SDK for comparing the server with transformers, token by token."""

import msgpack

IMPORTS = """
  (import "lip" "input_read" (func $input_read (param i32 i32) (result i32)))
  (import "lip" "tokenize" (func $tokenize (param i32 i32 i32 i32) (result i32)))
  (import "lip" "kv_create" (func $kv_create (result i32)))
  (import "lip" "pred" (func $pred (param i32 i32 i32 i32 i32 i32) (result i32)))
  (import "lip" "wait" (func $wait (param i32 i32 i64) (result i32)))
  (import "lip" "take" (func $take (param i32 i32 i32) (result i32)))
  (import "lip" "send" (func $send (param i32 i32) (result i32)))
  (import "lip" "recv" (func $recv (result i32)))"""

# 0: the ticket; 8: a result; 1 KiB: the prompt; 64 KiB: its tokens; 256 KiB: what comes out.
PROMPT = """(call $tokenize
      (i32.const 1024) (call $input_read (i32.const 1024) (i32.const 60000))
      (i32.const 65536) (i32.const 40000))"""


def greedy(count: int, *, waits: bool = False) -> str:
    """Return a guest that decodes `count` tokens after its input and sends them as u32.

    One that waits begins when it gets a message.
    """
    message = """
    (i32.store (i32.const 0) (call $recv))
    (drop (call $wait (i32.const 0) (i32.const 1) (i64.const -1)))"""
    return f"""(module {IMPORTS}
  (memory (export "memory") 8)
  (func (export "lip_main") (result i32)
    (local $kv i32) (local $n i32) (local $i i32) (local $at i32)
    (local.set $n {PROMPT}){message if waits else ""}
    (local.set $kv (call $kv_create))
    (local.set $at (i32.const 65536))
    (loop $next
      (i32.store (i32.const 0) (call $pred (local.get $kv) (local.get $at) (local.get $n)
        (i32.const 0) (i32.const 0) (i32.const 0)))
      (drop (call $wait (i32.const 0) (i32.const 1) (i64.const -1)))
      (if (i32.ne (call $take (i32.load (i32.const 0)) (i32.const 8) (i32.const 8)) (i32.const 8))
        (then (return (i32.const 1))))
      (local.set $at (i32.add (i32.const 262144) (i32.shl (local.get $i) (i32.const 2))))
      (i32.store (local.get $at) (i32.load (i32.const 8)))
      (local.set $n (i32.const 1))
      (local.set $i (i32.add (local.get $i) (i32.const 1)))
      (br_if $next (i32.lt_u (local.get $i) (i32.const {count}))))
    (i32.shr_s (call $send (i32.const 262144) (i32.const {4 * count})) (i32.const 31))))"""


def logits(place: str) -> str:
    """Return a guest that sends the logits over its input; `place` is "last" or "all"."""
    options = msgpack.packb({"at": place, "get": "logits"})
    data = "".join(f"\\{byte:02x}" for byte in options)
    return f"""(module {IMPORTS}
  (memory (export "memory") 48)
  (data (i32.const 16) "{data}")
  (func (export "lip_main") (result i32) (local $size i32)
    (i32.store (i32.const 0) (call $pred (call $kv_create) (i32.const 65536) {PROMPT}
      (i32.const 0) (i32.const 16) (i32.const {len(options)})))
    (drop (call $wait (i32.const 0) (i32.const 1) (i64.const -1)))
    (local.set $size (call $take (i32.load (i32.const 0)) (i32.const 262144) (i32.const 1048576)))
    (if (i32.lt_s (local.get $size) (i32.const 0)) (then (return (local.get $size))))
    (i32.shr_s (call $send (i32.const 262144) (local.get $size)) (i32.const 31))))"""
