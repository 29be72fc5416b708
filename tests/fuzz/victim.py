"""The victim: a plain program of another tenant, which must get what it gets alone."""

import asyncio
import struct
from functools import lru_cache
from random import Random

from symphony_kernel.protocol.errno import SyscallError

from tests.fuzz.gateway import Run
from tests.fuzz.guest import Script
from tests.fuzz.house import LIMITS, WORKERS, House, Setting, played
from tests.fuzz.scripts import OUT, Writer

_TOKENS = 12


def victim(rich: bool = False) -> Script:
    """What a plain program of another tenant does: it decodes, and tells each token.

    A `rich` one has a prompt of some pages, and forks of it, and leaves them alone now and then.
    """
    writer = Writer(Random(0), 0)
    kv = writer.call("kv_create")
    if rich:
        _begin_richly(writer, kv)
    writer.call("store", OUT, 7)
    before = len(writer.records)
    if rich:
        writer.claim(writer.call("sleep", 40))
        fork = writer.call("kv_fork", (kv, 0))
        writer.claim(writer.call("pred", (fork, 0), OUT, 1, 0, 0, 0), 8)
        writer.call("send", OUT, 8)
        writer.call("kv_close", (fork, 0))
    writer.claim(writer.call("pred", (kv, 0), OUT, 1, 0, 0, 0), 8)
    writer.call("send", OUT, 8)
    writer.again(len(writer.records) - before, _TOKENS)
    return Script(tuple(writer.records), writer.image.packed())


def _begin_richly(writer: Writer, kv: int) -> None:
    count = 100
    ids = struct.pack(f"<{count}I", *(3 + 7 * n % 250 for n in range(count)))
    at, _ = writer.piece("tokens", ids)
    writer.claim(writer.call("pred", (kv, 0), at, count, 0, 0, 0), 8)
    writer.call("send", OUT, 8)
    writer.claim(writer.call("sleep", 100))


async def victim_beside(house: House, alone: bytes, dies: bool = False, rich: bool = False) -> None:
    """A tenant of its own decodes beside the others: it must get what it would get alone.

    Only where its worker `dies`, or a kernel took it along and said so, may it fail.
    """
    losses = house.losses
    try:
        run = await house.gateway.start("victim", WORKERS[0], victim(rich).packed(), LIMITS)
    except SyscallError:
        if house.losses > losses:
            return
        raise
    status, reason = await ended(house, run, "the victim")
    if status == "failed":
        await asyncio.sleep(1)  # a worker hears before us that the kernel knows nothing
        if dies or house.losses > losses:
            return
    if (status, reason) != ("exited", ""):
        house.seen.wrong.append(f"the victim {status}: {reason}")
    told = b"".join(run.messages)
    if told != alone:
        house.seen.wrong.append(f"the victim got {told.hex()}")


@lru_cache(maxsize=4)
def expected_of_victim(native: bool = False, rich: bool = False) -> bytes:
    """Return what the victim gets alone."""
    found: list[bytes] = []

    async def alone(house: House) -> None:
        run = await house.gateway.start("victim", WORKERS[0], victim(rich).packed(), LIMITS)
        await run.ended
        found.append(b"".join(run.messages))

    seen, _ = played(Setting(guesses=False, native=native), Random(0), alone)
    assert not seen.wrong, seen.wrong
    assert len(found[0]) == 8 * (2 * _TOKENS + 1 if rich else _TOKENS)
    return found[0]


async def ended(house: House, run: Run, who: str) -> tuple[str, str]:
    """Wait for a run's end and look at it; return status and reason."""
    status, reason = await run.ended
    if "wall time" in reason and run.reads:
        house.seen.wrong.append(f"{who} has waited for ever")
    elif "fault of the server" in reason or "does not have the program" in reason:
        house.seen.wrong.append(f"{who} ended: {reason}")
    return status, reason
