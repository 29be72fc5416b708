"""Guests that compute for ever, each in another place where the engine might not interrupt them."""

from tests.hostile.cases import Guest
from tests.support.worker.guests import (
    ABORT_IMPORT,
    LIP_IMPORTS,
    WASI_IMPORTS,
    call,
    data,
    drop,
    forever,
    main,
    module,
)
from tests.support.worker.snippets import CREATE, KV

TARGETS = 4_000  # of the jump table
FRAME_VALUES = 17_000  # 16 bytes each, all of them needed behind a call: more than a guest's stack


def looping(body: str, *parts: str, pages: int = 2) -> str:
    """A program that does this for ever."""
    return main(f"{forever(body)} (i32.const 0)", *parts, pages=pages)


def storm(*calls: str) -> str:
    """Return a program that makes these calls for ever and ignores their answers."""
    body = forever("".join(f"(drop {each})" for each in calls))
    function = f'(func (export "lip_main") (result i32) {body} (i32.const 0))'
    return module(function, imports=[*LIP_IMPORTS, *WASI_IMPORTS, ABORT_IMPORT])


def jump_table() -> str:
    """A jump of thousands of targets, taken again and again, to places that look random."""
    blocks = "".join("(block " for _ in range(TARGETS))
    targets = " ".join(str(n) for n in range(TARGETS))
    step = "(local.tee $x (i32.add (i32.mul (local.get $x) (i32.const 1664525)) (i32.const 7)))"
    chosen = f"(i32.rem_u (i32.shr_u {step} (i32.const 8)) (i32.const {TARGETS}))"
    jump = f"(br_table {targets} {chosen})"
    body = f"(loop $l {blocks} {jump} {')' * TARGETS} (br $l)) (i32.const 0)"
    return main(body, locals_="(local $x i32)")


def large_frame() -> str:
    """A function whose one frame is larger than the whole stack, since a call stands in it."""
    values = range(1, FRAME_VALUES + 1)  # 0 is the parameter
    load = " ".join(f"(local.set {n} (v128.load offset={n} (local.get $at)))" for n in values)
    add = " ".join(f"(local.get {n}) i8x16.add" for n in values)
    return f"""(func $wide (param $at i32) (result i32) (local {"v128 " * FRAME_VALUES}) {load}
      (drop (call $clock_ms)) (v128.const i32x4 0 0 0 0) {add} (i8x16.extract_lane_u 0))"""


RECURSION = (
    "(func $down (param i32) (result i32) (i32.add (call $down (local.get 0)) (local.get 0)))"
)
SINGLE_TABLE = "(table 65536 funcref)"

