"""The victim: a plain program of another tenant, which must get what it gets alone."""

from functools import lru_cache
from random import Random

from tests.fuzz.gateway import Run
from tests.fuzz.guest import Script
from tests.fuzz.house import LIMITS, WORKERS, House, Setting, played
from tests.fuzz.scripts import OUT, Writer

_TOKENS = 12


def victim() -> Script:
    """What a plain program of another tenant does: it decodes, and tells each token."""
    writer = Writer(Random(0), 0)
    kv = writer.call("kv_create")
    writer.call("store", OUT, 7)
    before = len(writer.records)
    writer.claim(writer.call("pred", (kv, 0), OUT, 1, 0, 0, 0), 8)
    writer.call("send", OUT, 8)
    writer.again(len(writer.records) - before, _TOKENS)
    return Script(tuple(writer.records), writer.image.packed())


async def victim_beside(house: House, alone: bytes, dies: bool = False) -> None:
    """A tenant of its own decodes beside the others: it must get what it would get alone."""
    run = await house.gateway.start("victim", WORKERS[0], victim().packed(), LIMITS)
    status, reason = await ended(house, run, "the victim")
    if dies and status == "failed":
        return
    if (status, reason) != ("exited", ""):
        house.seen.wrong.append(f"the victim {status}: {reason}")
    told = b"".join(run.messages)
    if told != alone:
        house.seen.wrong.append(f"the victim got {told.hex()}")


@lru_cache(maxsize=2)
def expected_of_victim(native: bool = False) -> bytes:
    """Return what the victim gets alone."""
    found: list[bytes] = []

    async def alone(house: House) -> None:
        run = await house.gateway.start("victim", WORKERS[0], victim().packed(), LIMITS)
        await run.ended
        found.append(b"".join(run.messages))

    seen, _ = played(Setting(guesses=False, native=native), Random(0), alone)
    assert not seen.wrong, seen.wrong
    assert len(found[0]) == 8 * _TOKENS
    return found[0]


async def ended(house: House, run: Run, who: str) -> tuple[str, str]:
    """Wait for a run's end and look at it; return status and reason."""
    status, reason = await run.ended
    if "wall time" in reason and run.reads:
        house.seen.wrong.append(f"{who} has waited for ever")
    elif "fault of the server" in reason or "does not have the program" in reason:
        house.seen.wrong.append(f"{who} ended: {reason}")
    return status, reason
