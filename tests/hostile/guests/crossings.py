"""Guests that cross to the worker where that is thinnest: early, deep and at the edges."""

from symphony_kernel.protocol.errno import Errno

from tests.hostile.cases import Guest
from tests.support.worker.guests import (
    LIP_IMPORTS,
    WASI_IMPORTS,
    call,
    drop,
    main,
    module,
    say,
)

NOTHING = '(func (export "lip_main") (result i32) (i32.const 0))'
END = "(i32.mul (memory.size) (i32.const 65536))"
RANDOM = drop("random", 0, 8)


def begins(body: str, *parts: str, pages: int = 2) -> str:
    """Return a program whose start function does it, before its memory's handle exists."""
    return module(f"(func $begin {body}) (start $begin)", NOTHING, *parts, pages=pages)


def random(pointer: str, length: int) -> str:
    """Tell what a call says that is to write so many bytes there."""
    return say(call("random", pointer, length))


def before_end(bytes_: int) -> str:
    """So many bytes before memory's end, as it is then."""
    return f"(i32.sub {END} (i32.const {bytes_}))"


EDGES = (
    random(before_end(4), 4)
    + random(before_end(3), 4)
    + random(END, 1)
    + random("(i32.const -1)", -1)
)
AT_EDGES = (0, -Errno.EFAULT, -Errno.EFAULT, -Errno.EFAULT)
GROW = "(loop $l (br_if $l (i32.ne (memory.grow (i32.const 1)) (i32.const -1))))"
CROSSINGS = {
    "is an import": Guest(
        "has an import for its entry, which is called with nothing of a program's on the stack",
        module('(export "lip_main" (func $sched_yield))', imports=LIP_IMPORTS + WASI_IMPORTS),
        "exited",
        sent=(),
    ),
    "waits in its start": Guest(
        "waits in its start function for what never comes, and is killed there",
        begins("(call $await (call $recv))"),
    ),
    "writes in its start": Guest(
        "has a memory of nothing that grows in its start function, and writes at its edges",
        begins(f"(drop (memory.grow (i32.const 3))) {EDGES}", pages=0),
        "exited",
        sent=AT_EDGES,
    ),
    "grows between calls": Guest(
        "grows as far as it can behind a call, and writes at the edges",
        main(f"{RANDOM} {GROW} {EDGES} (i32.const 0)"),
        "exited",
        sent=AT_EDGES,
    ),
    "calls through a table": Guest(
        "calls an import that it has as an element, from ever deeper, until it leaves from there",
        main(
            "(call $down (i32.const 500)) (i32.const 0)",
            """(table 2 funcref) (elem (i32.const 0) $random $exit)
            (type $random_type (func (param i32 i32) (result i32)))
            (type $exit_type (func (param i32)))
            (func $down (param $left i32)
              (drop (call_indirect (type $random_type) (i32.const 0) (i32.const 8) (i32.const 0)))
              (if (i32.eqz (local.get $left))
                (then (call_indirect (type $exit_type) (i32.const 0) (i32.const 1))))
              (call $down (i32.sub (local.get $left) (i32.const 1))))""",
        ),
        "exited",
        sent=(),
    ),
    "waits at the bottom": Guest(
        "suspends on every level of its stack, until there is none left",
        main(
            "(call $down) (i32.const 0)",
            f"(func $down (call $await (call $sleep (i64.const 0))) (call $down) {RANDOM})",
        ),
        "trapped",
        "stack overflow",
    ),
}