LOOPS = {
    "plain": Guest("computes without a call", looping("")),
    "start function": Guest(
        "computes before its memory can be read",
        module('(func (export "_start"))', "(func $f (loop $l (br $l)))", "(start $f)"),
    ),
    "initialize": Guest(
        "computes where a reactor sets itself up",
        module('(func (export "_start"))', '(func (export "_initialize") (loop $l (br $l)))'),
    ),
    "fills": Guest(
        "fills all its memory again and again, each time in one instruction",
        looping("(memory.fill (i32.const 0) (i32.const 7) (i32.const 0x3e00000))", pages=1000),
    ),
    "copies": Guest(
        "copies its memory over itself, each time in one instruction",
        looping("(memory.copy (i32.const 1) (i32.const 0) (i32.const 0x3e00000))", pages=1000),
    ),
    "initialises memory": Guest(
        "writes a segment of a mebibyte again and again",
        looping(
            "(memory.init $d (i32.const 0) (i32.const 0) (i32.const 1048576))",
            f'(data $d "{"x" * (1 << 20)}")',
            pages=17,
        ),
    ),
    "fills a table": Guest(
        "fills the largest table there is, in one instruction",
        looping("(table.fill (i32.const 0) (ref.null func) (i32.const 65536))", SINGLE_TABLE),
    ),
    "copies a table": Guest(
        "copies the largest table there is over itself",
        looping("(table.copy (i32.const 1) (i32.const 0) (i32.const 65535))", SINGLE_TABLE),
    ),
    "initialises a table": Guest(
        "writes ten thousand functions into a table again and again",
        looping(
            "(table.init $e (i32.const 0) (i32.const 0) (i32.const 10000))",
            SINGLE_TABLE,
            "(func $f)",
            f"(elem $e func {'$f ' * 10_000})",
        ),
    ),
    "grows by nothing": Guest(
        "asks for no memory, and for all there is, again and again",
        looping("(drop (memory.grow (i32.const 0))) (drop (memory.grow (i32.const -1)))"),
    ),
    "jump table": Guest("jumps to thousands of places in turn", jump_table()),
    "calls through a table": Guest(
        "calls functions through a table, which call further ones",
        looping(
            "(drop (call_indirect (type $t) (i32.const 0)))",
            "(type $t (func (result i32))) (table 2 funcref) (elem (i32.const 0) $a $b)",
            "(func $a (type $t) (call_indirect (type $t) (i32.const 1)))",
            "(func $b (type $t) (i32.const 1))",
        ),
    ),
    "recursion": Guest(
        "calls itself without end",
        main("(call $down (i32.const 1))", RECURSION),
        "trapped",
        "stack overflow",
    ),
    "recursion in a start function": Guest(
        "calls itself without end before it has begun",
        module(
            '(func (export "_start"))',
            RECURSION,
            "(func $f (drop (call $down (i32.const 1))))",
            "(start $f)",
        ),
        "trapped",
        "stack overflow",
    ),
    "recursion through a table": Guest(
        "calls itself without end through a table",
        main(
            "(call_indirect (type $t) (i32.const 0))",
            "(type $t (func (result i32))) (table 1 funcref) (elem (i32.const 0) $a)",
            "(func $a (type $t) (i32.add (call_indirect (type $t) (i32.const 0)) (i32.const 1)))",
        ),
        "trapped",
        "stack overflow",
    ),
    "recursion and a call": Guest(
        "makes a call of the host from every depth of its stack",
        main(
            "(call $down (i32.const 1))",
            "(func $down (param i32) (result i32) (drop (call $clock_ms))"
            " (i32.add (call $down (local.get 0)) (local.get 0)))",
        ),
        "trapped",
        "stack overflow",
    ),
    "a frame larger than the stack": Guest(
        "calls a function with more local values than the stack has room for",
        main("(call $wide (i32.const 0))", large_frame()),
        "trapped",
        "stack overflow",
    ),
    "calls that do not wait": Guest(
        "makes every call that is answered at once",
        storm(
            call("clock_ms"),
            call("unix_ms"),
            call("random", 0, 65536),
            call("input_read", 0, 9),
            call("model_info", 0, 60000),
            call("last_error", 0, 9),
            call("sched_yield"),
            call("clock_time_get", 0, 0, 0),
            call("random_get", 0, 65536),
        ),
    ),
    "calls that fail": Guest(
        "makes calls with handles and tickets that were never given out",
        storm(
            call("kv_close", 65536),
            call("kv_fork", -1),
            call("take", 5, 0, 0),
            call("claim_within", 5, 0, 0, -1),
            call("wait", 0, 8192, 0),
            call("cancel", -7),
            call("join", 9),
            call("pred", 1, 0, 16000, 0, 0, 0),
            call("spawn", 0, 120000),
            call("fd_write", 1, 0, -1, 0),
        ),
    ),
    "logs": Guest(
        "writes a line again and again, also when the log is full",
        storm(call("log", 1, 0, 0), call("log", 3, 0, 100000), call("fd_write", 2, 0, 1024, 65532)),
    ),
    "sleeps for nothing": Guest(
        "starts and cancels sleeps without end",
        storm(call("cancel", call("sleep", 0x7FFFFFFFFFFFFFFF))),
    ),
    "asks the kernel": Guest(
        "makes calls that suspend it, without end",
        storm(
            call("kv_len", call("kv_create")),
            call("kv_close", call("kv_create")),
            call("kv_list", 0, 0, 0, 0),
            call("kv_granted", 0, 1),
            call("constraint_close", 1),
            call("kv_open", 0, 8, 31),
        ),
    ),
    "asks whether it is time": Guest(
        "waits without waiting, for a sleep that does not end",
        main(
            f"""(i32.store (i32.const 0) {call("sleep", 100_000)})
            {forever(drop("wait", 0, 1, 0))} (i32.const 0)"""
        ),
    ),
    "copies KV": Guest(
        "doubles a file, then copies all of it but the first entry into others, without end",
        main(
            f"""{CREATE}
            {drop("claim", call("pred", KV, 0, "(local.tee $n (i32.const 16))", 0, 0, 0), 0, 8)}
            (loop $d
              {drop("kv_append", KV, KV, 0, "(local.get $n)")}
              (br_if $d (i32.lt_u (local.tee $n (i32.shl (local.get $n) (i32.const 1)))
                                  (i32.const 16384))))
            (i32.store (i32.const 0) (i32.const 1)) (i32.store (i32.const 4) (local.get $n))
            {forever(drop("kv_close", call("kv_extract", KV, 0, 1)))} (i32.const 0)""",
            locals_="(local $kv i32) (local $n i32)",
        ),
    ),
    "many places": Guest(
        "asks for a million places in a pred of one token",
        main(
            f"{CREATE} {forever(drop('pred', KV, 0, 1, 0, 1000, 1_000_009))} (i32.const 0)",
            data(1000, b"\x81\xa2at\xdd\x00\x0f\x42\x40"),
            locals_="(local $kv i32)",
            pages=20,
        ),
    ),
    "listens and leaves": Guest(
        "asks for an item of a channel and cancels, without end",
        looping(drop("cancel", call("channel_recv", 0, 1)), data(0, "c")),
    ),
}
