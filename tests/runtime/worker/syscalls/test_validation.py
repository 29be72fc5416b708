"""Every call of the table, imported by one guest, and called with wrong arguments.

Wrong pointers, handles and tickets are in tests/hostile/guests (test_pointers.py, test_handles.py).
"""

from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.limits import (
    LIST_ITEMS_MAX,
    NAME_BYTES_MAX,
    PATH_BYTES_MAX,
    WAIT_TICKETS_MAX,
)
from symphony_runtime.abi import table

from tests.support.worker import guests
from tests.support.worker.guests import Step, data, result
from tests.support.worker.rig import WorkerRig

KV = result(0)

EINVAL, ENOSYS, ENOENT = Errno.EINVAL, Errno.ENOSYS, Errno.ENOENT
ENAMETOOLONG = Errno.ENAMETOOLONG

# Call -> [(arguments, errno)]; step 0 of the script is a `kv_create`.
BAD: dict[str, list[tuple[tuple[int | str, ...], Errno]]] = {
    "log": [((4, 0, 0), EINVAL), ((-1, 0, 0), EINVAL)],
    "sleep": [((-1,), EINVAL), ((-(2**63),), EINVAL)],
    "spawn": [((0, 0), EINVAL), ((0, 4), EINVAL)],
    "channel_send": [((0, 0, 0, 0), EINVAL), ((0, NAME_BYTES_MAX + 1, 0, 0), ENAMETOOLONG),
                     ((120, 1, 0, 0), EINVAL)],
    "channel_recv": [((0, 0), EINVAL), ((0, NAME_BYTES_MAX + 1), ENAMETOOLONG),
                     ((120, 1), EINVAL)],
    "wait": [((0, 0, -1), EINVAL), ((0, 1, -2), EINVAL), ((0, WAIT_TICKETS_MAX + 1, 0), EINVAL)],
    "claim": [((0, 0, 0, -2), EINVAL)],
    "pred": [((KV, 0, 0, 0, 0, 0), EINVAL), ((KV, 0, 1, 0, 120, 1), EINVAL)],
    "pred_claim": [((KV, 0, 0, 0, 0, 0, 0, 8), EINVAL), ((KV, 0, 1, 0, 120, 1, 0, 8), EINVAL)],
    "generate": [((KV, 0, 0, 0, 0), EINVAL), ((KV, 0, 1, 120, 1), EINVAL)],
    "constraint": [((3, 0, 1), EINVAL), ((-1, 0, 1), EINVAL), ((1, 120, 1), EINVAL),
                   ((1, 100, 1), ENOSYS)],
    "kv_open": [((0, 0, 1), EINVAL), ((0, PATH_BYTES_MAX + 1, 1), ENAMETOOLONG),
                ((120, 1, 1), EINVAL), ((100, 1, 32), EINVAL), ((100, 1, -1), EINVAL),
                ((100, 1, 1), ENOENT)],
    "kv_append": [((KV, KV, 1, 0), EINVAL)],
    "kv_truncate": [((KV, 1), EINVAL), ((KV, -1), EINVAL)],
    "kv_tokens": [((KV, 0, 1, 0), EINVAL), ((KV, -1, 1, 0), EINVAL)],
    "kv_save": [((KV, 0, 0, 0), EINVAL), ((KV, 120, 1, 0), EINVAL), ((KV, 100, 1, 8), EINVAL),
                ((KV, 0, PATH_BYTES_MAX + 1, 0), ENAMETOOLONG)],
    "kv_remove": [((0, 0), EINVAL), ((120, 1), EINVAL), ((100, 1), ENOENT)],
    "kv_list": [((120, 1, 0, 0), EINVAL)],
    "kv_list_after": [((120, 1, 0, 0, 1, 0, 0), EINVAL), ((0, 0, 120, 1, 1, 0, 0), EINVAL),
                      ((0, 0, 0, 0, 0, 0, 0), EINVAL), ((0, 0, 0, 0, -1, 0, 0), EINVAL),
                      ((0, 0, 0, 0, LIST_ITEMS_MAX + 1, 0, 0), EINVAL)],
    "kv_grant": [((KV, 0, 1, 0, 0), EINVAL), ((KV, 0, 32, 100, 1), EINVAL)],
    "kv_granted": [((0, 0), EINVAL), ((100, 1), ENOENT)],
    "kv_advise": [((KV, 5, 0), EINVAL), ((KV, -1, 0), EINVAL), ((KV, 1, -1), EINVAL),
                  ((KV, 1, 1 << 62), EINVAL), ((KV, 2, 1), EINVAL), ((KV, 4, 8), EINVAL)],
    "kv_match": [((0, 0), EINVAL), ((0, 1), ENOENT), ((117, 1), EINVAL), ((0, 500), ENOENT)],
    "http": [((0, 0), EINVAL), ((0, 4), EINVAL)],
    "tool": [((0, 0), EINVAL), ((0, 4), EINVAL)],
}  # fmt: skip
POINTERS_AND_HANDLES = {  # are all that these take
    "input_read", "send", "random", "join", "take", "cancel", "last_error", "model_info",
    "tokenize", "detokenize", "chat", "chat_with", "constraint_close", "kv_fork", "kv_extract",
    "kv_len", "kv_stat", "kv_offer", "kv_close", "tools",
}  # fmt: skip
CANNOT_FAIL = {"recv", "clock_ms", "unix_ms", "kv_create", "exit"}
PARTS = (data(100, "x"), data(120, b"\xff"))


def test_validation_cases_cover_every_call() -> None:
    there = [call.name for call in table().calls if call.since]
    assert sorted([*BAD, *POINTERS_AND_HANDLES, *CANNOT_FAIL]) == sorted(there)


async def test_calls_with_wrong_arguments_answer_errnos(rig: WorkerRig) -> None:
    cases = [(name, *case) for name, cases in BAD.items() for case in cases]
    for start in range(0, len(cases), 50):  # a script's results have so much room
        some = cases[start : start + 50]
        steps: list[Step] = [("kv_create",)]
        steps += [(guests.name_of(name), *arguments) for name, arguments, _ in some]
        found = await rig.play(*steps, ("kv_len", KV), parts=PARTS)
        expected = [-int(errno) for _, _, errno in some]
        wrong = [
            (case, got)
            for case, got, want in zip(some, found[1:-1], expected, strict=True)
            if got != want
        ]
        assert wrong == []
        assert found[-1] == 0


async def test_calls_with_zeros_for_every_argument_never_trap(rig: WorkerRig) -> None:
    """A call that is not implemented answers ENOSYS."""
    steps: list[Step] = [
        (guests.name_of(call.name), *[0] * len(call.params))
        for call in table().calls
        if call.name != "exit"
    ]
    program = guests.script(*steps, ("exit", 3))
    ended = await rig.run(program.source)
    assert (ended.status, ended.exit_code) == ("exited", 3)
    # `send` sends a message of its own, an empty one.
    results = [int.from_bytes(m, "little", signed=True) for m in ended.messages if m]
    names = [name for name in program.names if name != "exit"]
    found = dict(zip(names, results, strict=True))
    for call in table().calls:
        if not call.since:
            assert found[call.name] == -ENOSYS, call.name
    assert found["kv_create"] > 0
    assert found["input_read"] == 0
