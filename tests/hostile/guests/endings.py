"""Guests that end, or never do, at the moment that is worst for who must tidy up behind them."""

import msgpack
from symphony_kernel.protocol.errno import Errno

from tests.hostile.cases import Guest
from tests.support.worker.guests import LIP_IMPORTS, WASI_IMPORTS, data, main, module
from tests.support.worker.snippets import CHILD, CLAIM_PID, CREATE, PRED, SLEEP, SPAWN, child

GENERATE = """(call $generate (local.get $kv) (i32.const 0) (i32.const 4) (i32.const 0)
  (i32.const 0))"""
GRANTING = msgpack.packb(
    {"entry": "child", "input": b"", "grants": [{"handle": 65536, "rights": 31, "name": "file"}]}
)
HEIR = msgpack.packb({"entry": "heir", "input": b"x" * 60_000})
GRANTED_HEIR = msgpack.packb({**msgpack.unpackb(GRANTING), **msgpack.unpackb(HEIR)})
SPAWN_GRANTING = f"(call $spawn (i32.const 100) (i32.const {len(GRANTING)}))"
JOIN = """(drop (call $claim (call $join (i32.load (i32.const 200))) (i32.const 300)
  (i32.const 100)))"""
KV = "(local $kv i32) (local $n i32) (local $t i32)"
STAYS = child(f"{SLEEP} (i32.const 0)")
LEAVES = child("(i32.const 0)")


def forever(body: str, *parts: str, before: str = "") -> str:
    """A program that does something again and again."""
    return main(f"{before} (loop $l {body} (br $l)) (i32.const 0)", *parts, locals_=KV)


def spawn(at: int, what: bytes) -> str:
    """Start a child as memory at this place says."""
    return f"(call $spawn (i32.const {at}) (i32.const {len(what)}))"


def exits(tries: str, source: str, *sent: int) -> Guest:
    """One that comes to its end by itself."""
    return Guest(tries, source, "exited", sent=sent)


