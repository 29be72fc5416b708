"""Every call of the table, imported by one guest, and called with arguments that are wrong."""

from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.limits import (
    LIST_ITEMS_MAX,
    NAME_BYTES_MAX,
    PATH_BYTES_MAX,
    PRED_TOKENS_MAX,
    TOKENIZE_BYTES_MAX,
    WAIT_TICKETS_MAX,
)
from symphony_runtime.abi import table

from tests.support.run_by import run_by
from tests.support.worker import guests
from tests.support.worker.guests import PAGE_BYTES, Step, data, result
from tests.support.worker.rig import WorkerRig, with_worker

END = 2 * PAGE_BYTES  # of a guest's memory
WRAP = -1  # as a pointer 0xFFFFFFFF: with any length it wraps around in 32 bits
HUGE = -1  # as a length
KV = result(0)

EFAULT, EINVAL, EBADF = Errno.EFAULT, Errno.EINVAL, Errno.EBADF
ENOSYS, ENOENT, EFBIG = Errno.ENOSYS, Errno.ENOENT, Errno.EFBIG
ENAMETOOLONG = Errno.ENAMETOOLONG

# Call -> [(arguments, errno)]; step 0 of the script is a `kv_create`.
BAD: dict[str, list[tuple[tuple[int | str, ...], Errno]]] = {
    "input_read": [((WRAP, 8), EFAULT), ((0, HUGE), EFAULT), ((END - 3, 4), EFAULT)],
    "send": [((WRAP, 1), EFAULT), ((0, HUGE), EFAULT), ((END, 1), EFAULT), ((END + 1, 0), EFAULT)],
    "log": [((0, WRAP, 1), EFAULT), ((0, 0, HUGE), EFAULT), ((4, 0, 0), EINVAL),
            ((-1, 0, 0), EINVAL)],
    "random": [((WRAP, 4), EFAULT), ((0, HUGE), EFAULT)],
    "sleep": [((-1,), EINVAL), ((-(2**63),), EINVAL)],
    "spawn": [((WRAP, 4), EFAULT), ((0, HUGE), EFAULT), ((0, 0), EINVAL), ((0, 4), EINVAL)],
    "join": [((0,), ENOENT), ((1,), ENOENT), ((-1,), ENOENT)],
    "channel_send": [((WRAP, 1, 0, 0), EFAULT), ((0, HUGE, 0, 0), EFAULT), ((0, 0, 0, 0), EINVAL),
                     ((100, 1, WRAP, 1), EFAULT), ((100, 1, 0, HUGE), EFAULT),
                     ((0, NAME_BYTES_MAX + 1, 0, 0), ENAMETOOLONG), ((120, 1, 0, 0), EINVAL)],
    "channel_recv": [((WRAP, 1), EFAULT), ((0, HUGE), EFAULT), ((0, 0), EINVAL),
                     ((0, NAME_BYTES_MAX + 1), ENAMETOOLONG), ((120, 1), EINVAL)],
    "wait": [((WRAP, 1, 0), EFAULT), ((0, HUGE, 0), EFAULT), ((0, 0x40000000, 0), EFAULT),
             ((0, 0, -1), EINVAL), ((0, 1, -2), EINVAL), ((0, 1, 0), EBADF),
             ((0, WAIT_TICKETS_MAX + 1, 0), EINVAL)],
    "take": [((0, WRAP, 1), EFAULT), ((0, 0, HUGE), EFAULT), ((0, 0, 0), EBADF),
             ((-1, 0, 0), EBADF), ((1 << 30, 0, 8), EBADF)],
    "claim": [((0, WRAP, 1, -1), EFAULT), ((0, 0, HUGE, -1), EFAULT), ((0, 0, 0, -1), EBADF),
              ((1 << 30, 0, 8, 0), EBADF), ((0, 0, 0, -2), EINVAL)],
    "cancel": [((0,), EBADF), ((-1,), EBADF), ((1 << 30,), EBADF)],
    "last_error": [((WRAP, 1), EFAULT), ((0, HUGE), EFAULT)],
    "model_info": [((WRAP, 1), EFAULT), ((0, HUGE), EFAULT)],
    "tokenize": [((WRAP, 1, 0, 0), EFAULT), ((0, HUGE, 0, 0), EFAULT), ((0, 1, WRAP, 1), EFAULT),
                 ((0, 1, 0, 0x40000001), EFAULT), ((0, TOKENIZE_BYTES_MAX, 0, 0), EFAULT)],
    "detokenize": [((WRAP, 1, 0, 0), EFAULT), ((0, 0x40000001, 0, 0), EFAULT),
                   ((0, 1, WRAP, 1), EFAULT), ((0, 1, 0, HUGE), EFAULT)],
    "chat": [((WRAP, 1, 0, 0), EFAULT), ((0, HUGE, 0, 0), EFAULT), ((0, 1, WRAP, 1), EFAULT),
             ((0, 1, 0, 0x40000001), EFAULT)],
    "pred": [((KV, WRAP, 1, 0, 0, 0), EFAULT), ((KV, 0, HUGE, 0, 0, 0), EFAULT),
             ((KV, 0, 0x40000001, 0, 0, 0), EFAULT), ((KV, 0, 1, WRAP, 0, 0), EFAULT),
             ((KV, 0, 1, END - 3, 0, 0), EFAULT), ((KV, 0, 1, 0, WRAP, 1), EFAULT),
             ((KV, 0, 1, 0, 0, HUGE), EFAULT), ((KV, 0, 0, 0, 0, 0), EINVAL),
             ((0, 0, 1, 0, 0, 0), EBADF), ((KV, 0, 1, 0, 120, 1), EINVAL),
             ((KV, 0, PRED_TOKENS_MAX + 1, 0, 0, 0), EFAULT)],
    "pred_claim": [((KV, WRAP, 1, 0, 0, 0, 0, 8), EFAULT), ((KV, 0, HUGE, 0, 0, 0, 0, 8), EFAULT),
                   ((KV, 0, 1, WRAP, 0, 0, 0, 8), EFAULT), ((KV, 0, 1, 0, WRAP, 1, 0, 8), EFAULT),
                   ((KV, 0, 1, 0, 0, 0, WRAP, 8), EFAULT), ((KV, 0, 1, 0, 0, 0, 0, HUGE), EFAULT),
                   ((KV, 0, 1, 0, 0, 0, END - 7, 8), EFAULT), ((KV, 0, 0, 0, 0, 0, 0, 8), EINVAL),
                   ((0, 0, 1, 0, 0, 0, 0, 8), EBADF), ((KV, 0, 1, 0, 120, 1, 0, 8), EINVAL),
                   ((0, 0, 1, 0, 0, 0, 0, 0), EBADF)],
    "generate": [((KV, WRAP, 1, 0, 0), EFAULT), ((KV, 0, HUGE, 0, 0), EFAULT),
                 ((KV, 0, 0x40000001, 0, 0), EFAULT), ((KV, 0, 1, WRAP, 1), EFAULT),
                 ((KV, 0, 1, 0, HUGE), EFAULT), ((KV, 0, 0, 0, 0), EINVAL),
                 ((0, 0, 1, 0, 0), EBADF), ((KV, 0, 1, 120, 1), EINVAL),
                 ((KV, 0, PRED_TOKENS_MAX + 1, 0, 0), EFAULT)],
    "constraint": [((0, WRAP, 1), EFAULT), ((0, 0, HUGE), EFAULT), ((3, 0, 1), EINVAL),
                   ((-1, 0, 1), EINVAL), ((1, 120, 1), EINVAL), ((1, 100, 1), ENOSYS)],
    "constraint_close": [((0,), EBADF), ((-1,), EBADF), ((1,), EBADF)],
    "kv_open": [((WRAP, 1, 1), EFAULT), ((0, HUGE, 1), EFAULT), ((0, 0, 1), EINVAL),
                ((0, PATH_BYTES_MAX + 1, 1), ENAMETOOLONG), ((120, 1, 1), EINVAL),
                ((100, 1, 32), EINVAL), ((100, 1, -1), EINVAL), ((100, 1, 1), ENOENT)],
    "kv_fork": [((0,), EBADF), ((-1,), EBADF)],
    "kv_extract": [((KV, WRAP, 1), EFAULT), ((KV, 0, HUGE), EFAULT), ((KV, 0, 0x20000001), EFAULT),
                   ((0, 0, 0), EBADF)],
    "kv_append": [((0, KV, 0, 0), EBADF), ((KV, 0, 0, 0), EBADF), ((KV, KV, 1, 0), EINVAL)],
    "kv_truncate": [((0, 0), EBADF), ((KV, 1), EINVAL), ((KV, -1), EINVAL)],
    "kv_len": [((0,), EBADF)],
    "kv_stat": [((KV, WRAP, 1), EFAULT), ((KV, 0, HUGE), EFAULT), ((0, 0, 0), EBADF)],
    "kv_tokens": [((KV, 0, 1, WRAP), EFAULT), ((KV, 0, HUGE, 0), EFAULT),
                  ((KV, 0, 0x40000001, 0), EFAULT), ((0, 0, 0, 0), EBADF), ((KV, 0, 1, 0), EINVAL),
                  ((KV, -1, 1, 0), EINVAL)],
    "kv_save": [((KV, WRAP, 1, 0), EFAULT), ((KV, 0, HUGE, 0), EFAULT), ((KV, 0, 0, 0), EINVAL),
                ((KV, 120, 1, 0), EINVAL), ((0, 100, 1, 0), EBADF), ((KV, 100, 1, 8), EINVAL),
                ((KV, 0, PATH_BYTES_MAX + 1, 0), ENAMETOOLONG)],
    "kv_remove": [((WRAP, 1), EFAULT), ((0, HUGE), EFAULT), ((0, 0), EINVAL), ((120, 1), EINVAL),
                  ((100, 1), ENOENT)],
    "kv_list": [((WRAP, 1, 0, 0), EFAULT), ((0, HUGE, 0, 0), EFAULT), ((0, 0, WRAP, 1), EFAULT),
                ((0, 0, 0, HUGE), EFAULT), ((120, 1, 0, 0), EINVAL)],
    "kv_list_after": [((WRAP, 1, 0, 0, 1, 0, 0), EFAULT), ((0, HUGE, 0, 0, 1, 0, 0), EFAULT),
                      ((0, 0, WRAP, 1, 1, 0, 0), EFAULT), ((0, 0, 0, HUGE, 1, 0, 0), EFAULT),
                      ((0, 0, 0, 0, 1, WRAP, 1), EFAULT), ((0, 0, 0, 0, 1, 0, HUGE), EFAULT),
                      ((120, 1, 0, 0, 1, 0, 0), EINVAL), ((0, 0, 120, 1, 1, 0, 0), EINVAL),
                      ((0, 0, 0, 0, 0, 0, 0), EINVAL), ((0, 0, 0, 0, -1, 0, 0), EINVAL),
                      ((0, 0, 0, 0, LIST_ITEMS_MAX + 1, 0, 0), EINVAL)],
    "kv_grant": [((KV, 0, 1, WRAP, 1), EFAULT), ((KV, 0, 1, 0, HUGE), EFAULT),
                 ((KV, 0, 1, 0, 0), EINVAL), ((KV, 0, 32, 100, 1), EINVAL),
                 ((0, 0, 1, 100, 1), EBADF), ((KV, 0, 1, 100, 1), ENOENT),
                 ((KV, 1, 1, 100, 1), ENOENT), ((KV, -1, 1, 100, 1), ENOENT)],
    "kv_granted": [((WRAP, 1), EFAULT), ((0, HUGE), EFAULT), ((0, 0), EINVAL), ((100, 1), ENOENT)],
    "kv_advise": [((0, 0, 0), EBADF), ((KV, 5, 0), EINVAL), ((KV, -1, 0), EINVAL),
                  ((KV, 1, -1), EINVAL), ((KV, 1, 1 << 62), EINVAL), ((KV, 2, 1), EINVAL),
                  ((KV, 4, 8), EINVAL)],
    "kv_offer": [((0,), EBADF), ((-1,), EBADF)],
    "kv_match": [((WRAP, 1), EFAULT), ((0, HUGE), EFAULT), ((0, 0x40000001), EFAULT),
                 ((END - 3, 1), EFAULT), ((0, 0), EINVAL), ((0, 1), ENOENT),
                 ((117, 1), EINVAL), ((0, 500), ENOENT)],
    "kv_close": [((0,), EBADF), ((-1,), EBADF)],
    "http": [((WRAP, 1), EFAULT), ((0, HUGE), EFAULT), ((0, 0), EINVAL), ((0, 4), EINVAL)],
    "tool": [((WRAP, 1), EFAULT), ((0, HUGE), EFAULT), ((0, 0), EINVAL), ((0, 4), EINVAL)],
    "tools": [((WRAP, 1), EFAULT), ((0, HUGE), EFAULT)],
}  # fmt: skip
CANNOT_FAIL = {"recv", "clock_ms", "unix_ms", "kv_create", "exit"}
PARTS = (data(100, "x"), data(120, b"\xff"))


def test_every_call_has_its_wrong_arguments() -> None:
    there = {call.name for call in table().calls if call.since}
    assert set(BAD) | CANNOT_FAIL == there
    assert not set(BAD) & CANNOT_FAIL


@run_by(with_worker)
async def test_wrong_arguments_give_errnos_and_the_program_goes_on(rig: WorkerRig) -> None:
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


@run_by(with_worker)
async def test_one_guest_imports_and_calls_everything(rig: WorkerRig) -> None:
    """With zeros for every argument; nothing may trap, and what is not there says ENOSYS."""
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
