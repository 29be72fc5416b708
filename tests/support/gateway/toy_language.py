"""The smallest language module: a toy language, whose programs are a few letters.

    p...   send the source
    h      make an HTTP request, and exit with the errno
    s...   spawn oneself with an input, and send the last 2 bytes of what the child sends
    f      fail with the reason "f"
    l      loop for ever

A source that begins with "!" is refused at its upload.
"""

from functools import lru_cache

from symphony_runtime.languages.language import Language
from wasmtime import wat2wasm

_SPAWN = r"\81\a5input\c4\01x"  # msgpack {"input": b"x"}
_REQUEST = r"\82\a6method\a3GET\a3url\b5https://example.test/"  # {"method": "GET", "url": ...}
_REQUEST = r"\82\a6method\a3GET\a3url\b5https://example.test/"  # {"method": "GET", "url": ...}
_WAT = rf"""(module
(import "lip" "input_read" (func $input_read (param i32 i32) (result i32)))
(import "lip" "send" (func $send (param i32 i32) (result i32)))
(import "lip" "spawn" (func $spawn (param i32 i32) (result i32)))
(import "lip" "join" (func $join (param i32) (result i32)))
(import "lip" "wait" (func $wait (param i32 i32 i64) (result i32)))
(import "lip" "take" (func $take (param i32 i32 i32) (result i32)))
(import "lip" "http" (func $http (param i32 i32) (result i32)))
(import "lip" "tool" (func $tool (param i32 i32) (result i32)))
(import "language" "source_read" (func $source_read (param i32 i32) (result i32)))
(import "language" "fail" (func $fail (param i32 i32)))
(memory (export "memory") 1)
(data (i32.const 0) "{_SPAWN}")
(data (i32.const 512) "{_REQUEST}")
(data (i32.const 512) "{_REQUEST}")
(data (i32.const 32) "line 1, column 1: no '!'")
(global $length (mut i32) (i32.const 0))
(func $first (result i32)
  (global.set $length (call $source_read (i32.const 1024) (i32.const 4096)))
  (i32.load8_u (i32.const 1024)))
(func $taken (param $ticket i32) (result i32)
  (i32.store (i32.const 64) (local.get $ticket))
  (drop (call $wait (i32.const 64) (i32.const 1) (i64.const -1)))
  (call $take (local.get $ticket) (i32.const 128) (i32.const 512)))
(func $say (result i32)
  (call $send (i32.const 1024) (global.get $length)))
(func (export "check") (result i32)
  (if (i32.eq (call $first) (i32.const 33)) (then (call $fail (i32.const 32) (i32.const 24))))
  (i32.const 0))
(func (export "lip_main") (result i32) (local $letter i32)
  (local.set $letter (call $first))
  (if (i32.eq (local.get $letter) (i32.const 112)) (then (return (call $say))))
  (if (i32.eq (local.get $letter) (i32.const 104))
    (then (return (i32.sub (i32.const 0)
      (call $taken (call $http (i32.const 512) (i32.const 38)))))))
  (if (i32.eq (local.get $letter) (i32.const 102))
    (then (call $fail (i32.const 1024) (i32.const 1))))
  (if (i32.eq (local.get $letter) (i32.const 108)) (then (loop $ever (br $ever))))
  (if (i32.eq (local.get $letter) (i32.const 115))
    (then
      (if (call $input_read (i32.const 0) (i32.const 0)) (then (return (call $say))))
      (drop (call $taken (call $spawn (i32.const 0) (i32.const 10))))
      (drop (call $send
        (i32.add (i32.const 126) (call $taken (call $join (i32.load (i32.const 128)))))
        (i32.const 2)))))
  (i32.const 0)))"""


@lru_cache
def module() -> bytes:
    return bytes(wat2wasm(_WAT))


TOY = Language("toy", ("text/x-toy",), (".toy",), "#", module)
