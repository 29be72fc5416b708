"""Every pointer of every call, generated from the ABI's table, with every kind of bad place.

A pointer outside memory is EFAULT, also where more is wrong with the call, and nothing is read or
written; a place at memory's very edge is as good as any other. However the calls cross.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from symphony_kernel.protocol.errno import Errno
from symphony_runtime.abi import ABORT, WASI_CALLS, Call, table

from tests.support.worker import guests
from tests.support.worker.abi_calls import KV, LENGTHS, NAME_AT, POINTERS, TOKENS_AT, VALUES, good
from tests.support.worker.guests import (
    ABORT_IMPORT,
    LIP_IMPORTS,
    PAGE_BYTES,
    Step,
    data,
    module,
    result,
)
from tests.support.worker.rig import WorkerRig

END = 2 * PAGE_BYTES  # of a guest's memory
U32 = 1 << 32
STEPS_MAX = 300  # of one script

WIDTHS = {"tokens": 4, "tickets_ptr": 4, "positions": 4, "ranges": 8}  # bytes of an item, else 1
WIDE_OUT = {"tokenize", "chat", "chat_with", "kv_tokens"}  # whose `out` takes u32 tokens
FIRST: list[Step] = [("kv_create",), ("sleep", 1 << 40)]
PARTS = (data(NAME_AT, "x"), data(0, b"\xa5" * 64), data(END - 64, b"\x5a" * 64))


@dataclass(frozen=True)
class Place:
    """Where a call takes a pointer: the places of pointer and length, the bytes of an item."""

    call: Call
    pointer: int
    length: int
    width: int

    def step(self, pointer: int, count: int) -> Step:
        """Make the call with this pointer and length, and everything else as it should be."""
        given = [good(param.name) for param in self.call.params]
        given[self.pointer], given[self.length] = signed(pointer), signed(count)
        return (guests.name_of(self.call.name), *given)

    @property
    def shares_its_length(self) -> bool:
        """Whether another pointer of the call goes by the same length."""
        return self.call.params[self.pointer].name == "positions"


def signed(value: int) -> int:
    """The same 32 bits as WAT likes them."""
    value %= U32
    return value - U32 if value >= U32 // 2 else value


def places() -> Iterator[Place]:
    for call in table().calls:
        names = [param.name for param in call.params]
        for at, name in enumerate(names):
            if name in POINTERS:
                behind = [i for i in range(at + 1, len(names)) if names[i] in LENGTHS]
                shared = name == "positions" or not behind
                length = names.index("n") if shared else behind[0]
                wide = name == "out" and call.name in WIDE_OUT
                yield Place(call, at, length, 4 if wide else WIDTHS.get(name, 1))


PLACES = list(places())


def outside(place: Place, end: int) -> Iterator[tuple[int, int]]:
    """Pointers and lengths that do not lie in a memory of `end` bytes."""
    width = place.width
    yield from [(end, 1), (end - width + 1, 1), (-1, 1), (-width, 1), (U32 // 2, 1), (end + 1, 1)]
    if place.shares_its_length:
        return
    yield from [
        (end + 1, 0), (-1, 0),  # nothing, of a place that is not there
        (0, end // width + 1), (0, U32 // 2 - 1), (0, -1), (-1, -1),
        (end - width, -1),  # the sum wraps around to a place inside
        (-16, 32), (-64, 128),  # likewise
        (8, U32 // width - 1 if width == 1 else U32 // width + 1),  # the bytes wrap around
        (0, U32 // width // 2),
    ]  # fmt: skip
    if width > 1:
        yield 0, U32 // width


def inside(place: Place, end: int) -> Iterator[tuple[int, int]]:
    """Pointers and lengths at the edges of a memory, and unaligned ones."""
    yield from [(1, 1), (3, 1), (end - place.width, 1)]
    if not place.shares_its_length:
        yield from [(0, 0), (end, 0), (0, 2), (0, end // place.width)]


def scripts(steps: list[Step]) -> Iterator[list[Step]]:
    for start in range(0, len(steps), STEPS_MAX):
        yield steps[start : start + STEPS_MAX]


def test_pointer_cases_cover_every_parameter() -> None:
    names = {param.name for call in table().calls for param in call.params}
    assert names == POINTERS | LENGTHS | set(VALUES)
    assert len(PLACES) > 40


@pytest.mark.parametrize("grown", [False, True], ids=["as it began", "grown"])
async def test_no_pointer_outside_memory_is_followed(rig: WorkerRig, grown: bool) -> None:
    """Null with a length, wrap-around, one past the end, negative, huge: also where a memory that
    has grown ends now, and could not grow further.
    """
    end = END + PAGE_BYTES if grown else END
    more = "(block (result i32) (drop (memory.grow (i32.const {}))) (i32.const 0))"
    growth: list[Step] = [("kv_close", more.format(n)) for n in ((1, 60_000) if grown else ())]

    bad = [place.step(*given) for place in PLACES for given in outside(place, end)]
    for steps in scripts(bad):
        found = await rig.play(
            *FIRST, *growth, *steps, ("show", 0, 64), ("show", END - 64, 64), parts=PARTS
        )
        got = found[len(FIRST) + len(growth) : -2]
        wrong = [(s, g) for s, g in zip(steps, got, strict=True) if g != -Errno.EFAULT]
        assert wrong == []
        assert found[-2:] == [b"\xa5" * 64, b"\x5a" * 64]


async def test_the_edges_of_memory_are_inside(rig: WorkerRig) -> None:
    """Nothing at all, unaligned places, the last item, the whole memory: never EFAULT."""
    fine = [place.step(*given) for place in PLACES for given in inside(place, END)]
    fine = [step for step in fine if step[0] != "send"]  # what it sends is in the results' way
    for steps in scripts(fine):
        found = await rig.play(*FIRST, *steps, parts=(*PARTS,))
        got = found[len(FIRST) :]
        wrong = [(s, g) for s, g in zip(steps, got, strict=True) if g == -Errno.EFAULT]
        assert wrong == []


async def test_places_that_overlap_are_read_before_they_are_written(rig: WorkerRig) -> None:
    """Arguments and results in the same bytes: as good as in others."""
    found = await rig.play(
        *FIRST,
        ("kv_list", NAME_AT, 1, NAME_AT, 8),
        ("show", NAME_AT, 1),
        ("kv_list_after", NAME_AT, 1, NAME_AT, 1, 1, NAME_AT, 1),
        ("channel_send", 400, 1, 400, 1),
        ("channel_recv", 400, 1),
        ("store", 400, result(6)),
        ("wait", 400, 1, -1),
        ("claim", "(i32.load (i32.const 400))", 400, 4),
        ("show", 400, 1),
        ("pred", KV, TOKENS_AT, 2, TOKENS_AT, 0, 0),
        ("pred", KV, 500, 1, 500, 500, 1),
        parts=(*PARTS, data(400, "c"), data(500, b"\x80\0\0\0")),
    )
    assert found[2:4] == [1, b"\x90"]  # no names
    assert found[4] == -Errno.EINVAL  # the prefix is what the first listing wrote: no text
    assert found[5] == 0
    assert found[8:11] == [0, 1, b"c"]
    assert all(isinstance(ticket, int) and ticket > 0 for ticket in found[11:])


# --- What toolchains import ----------------------------------------------------------------------
FAULT, BADF, INVAL, TOO_BIG = 21, 8, 28, 1  # WASI's
NO_FILES = {"fd_close", "fd_fdstat_get", "fd_prestat_dir_name", "fd_prestat_get", "fd_seek"}
WASI_BAD: dict[str, list[tuple[int, ...]]] = {
    "args_get": [(END + 1, 0), (0, -1)],
    "args_sizes_get": [(END - 3, 0), (0, END - 3), (-4, 0), (0, -4)],
    "environ_get": [(END + 1, 0), (0, -1)],
    "environ_sizes_get": [(END - 3, 0), (0, END - 3), (-4, 0), (0, -4)],
    "clock_time_get": [(0, 0, END - 7), (1, 0, -8)],
    "random_get": [(END, 1), (-1, 2), (0, -1), (END - 8, -8)],
    "fd_write": [
        (1, END - 7, 1, 0), (1, -8, 1, 0), (1, 0, 1024, END), (2, NAME_AT, 0, -4),
        (1, 600, 1, 0), (2, 608, 1, 0), (2, 616, 2, 0),
    ],
}  # fmt: skip
# iovs at 600: past the end; at 608: over the end by a byte; at 616: a good one, then a bad one.
IOVS = b"".join(
    pointer.to_bytes(4, "little") + length.to_bytes(4, "little")
    for pointer, length in [(END + 1, 1), (END - 1, 2), (0, 1), (U32 - 1, 2)]
)


async def test_no_pointer_of_wasi_is_followed_outside_memory(rig: WorkerRig) -> None:
    assert set(WASI_BAD) | NO_FILES | {"proc_exit", "sched_yield"} == set(WASI_CALLS)

    bad: list[Step] = [(name, *given) for name, cases in WASI_BAD.items() for given in cases]
    files: list[Step] = [
        (name, *[number] * len(WASI_CALLS[name].params)) for name in NO_FILES
        for number in (0, 1, 3, -1)
    ]  # fmt: skip
    others: list[Step] = [
        ("fd_write", 1, 0, 1025, 0), ("fd_write", 0, 0, 0, 0), ("fd_write", -1, -1, -1, -1),
        ("fd_write", 1, 632, 1, 0), ("clock_time_get", 7, 0, 0), ("random_get", 0, END),
    ]  # fmt: skip
    steps: list[Step] = [*bad, *files, *others, ("show", 0, 64), ("show", END - 64, 64)]
    large = (0).to_bytes(4, "little") + (1 << 31).to_bytes(4, "little")
    found = await rig.play(*steps, parts=(*PARTS, data(600, IOVS), data(632, large)))
    assert found[: len(bad)] == [FAULT] * len(bad)
    assert found[len(bad) : len(bad) + len(files)] == [BADF] * len(files)
    assert found[-8:-2] == [INVAL, BADF, BADF, TOO_BIG, INVAL, INVAL]
    assert found[-2:] == [b"\xa5" * 64, b"\x5a" * 64]


@pytest.mark.parametrize("pointer", [0, 1, 3, 4, END - 2, END, END + 4, -1, -4, 700, 704])
async def test_an_abort_with_any_pointer_ends_one_program(rig: WorkerRig, pointer: int) -> None:
    """A string's length stands before it: here it is anything."""
    call = f"(call $abort (i32.const {pointer}) (i32.const {pointer}) (i32.const -1)"
    program = module(
        f'(func (export "lip_main") (result i32) {call} (i32.const -1)) (i32.const 0))',
        data(696, b"\xff\xff\xff\xff\x00\xd8\x00\xdc\xff\xff\xff\x7f"),
        imports=[*LIP_IMPORTS, ABORT_IMPORT],
    )
    ended = await rig.run(program)
    assert (ended.status, ended.exit_code) == ("trapped", 134)
    assert ended.reason.startswith("abort: ")
    assert len(ended.reason) < 3000

    assert len(ABORT.params) == 4


async def test_calls_before_memory_can_be_seen_harm_nobody(rig: WorkerRig) -> None:
    """A start function makes every call, with zeros, with ones, and with pointers to nowhere."""
    body = []
    for call in table().calls:
        if call.name in ("exit", "wait", "claim"):  # which ends it, or waits for ever
            continue
        for number in (0, 1, -1):
            given = " ".join(f"({param.type}.const {number})" for param in call.params)
            body.append(f"(drop (call ${guests.name_of(call.name)} {given}))")
    start = f"(func $f {' '.join(body)}) (start $f)"
    ended = await rig.run(module('(func (export "_start"))', start))
    assert (ended.status, ended.reason) == ("exited", "")