ENDINGS = {
    # -- Never ----------------------------------------------------------------------------------
    "sleeps": Guest("sleeps longer than anything runs", main(f"{SLEEP} (i32.const 0)")),
    "waits for nobody": Guest(
        "waits for a message that nobody sends",
        main("(call $await (call $recv)) (i32.const 0)"),
    ),
    "waits at a channel": Guest(
        "waits for an item that nobody sends",
        main(
            "(call $await (call $channel_recv (i32.const 0) (i32.const 1))) (i32.const 0)",
            data(0, "c"),
        ),
    ),
    "waits for itself": Guest(
        "waits at a channel for what it would send itself afterwards",
        main(
            """(drop (call $claim_within (call $channel_recv (i32.const 0) (i32.const 1))
                 (i32.const 8) (i32.const 8) (i64.const -1)))
               (drop (call $channel_send (i32.const 0) (i32.const 1) (i32.const 0) (i32.const 1)))
               (i32.const 0)""",
            data(0, "c"),
        ),
    ),
    "waits for much": Guest(
        "waits for thousands of tickets at once, each of them the same",
        main(
            """(local.set $t (call $sleep (i64.const 0x7fffffff)))
            (loop $more
              (i32.store (i32.shl (local.get $n) (i32.const 2)) (local.get $t))
              (br_if $more (i32.lt_s (local.tee $n (i32.add (local.get $n) (i32.const 1)))
                                     (i32.const 8192))))
            (drop (call $wait (i32.const 0) (i32.const 8192) (i64.const -1))) (i32.const 0)""",
            locals_=KV,
        ),
    ),
    "waits for a child that waits": Guest(
        "waits for a child, which waits for a message that it can never get",
        main(
            f"{CLAIM_PID} {JOIN} (i32.const 0)",
            data(100, CHILD),
            child(f"(call $await (call $recv)) {SLEEP} (i32.const 0)"),
        ),
    ),
    # -- In the middle --------------------------------------------------------------------------
    "with preds under way": exits(
        "exits while a hundred preds are computed",
        main(
            f"""(loop $more {CREATE} (drop {PRED})
              (br_if $more (i32.lt_s (local.tee $n (i32.add (local.get $n) (i32.const 1)))
                                     (i32.const 100))))
            (call $exit (i32.const 3)) (unreachable)""",
            locals_=KV,
        ),
    ),
    "with generations under way": exits(
        "exits while generations go on in files that it has closed",
        main(
            f"""(loop $more {CREATE} (drop {GENERATE}) (drop (call $kv_close (local.get $kv)))
              (br_if $more (i32.lt_s (local.tee $n (i32.add (local.get $n) (i32.const 1)))
                                     (i32.const 20))))
            (i32.const 0)""",
            locals_=KV,
        ),
    ),
    "traps with everything open": Guest(
        "traps with preds, generations, sleeps, channels and children under way",
        main(
            f"""{CREATE} (drop {PRED}) {CREATE} (drop {GENERATE}) (drop (call $recv))
            (drop (call $channel_recv (i32.const 0) (i32.const 1)))
            (drop (call $sleep (i64.const 9999999))) {CLAIM_PID} (drop {SPAWN}) (unreachable)""",
            data(0, "c"),
            data(100, CHILD),
            STAYS,
            locals_=KV,
        ),
        "trapped",
        "unreachable",
    ),
    "traps in a start function": Guest(
        "traps before it has begun, with calls under way",
        module(
            '(func (export "_start"))',
            "(func $f (drop (call $sleep (i64.const 99999))) (drop (call $kv_create))"
            " (drop (call $recv)) (unreachable))",
            "(start $f)",
        ),
        "trapped",
        "unreachable",
    ),
    "exits in a start function": exits(
        "exits before it has begun",
        module(
            '(func (export "_start") (unreachable))',
            "(func $f (drop (call $sleep (i64.const 99999))) (drop (call $kv_create))"
            " (call $exit (i32.const 1)))",
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
        forever(
            f"(drop (call $cancel {PRED})) (drop (call $cancel {GENERATE}))",
            before=CREATE,
        ),
    ),
    "cancels after it has closed": Guest(
        "closes the file of a generation, then cancels it",
        forever(
            f"""{CREATE} (local.set $t {GENERATE}) (drop (call $kv_close (local.get $kv)))
            (drop (call $cancel (local.get $t)))"""
        ),
    ),
    "cancels children": Guest(
        "starts children and cancels each before it lives",
        forever(f"(drop (call $cancel {SPAWN}))", data(100, CHILD), STAYS),
    ),
    "cancels joins": exits(
        "joins one child a thousand times and cancels all of it, then joins it twice",
        main(
            f"""{CLAIM_PID}
            (loop $more
              (drop (call $cancel (call $join (i32.load (i32.const 200)))))
              (br_if $more (i32.lt_s (local.tee $n (i32.add (local.get $n) (i32.const 1)))
                                     (i32.const 1000))))
            (local.set $t (call $join (i32.load (i32.const 200))))
            (drop (call $channel_send (i32.const 0) (i32.const 1) (i32.const 0) (i32.const 1)))
            {JOIN} (call $say (call $take (local.get $t) (i32.const 400) (i32.const 100)))
            (call $say (call $join (i32.load (i32.const 200)))) (i32.const 0)""",
            data(0, "c"),
            data(100, CHILD),
            child("(call $await (call $channel_recv (i32.const 0) (i32.const 1))) (i32.const 0)"),
            locals_=KV,
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
            locals_=KV,
        ),
    ),
    "grants and cancels": Guest(
        "grants a file to children and cancels each before it takes it up",
        forever(
            f"(drop (call $cancel {SPAWN_GRANTING}))", data(100, GRANTING), STAYS, before=CREATE
        ),
    ),
    "grants to the dead": exits(
        "grants a file to a child that has ended, and to itself, and to nobody",
        main(
            f"""{CREATE} {CLAIM_PID} {JOIN}
            (call $say (call $kv_grant (local.get $kv) (i32.load (i32.const 200)) (i32.const 1)
                                       (i32.const 0) (i32.const 1)))
            (call $say (call $kv_grant (local.get $kv) (i32.const 0) (i32.const 1)
                                       (i32.const 0) (i32.const 1)))
            (call $say (call $kv_grant (local.get $kv) (i32.const -1) (i32.const 1)
                                       (i32.const 0) (i32.const 1))) (i32.const 0)""",
            data(0, "n"),
            data(100, CHILD),
            LEAVES,
            locals_=KV,
        ),
        *[-Errno.ENOENT] * 3,
    ),
    "a family that dies out": Guest(
        "has many children one after the other, each of which leaves four of its own",
        main(
            f"""(loop $more {CLAIM_PID} {JOIN}
              (local.set $t (i32.add (local.get $t) (i32.load8_u (i32.const 306))))
              (br_if $more (i32.lt_s (local.tee $n (i32.add (local.get $n) (i32.const 1)))
                                     (i32.const 100))))
            (call $say (local.get $t)) (i32.const 0)""",
            data(100, CHILD),
            data(1000, HEIR),
            data(70_000, GRANTED_HEIR),
            # One that lives, one that is asked for, two whose grants are on their way: no more.
            child(
                f"""{CREATE} (drop (call $claim {spawn(1000, HEIR)} (i32.const 200) (i32.const 4)))
                (i32.or (i32.lt_s (i32.load (i32.const 200)) (i32.const 1))
                (i32.or (i32.lt_s {spawn(1000, HEIR)} (i32.const 1))
                (i32.or (i32.lt_s {spawn(70_000, GRANTED_HEIR)} (i32.const 1))
                        (i32.lt_s {spawn(70_000, GRANTED_HEIR)} (i32.const 1)))))""",
                KV,
            ),
            f'(func (export "heir") (result i32) {SLEEP} (i32.const 0))',
            locals_=KV,
        ),
        "exited",
        sent=(0,),
        limits={"tree_memory_bytes": 8 << 20},  # what all of them are given is several times that
    ),
    "a child that traps": exits(
        "has children that trap in the middle of calls",
        main(
            f"""(loop $more {CLAIM_PID} {JOIN}
              (br_if $more (i32.lt_s (local.tee $n (i32.add (local.get $n) (i32.const 1)))
                                     (i32.const 50))))
            (call $say (i32.load8_u (i32.const 307))) (i32.const 0)""",
            data(100, CHILD),
            child(
                f"{CREATE} (drop {PRED}) (drop (call $sleep (i64.const 9999))) (unreachable)", KV
            ),
            locals_=KV,
        ),
        134,
    ),
    "exits through another": exits(
        "has a child that exits through WASI, with a code that is no byte",
        module(
            f"""(func (export "lip_main") (result i32) {CLAIM_PID} {JOIN}
              (call $say (i32.load8_u (i32.const 306))) (i32.const 0))""",
            data(100, CHILD),
            child("(call $proc_exit (i32.const -1)) (i32.const 0)"),
            imports=[*LIP_IMPORTS, *WASI_IMPORTS],
        ),
        0xFF,  # -1, as MessagePack has it
    ),
    # -- Closed ---------------------------------------------------------------------------------
    "speaks to who has gone": exits(
        "sends items to a child that has stopped listening, and has ended",
        main(
            f"""{CLAIM_PID} {JOIN}
            (call $say (call $channel_send (i32.const 0) (i32.const 1) (i32.const 0)
                                           (i32.const 1)))
            (call $say (call $claim (call $channel_recv (i32.const 0) (i32.const 1))
                                    (i32.const 400) (i32.const 8))) (i32.const 0)""",
            data(0, "c"),
            data(100, CHILD),
            child("(drop (call $channel_recv (i32.const 0) (i32.const 1))) (i32.const 0)"),
        ),
        0,
        1,
    ),
    "a child that listens": exits(
        "has a child receive what only its parent could be sent",
        main(
            f"{CLAIM_PID} {JOIN} (call $say (i32.load8_u (i32.const 306))) (i32.const 0)",
            data(100, CHILD),
            child("(i32.sub (i32.const 0) (call $claim (call $recv) (i32.const 0) (i32.const 8)))"),
        ),
        Errno.EPIPE,
    ),
}
