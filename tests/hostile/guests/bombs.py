"""Guests that take all they can get of one thing: they are told when it is enough, or are ended."""

import msgpack
from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.limits import (
    INSTANCE_HANDLES_MAX,
    MESSAGE_BYTES_MAX,
    RUN_CHILD_DEPTH_MAX,
    RUN_CHILDREN_MAX,
    RUN_MEMORY_BYTES_MAX,
    RUN_RESULT_BYTES_MAX,
    RUN_TICKETS_MAX,
    TABLE_ELEMENTS_MAX,
)

from tests.hostile.cases import Guest
from tests.support.worker.guests import (
    PAGE_BYTES,
    call,
    data,
    drop,
    forever,
    increased,
    main,
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

EAGAIN, ENOMEM, EDQUOT, EFBIG = -Errno.EAGAIN, -Errno.ENOMEM, -Errno.EDQUOT, -Errno.EFBIG
LARGE = msgpack.packb({"at": "all", "get": {"top": 256}})  # of 512 tokens: a mebibyte


def until_refused(asked: str, *parts: str, before: str = "", pages: int = 2) -> str:
    """Make a call until its result is negative; say how often it was not, and the result."""
    return main(
        f"""{before}
        (loop $more
          (local.set $got {asked})
          (if (i32.ge_s (local.get $got) (i32.const 0)) (then (drop {increased("$n")}) (br $more))))
        {say("(local.get $n)")} {say("(local.get $got)")} (i32.const 0)""",
        *parts,
        locals_="(local $n i32) (local $got i32) (local $kv i32)",
        pages=pages,
    )


def limited(tries: str, source: str, *sent: int, **limits: int) -> Guest:
    """One that is refused at some point, says after how many and why, and ends by itself."""
    return Guest(tries, source, "exited", sent=sent, limits=limits)


BOMBS = {
    # -- Memory ---------------------------------------------------------------------------------
    "memory": limited(
        "grows its memory until it is refused",
        until_refused("(memory.grow (i32.const 1))"),
        RUN_MEMORY_BYTES_MAX // PAGE_BYTES - 2,
        -1,
    ),
    "memory of a small run": limited(
        "grows its memory past a limit of the run's own",
        until_refused("(memory.grow (i32.const 1))"),
        14,
        -1,
        memory_bytes=16 * PAGE_BYTES,
    ),
    "memory of children": Guest(
        "has children that each take all the memory that one may have",
        main(
            6 * CLAIM_PID + SLEEP + "(i32.const 0)",
            data(100, CHILD),
            child(f"(drop (memory.grow (i32.const 1000))) {SLEEP} (i32.const 0)"),
        ),
        "killed",
        "memory limit",
    ),
    "a table": limited(
        "grows a table until it is refused",
        until_refused("(table.grow (ref.null func) (i32.const 1000))", "(table 0 funcref)"),
        TABLE_ELEMENTS_MAX // 1000,
        -1,
    ),
    "a table from the start": Guest(
        "begins with a table larger than any may be",
        main("(i32.const 0)", f"(table {TABLE_ELEMENTS_MAX + 1} funcref)"),
        "killed",
        "limit",
    ),
    # -- Tickets --------------------------------------------------------------------------------
    "sleeps": limited(
        "starts sleeps and forgets them",
        until_refused(call("sleep", 0x7FFFFFFF)),
        RUN_TICKETS_MAX,
        EAGAIN,
    ),
    "receives": limited(
        "waits for messages that are never sent, in ever more places",
        until_refused(call("recv")),
        RUN_TICKETS_MAX,
        EAGAIN,
    ),
    "channels": limited(
        "waits for items that could be large, at ever more channels",
        until_refused(call("channel_recv", 0, 1), data(0, "c")),
        RUN_RESULT_BYTES_MAX // MESSAGE_BYTES_MAX,
        ENOMEM,
    ),
    "preds": limited(
        "makes preds whose results it never takes",
        until_refused(call("pred", KV, 0, 1, 0, 0, 0), before=CREATE),
        RUN_TICKETS_MAX,
        EAGAIN,
    ),
    "results": limited(
        "keeps the largest results that there are",
        until_refused(
            call("pred", KV, 0, 512, 0, 4000, len(LARGE)), data(4000, LARGE), before=CREATE
        ),
        RUN_RESULT_BYTES_MAX // (512 * 256 * 8),
        ENOMEM,
    ),
    "generations": Guest(
        "starts generations in many files and takes none of their tokens",
        main(
            f"{times(100, CREATE + drop('generate', KV, 0, 4, 0, 0))} {SLEEP} (i32.const 0)",
            locals_="(local $kv i32) (local $n i32)",
        ),
    ),
    # -- KV -------------------------------------------------------------------------------------
    "handles": limited(
        "makes files until it is refused",
        until_refused(call("kv_create")),
        INSTANCE_HANDLES_MAX,
        EDQUOT,
    ),
    "forks": limited(
        "forks a file until it is refused",
        until_refused(call("kv_fork", KV), before=CREATE),
        INSTANCE_HANDLES_MAX - 1,
        EDQUOT,
    ),
    "entries": limited(
        "fills files past what its run may hold",
        until_refused(f"(block (result i32) {CREATE} {call('claim', PRED, 1000, 8)})"),
        4,
        EDQUOT,
        kv_tokens=256,
    ),
    "a file that doubles": Guest(
        "appends a file to itself until it is larger than any may be",
        main(
            f"""{CREATE} {drop("claim", PRED, 1000, 8)}
            (local.set $n (i32.const 64))
            (loop $more
              {drop("kv_append", KV, KV, 0, "(local.get $n)")}
              (local.set $n (i32.shl (local.get $n) (i32.const 1)))
              (br_if $more (i32.gt_s (local.tee $got {call("kv_len", KV)}) (i32.const 0))))
            {say("(local.get $got)")} (i32.const 0)""",
            locals_="(local $kv i32) (local $n i32) (local $got i32)",
        ),
        "exited",
        sent=(EFBIG,),
    ),
    "grants": Guest(
        "leaves its parent ever more files, under names that it does not take up",
        main(
            f"{CLAIM_PID} {JOIN} {say(CODE)} (i32.const 0)",
            data(100, CHILD),
            # The name is the number, seven bits to a byte. It tells whether it was as it must be.
            child(
                f"""{CREATE}
                (loop $more
                  (i32.store (i32.const 0) (i32.or (i32.or (i32.const 0x20202020)
                    (i32.and (local.get $n) (i32.const 31))) (i32.or
                    (i32.shl (i32.and (local.get $n) (i32.const 0x3e0)) (i32.const 3))
                    (i32.shl (i32.and (local.get $n) (i32.const 0x7c00)) (i32.const 6)))))
                  (local.set $got {call("kv_grant", KV, 0, 1, 0, 4)})
                  (if (i32.eqz (local.get $got)) (then (drop {increased("$n")}) (br $more))))
                (i32.and (i32.eq (local.get $n) (i32.const {INSTANCE_HANDLES_MAX}))
                         (i32.eq (local.get $got) (i32.const {EDQUOT})))""",
                "(local $n i32) (local $got i32) (local $kv i32)",
            ),
        ),
        "exited",
        sent=(1,),
    ),
    # -- Children -------------------------------------------------------------------------------
    "children": limited(
        "has children until it is refused",
        until_refused(SPAWN, data(100, CHILD), child(f"{SLEEP} (i32.const 0)")),
        RUN_CHILDREN_MAX,
        EDQUOT,
    ),
    "grandchildren": Guest(
        "has a child that has a child, and so on; each counts those below it",
        main(
            f"{CLAIM_PID} {JOIN} {say(CODE)} (i32.const 0)",
            data(100, CHILD),
            child(
                f"""(if (i32.eq (local.tee $t {SPAWN}) (i32.const {EDQUOT}))
                  (then (return (i32.const 1))))
                {drop("claim", "(local.get $t)", 200, 4)} {JOIN}
                (i32.add {CODE} (i32.const 1))""",
                "(local $t i32)",
            ),
        ),
        "exited",
        sent=(RUN_CHILD_DEPTH_MAX,),
    ),
    "a fork bomb": Guest(
        "has two children that have two children, and so on, and all of them stay",
        main(
            f"(drop {SPAWN}) (drop {SPAWN}) {SLEEP} (i32.const 0)",
            data(100, CHILD),
            child(f"(drop {SPAWN}) (drop {SPAWN}) {SLEEP} (i32.const 0)"),
        ),
    ),
    "a fork bomb that leaves": Guest(
        "has children that have children, and each ends as soon as it has begun",
        main(
            f"{forever(CLAIM_PID)} (i32.const 0)",
            data(100, CHILD),
            child(f"(drop {SPAWN}) (drop {SPAWN}) (i32.const 0)"),
        ),
        limits={"cpu_ms": 60_000},
    ),
    # -- Words ----------------------------------------------------------------------------------
    "output": Guest(
        "sends without end",
        main(f"{forever(drop('send', 0, 60000))} (i32.const 0)"),
        "killed",
        "output limit",
    ),
    "messages": Guest(
        "sends nothing, without end",
        main(f"{forever(drop('send', 0, 0))} (i32.const 0)"),
        "killed",
        "sent more than",
    ),
    "output of children": Guest(
        "has children that each send as much as a run may",
        main(
            9 * CLAIM_PID + SLEEP + "(i32.const 0)",
            data(100, CHILD),
            child(
                f"""(drop (memory.grow (i32.const 16)))
                {drop("send", 0, MESSAGE_BYTES_MAX)} {SLEEP} (i32.const 0)"""
            ),
        ),
        "killed",
        "output limit",
    ),
    # -- Structured arguments -------------------------------------------------------------------
    "claimed lists": Guest(
        "passes options that claim to be a thousand lists of a hundred thousand items each",
        main(
            f"""{CREATE} (loop $on
              {drop("pred", KV, 0, 1, 0, 1000, 5000)}
              {drop("generate", KV, 0, 1, 1000, 5000)}
              {drop("spawn", 1000, 5000)} {drop("tool", 1000, 5000)} {drop("http", 1000, 5000)}
              (br $on)) (i32.const 0)""",
            data(1000, b"\xdd\x00\x00\x0f\xff" * 1000),
            locals_="(local $kv i32)",
        ),
    ),
    "many lists": Guest(
        "passes options of a hundred thousand lists",
        main(
            f"""{CREATE} (loop $on
              {drop("pred", KV, 0, 1, 0, 1000, 100_008)} {drop("spawn", 1000, 100_008)}
              (br $on)) (i32.const 0)""",
            data(1000, b"\x81\xa2at\xdd\x00\x01\x86\xa0" + b"\x90" * 100_000),
            locals_="(local $kv i32)",
        ),
    ),
}
