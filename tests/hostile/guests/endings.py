"""Guests that end, or never do, at the moment that is worst for what must be tidied up."""

import msgpack
from symphony_kernel.protocol.errno import Errno

from tests.hostile.cases import Guest
from tests.support.worker import guests
from tests.support.worker.guests import (
    LIP_IMPORTS,
    WASI_IMPORTS,
    call,
    data,
    drop,
    main,
    module,
    say,
    times,
)
from tests.support.worker.snippets import (
    CHILD,
    CLAIM_PID,
    CODE,
    CREATE,
    JOIN,
    KV,
    PRED,
    SLEEP,
    SPAWN,
    child,
)

GENERATE = call("generate", KV, 0, 4, 0, 0)
GRANTING = msgpack.packb(
    {"entry": "child", "input": b"", "grants": [{"handle": 65536, "rights": 31, "name": "file"}]}
)
HEIR = msgpack.packb({"entry": "heir", "input": b"x" * 60_000})
GRANTED_HEIR = msgpack.packb({**msgpack.unpackb(GRANTING), **msgpack.unpackb(HEIR)})
SPAWN_GRANTING = call("spawn", 100, len(GRANTING))
SPAWN_HEIR = call("spawn", 1000, len(HEIR))
SPAWN_GRANTED_HEIR = call("spawn", 70_000, len(GRANTED_HEIR))
LOCALS = "(local $kv i32) (local $n i32) (local $t i32)"
PID = "(i32.load (i32.const 200))"
LISTEN = call("channel_recv", 0, 1)
STAYS = child(f"{SLEEP} (i32.const 0)")
LEAVES = child("(i32.const 0)")


def forever(body: str, *parts: str, before: str = "") -> str:
    """A program that does something again and again."""
    return main(f"{before} {guests.forever(body)} (i32.const 0)", *parts, locals_=LOCALS)


def exits(tries: str, source: str, *sent: int) -> Guest:
    """One that comes to its end by itself."""
    return Guest(tries, source, "exited", sent=sent)


