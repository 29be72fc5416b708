"""Guests that generate behind the token 7."""

import struct
from typing import Any

import msgpack

from tests.support.worker.guests import Step, call, data, drop, main, result

AT, OPTIONS, ROOM = 0, 1024, 2048  # in a guest's memory: prompt, options, records


def given(**options: Any) -> bytes:
    """Options, to be put at OPTIONS."""
    packed: bytes = msgpack.packb(options) if options else b""
    return packed


def parts(options: bytes) -> tuple[str, ...]:
    """The prompt [7] and options in memory."""
    return data(AT, struct.pack("<I", 7)), data(OPTIONS, options)


def generate(options: bytes, kv: str = result(0)) -> Step:
    """A script's step."""
    return ("generate", kv, AT, 1, OPTIONS, len(options))


def begin(options: bytes, kv: str) -> str:
    """An expression that starts a generation and gives its ticket."""
    return call("generate", kv, AT, 1, OPTIONS, len(options))


def taker(options: bytes, capacity: int) -> str:
    """A guest that sends what each take gives, until the end; its exit code is the end."""
    return main(
        f"""
        (local.set $t {begin(options, "(call $kv_create)")})
        (loop $next
          (local.set $n {call("claim", "(local.get $t)", ROOM, capacity)})
          (if (i32.gt_s (local.get $n) (i32.const 0))
            (then {drop("send", ROOM, "(local.get $n)")} (br $next))))
        (local.get $n)""",
        *parts(options),
        locals_="(local $t i32) (local $n i32)",
    )


def repeater(options: bytes, times: int) -> str:
    """A guest that generates so many times in one file, and exits with 0."""
    return main(
        f"""
        (local.set $kv (call $kv_create))
        (local.set $left (i32.const {times}))
        (loop $next
          (local.set $t {begin(options, "(local.get $kv)")})
          (loop $more
            (local.set $n {call("claim", "(local.get $t)", ROOM, 8)})
            (br_if $more (i32.gt_s (local.get $n) (i32.const 0))))
          (if (i32.lt_s (local.get $n) (i32.const 0)) (then (return (local.get $n))))
          (drop (call $kv_truncate (local.get $kv) (i32.const 0)))
          (br_if $next (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))
        (i32.const 0)""",
        *parts(options),
        locals_="(local $kv i32) (local $t i32) (local $n i32) (local $left i32)",
    )


def abuser(options: bytes, rest: str) -> str:
    """A guest that begins to generate in $kv, says so, and does something worse."""
    return main(
        f"""
        (local.set $kv (call $kv_create))
        (local.set $t {begin(options, "(local.get $kv)")})
        (call $say (local.get $t))
        {rest}""",
        *parts(options),
        locals_="(local $kv i32) (local $t i32) (local $n i32)",
    )


def ids(records: bytes) -> list[int]:
    """The records' tokens."""
    return [token for token, _ in struct.iter_unpack("<If", records)]
