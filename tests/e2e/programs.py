"""Guests of the end-to-end tests, well-behaved and hostile."""

from wasmtime import wat2wasm

from tests.support.worker.guests import (
    DECODE,
    HELLO,
    SPIN,
    call,
    data,
    drop,
    forever,
    increased,
    main,
    module,
    times,
)
from tests.support.worker.snippets import CREATE, KV


def wasm(wat: str) -> bytes:
    return bytes(wat2wasm(wat))


HELLO_WASM = wasm(HELLO)
SPIN_WASM = wasm(SPIN)
DECODE_WASM = wasm(DECODE)

# Sleeps for a day.
HANG_WASM = wasm(main(f"{call('await', call('sleep', 86_400_000))} (i32.const 0)"))

# Sends its input back and exits with 7.
ECHO_WASM = wasm(main(f"{drop('send', 100, call('input_read', 100, 60000))} (i32.const 7)"))

# Sends "hello", logs "bye" and traps.
SPEAKER_WASM = wasm(
    main(
        f"{drop('send', 0, 5)} {drop('log', 2, 8, 3)} (unreachable)",
        data(0, "hello") + data(8, "bye"),
    )
)

# Logs "why", an error, and "more", which is none; exits with 1.
COMPLAINER_WASM = wasm(
    main(
        f"{drop('log', 3, 0, 3)} {drop('log', 1, 8, 4)} (i32.const 1)",
        data(0, "why") + data(8, "more"),
    )
)

# Sends every message that it receives, with the input closed logs "bye" and exits with 0.
PARROT_WASM = wasm(
    main(
        f"""(block $closed (loop $next
             (local.set $n {call("claim", "(call $recv)", 100, 60000)})
             (br_if $closed (i32.lt_s (local.get $n) (i32.const 0)))
             {drop("send", 100, "(local.get $n)")}
             (br $next)))
           {drop("log", 2, 0, 3)} (i32.const 0)""",
        data(0, "bye"),
        locals_="(local $n i32)",
    )
)

# Sleeps a while (300 ms), then decodes four tokens.
SLEEP_AND_DECODE_WASM = wasm(
    main(
        f"""{call("await", call("sleep", 300))} {CREATE}
           (i32.store (i32.const 0) (i32.const 7))
           (loop $more
             (local.set $got {call("claim", call("pred", KV, 0, 1, 0, 0, 0), 0, 8)})
             (if (i32.ne (local.get $got) (i32.const 8)) (then (return (i32.const 1))))
             (br_if $more (i32.lt_s {increased("$n")} (i32.const 4))))
           {drop("send", 0, 4)} (i32.const 0)""",
        locals_="(local $kv i32) (local $n i32) (local $got i32)",
    )
)

# Saves a file of three tokens as notes/first and a second one as notes/second.
SAVE_WASM = wasm(
    main(
        f"""{CREATE} {drop("claim", call("pred", KV, 0, 3, 0, 0, 0), 200, 8)}
           (if {call("kv_save", KV, 100, 11, 1)} (then (return (i32.const 1))))
           {call("kv_save", call("kv_fork", KV), 120, 12, 1)}""",
        data(0, b"\x07\0\0\0\x08\0\0\0\x09\0\0\0"),
        data(100, "notes/first"),
        data(120, "notes/second"),
        locals_="(local $kv i32)",
    )
)

# Two hundred messages of 16 KiB, then the end.
LETTER = "(i32.add (i32.const 97) (i32.rem_u (local.get $n) (i32.const 26)))"
CHATTY_WASM = wasm(
    main(
        times(200, f"(i32.store8 (i32.const 1000) {LETTER}) {drop('send', 1000, 16384)}")
        + "(i32.const 0)",
        data(1000, b"x" * 16384),
        locals_="(local $n i32)",
    )
)

# --- Hostile ones --------------------------------------------------------------------------------
ENDLESS_SEND_WASM = wasm(main(f"{forever(drop('send', 0, 60000))} (i32.const 0)"))
TRAP_WASM = wasm(main("(unreachable)"))
# Holds pages and files, then loops: what it held must come back when it is cancelled.
HOARDER_WASM = wasm(
    main(
        f"""{times(8, CREATE + drop("claim", call("pred", KV, 0, 64, 0, 0, 0), 2000, 8))}
           {drop("send", 3000, 4)} {forever("")} (i32.const 0)""",
        data(3000, "held"),
        locals_="(local $kv i32) (local $n i32)",
    )
)
REFUSED_WASM = wasm(
    module(
        '(func (export "lip_main") (result i32) (i32.const 0))',
        imports=[
            '(import "wasi_snapshot_preview1" "path_open" (func (param i32)))',
            '(import "env" "system" (func (param i32) (result i32)))',
            '(import "lip" "send" (func $send (param i32 i32) (result i32)))',
            '(import "lip" "wait" (func $wait (param i32 i32 i64) (result i32)))',
            '(import "lip" "take" (func $take (param i32 i32 i32) (result i32)))',
        ],
    )
)