ENDINGS = {
    # -- Never ----------------------------------------------------------------------------------
    "sleeps": Guest("sleeps longer than anything runs", main(f"{SLEEP} (i32.const 0)")),
    "waits for a message": Guest(
        "waits for a message that is never sent",
        main(f"{call('await', call('recv'))} (i32.const 0)"),
    ),
    "waits at a channel": Guest(
        "waits for an item that is never sent",
        main(f"{call('await', LISTEN)} (i32.const 0)", data(0, "c")),
    ),
    "waits for itself": Guest(
        "waits at a channel for what it would send itself afterwards",
        main(
            f"""{drop("claim_within", LISTEN, 8, 8, -1)} {drop("channel_send", 0, 1, 0, 1)}
            (i32.const 0)""",
            data(0, "c"),
        ),
    ),
    "waits for much": Guest(
        "waits for thousands of tickets at once, each of them the same",
        main(
            f"""(local.set $t {call("sleep", 0x7FFFFFFF)})
            {times(8192, "(i32.store (i32.shl (local.get $n) (i32.const 2)) (local.get $t))")}
            {drop("wait", 0, 8192, -1)} (i32.const 0)""",
            locals_=LOCALS,
        ),
    ),
    "waits for a child that waits": Guest(
        "waits for a child, which waits for a message that it can never get",
        main(
            f"{CLAIM_PID} {JOIN} (i32.const 0)",
            data(100, CHILD),
            child(f"{call('await', call('recv'))} {SLEEP} (i32.const 0)"),
        ),
    ),
    # -- In the middle --------------------------------------------------------------------------
    "with preds under way": exits(
        "exits while a hundred preds are computed",
        main(
            f"{times(100, f'{CREATE} (drop {PRED})')} {call('exit', 3)} (unreachable)",
            locals_=LOCALS,
        ),
    ),
    "with generations under way": exits(
        "exits while generations go on in files that it has closed",
        main(
            f"""{times(20, f"{CREATE} (drop {GENERATE}) {drop('kv_close', KV)}")}
            (i32.const 0)""",
            locals_=LOCALS,
        ),
    ),
    "traps with everything open": Guest(
        "traps with preds, generations, sleeps, channels and children under way",
        main(
            f"""{CREATE} (drop {PRED}) {CREATE} (drop {GENERATE}) {drop("recv")}
            (drop {LISTEN}) {drop("sleep", 9999999)} {CLAIM_PID} (drop {SPAWN})
            (unreachable)""",
            data(0, "c"),
            data(100, CHILD),
            STAYS,
            locals_=LOCALS,
        ),
        "trapped",
        "unreachable",
    ),
    "traps in a start function": Guest(
        "traps before it has begun, with calls under way",
        module(
            '(func (export "_start"))',
            f"(func $f {drop('sleep', 99999)} {drop('kv_create')} {drop('recv')} (unreachable))",
            "(start $f)",
        ),
        "trapped",
        "unreachable",
    ),
    "exits in a start function": exits(
        "exits before it has begun",
        module(
            '(func (export "_start") (unreachable))',
            f"(func $f {drop('sleep', 99999)} {drop('kv_create')} {call('exit', 1)})",
            "(start $f)",
        ),
    ),
    "exits while it is set up": exits(
        "exits through WASI where a reactor sets itself up",
        module(
            '(func (export "_start") (unreachable))',
            '(func (export "_initialize") (call $proc_exit (i32.const 0)))',
            imports=[*LIP_IMPORTS, *WASI_IMPORTS],
        ),
    ),
    # -- Cancelled ------------------------------------------------------------------------------
    "cancels preds": Guest(
        "starts preds and generations and cancels each at once",
        forever(drop("cancel", PRED) + drop("cancel", GENERATE), before=CREATE),
    ),
    "cancels after it has closed": Guest(
        "closes the file of a generation, then cancels it",
        forever(
            f"""{CREATE} (local.set $t {GENERATE}) {drop("kv_close", KV)}
            {drop("cancel", "(local.get $t)")}"""
        ),
    ),
    "cancels children": Guest(
        "starts children and cancels each before it lives",
        forever(drop("cancel", SPAWN), data(100, CHILD), STAYS),
    ),
    "cancels joins": exits(
        "joins one child a thousand times and cancels all of it, then joins it twice",
        main(
            f"""{CLAIM_PID} {times(1000, drop("cancel", call("join", PID)))}
            (local.set $t {call("join", PID)}) {drop("channel_send", 0, 1, 0, 1)}
            {JOIN} {say(call("take", "(local.get $t)", 400, 100))}
            {say(call("join", PID))} (i32.const 0)""",
            data(0, "c"),
            data(100, CHILD),
            child(f"{call('await', LISTEN)} (i32.const 0)"),
            locals_=LOCALS,
        ),
        len(msgpack.packb({"code": 0, "output": b""})),
        -Errno.ENOENT,
    ),
    # -- Families -------------------------------------------------------------------------------
    "leaves its children": exits(
        "ends at once behind the spawns of twenty children",
        main(20 * f"(drop {SPAWN})" + "(i32.const 0)", data(100, CHILD), STAYS),
    ),
    "leaves children with files": exits(
        "grants a file to children that it does not wait for, and ends",
        main(
            f"{CREATE} {20 * f'(drop {SPAWN_GRANTING})'} (i32.const 0)",
            data(100, GRANTING),
            STAYS,
            locals_=LOCALS,
        ),
    ),
    "grants and cancels": Guest(
        "grants a file to children and cancels each before it takes it up",
        forever(drop("cancel", SPAWN_GRANTING), data(100, GRANTING), STAYS, before=CREATE),
    ),
    "grants to the dead": exits(
        "grants a file to a child that has ended, and to itself, and to a child that never was",
        main(
            f"""{CREATE} {CLAIM_PID} {JOIN}
            {say(call("kv_grant", KV, PID, 1, 0, 1))} {say(call("kv_grant", KV, 0, 1, 0, 1))}
            {say(call("kv_grant", KV, -1, 1, 0, 1))} (i32.const 0)""",
            data(0, "n"),
            data(100, CHILD),
            LEAVES,
            locals_=LOCALS,
        ),
        *[-Errno.ENOENT] * 3,
    ),
    "a family that dies out": Guest(
        "has many children one after the other, each of which leaves four of its own",
        main(
            f"""{times(100, f"{CLAIM_PID} {JOIN} (local.set $t (i32.add (local.get $t) {CODE}))")}
            {say("(local.get $t)")} (i32.const 0)""",
            data(100, CHILD),
            data(1000, HEIR),
            data(70_000, GRANTED_HEIR),
            # One that lives, one that is asked for, two whose grants are on their way: no more.
            child(
                f"""{CREATE} {drop("claim", SPAWN_HEIR, 200, 4)}
                (i32.or (i32.lt_s {PID} (i32.const 1))
                (i32.or (i32.lt_s {SPAWN_HEIR} (i32.const 1))
                (i32.or (i32.lt_s {SPAWN_GRANTED_HEIR} (i32.const 1))
                        (i32.lt_s {SPAWN_GRANTED_HEIR} (i32.const 1)))))""",
                LOCALS,
            ),
            f'(func (export "heir") (result i32) {SLEEP} (i32.const 0))',
            locals_=LOCALS,
        ),
        "exited",
        sent=(0,),
        limits={"tree_memory_bytes": 8 << 20},  # what all of them are given is several times that
    ),
    "a child that traps": exits(
        "has children that trap in the middle of calls",
        main(
            f"""{times(50, CLAIM_PID + JOIN)}
            {say("(i32.load8_u (i32.const 307))")} (i32.const 0)""",
            data(100, CHILD),
            child(f"{CREATE} (drop {PRED}) {drop('sleep', 9999)} (unreachable)", LOCALS),
            locals_=LOCALS,
        ),
        134,
    ),
    "exits through another": exits(
        "has a child that exits through WASI, with a code that is no byte",
        module(
            f"""(func (export "lip_main") (result i32) {CLAIM_PID} {JOIN}
              {say(CODE)} (i32.const 0))""",
            data(100, CHILD),
            child(f"{call('proc_exit', -1)} (i32.const 0)"),
            imports=[*LIP_IMPORTS, *WASI_IMPORTS],
        ),
        0xFF,  # -1, as MessagePack has it
    ),
    # -- Closed ---------------------------------------------------------------------------------
    "speaks to who has gone": exits(
        "sends items to a child that has stopped listening, and has ended",
        main(
            f"""{CLAIM_PID} {JOIN} {say(call("channel_send", 0, 1, 0, 1))}
            {say(call("claim", LISTEN, 400, 8))} (i32.const 0)""",
            data(0, "c"),
            data(100, CHILD),
            child(f"(drop {LISTEN}) (i32.const 0)"),
        ),
        0,
        1,
    ),
    "a child that listens": exits(
        "has a child receive what only its parent could be sent",
        main(
            f"{CLAIM_PID} {JOIN} {say(CODE)} (i32.const 0)",
            data(100, CHILD),
            child(f"(i32.sub (i32.const 0) {call('claim', call('recv'), 0, 8)})"),
        ),
        Errno.EPIPE,
    ),
}
