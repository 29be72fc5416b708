"""The victim: a plain program of another tenant, which must get what it gets alone."""

import asyncio
import struct
from functools import lru_cache
from random import Random

from symphony_kernel.protocol.errno import Errno, SyscallError

from tests.fuzz.guest import Script
from tests.fuzz.rig import LIMITS, PLAYER, WORKERS, FuzzRig, Setting, played
from tests.fuzz.scripts import OUT, Writer
from tests.support.worker.gateway import LiveRun

_TOKENS = 12
_TOKEN = struct.Struct("<If")
_MESSAGE = struct.Struct("<8si")  # a sampled token with its logprob, and what its claim answered
_TEXT_PAGES = 9  # that a rich one takes: its text, and the last page of a fork


def needs(rich: bool = False) -> int:
    return _TEXT_PAGES if rich else 1


def victim(rich: bool = False) -> Script:
    """What a plain program of another tenant does: it decodes, and tells each token and errno.

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
        _pred_and_tell(writer, fork, OUT, 1)
        writer.call("kv_close", (fork, 0))
    _pred_and_tell(writer, kv, OUT, 1)
    writer.again(len(writer.records) - before, _TOKENS)
    return Script(tuple(writer.records), writer.image.packed())


def _begin_richly(writer: Writer, kv: int) -> None:
    count = 100
    ids = struct.pack(f"<{count}I", *(3 + 7 * n % 250 for n in range(count)))
    at, _ = writer.image.lay("tokens", ids)
    _pred_and_tell(writer, kv, at, count)
    writer.claim(writer.call("sleep", 100))


def _pred_and_tell(writer: Writer, kv: int, at: int, count: int) -> None:
    claimed = writer.claim(writer.call("pred", (kv, 0), at, count, 0, 0, 0), _TOKEN.size)
    writer.call("store", OUT + _TOKEN.size, (claimed, 0))
    writer.call("send", OUT, _MESSAGE.size)


async def start(rig: FuzzRig, rich: bool) -> LiveRun:
    data = victim(rich).packed()
    return await rig.gateway.start(PLAYER, data, LIMITS, tenant="victim", worker=WORKERS[0])


async def victim_beside(rig: FuzzRig, alone: bytes, dies: bool = False, rich: bool = False) -> None:
    """Decode as a tenant of its own; it must get what it would get alone.

    Only where its worker `dies`, or a kernel took it along and said so, may it fail.
    """
    losses = rig.losses
    try:
        run = await start(rig, rich)
    except SyscallError:
        if rig.losses > losses:
            return
        raise
    status, reason = await ended(rig, run, "the victim")
    if status == "failed":
        await asyncio.sleep(1)  # a worker may learn first that the kernel knows nothing
        if dies or rig.losses > losses:
            return
    if (status, reason) != ("exited", ""):
        rig.seen.wrong.append(f"the victim {status}: {reason}")
    told = b"".join(run.messages)
    if not alike(told, alone, starves=not rig.setting.entitles(needs(rich))):
        rig.seen.wrong.append(f"the victim got {told.hex()}")


def alike(told: bytes, alone: bytes, *, starves: bool) -> bool:
    """Whether a victim's messages are what it tells alone.

    Where nothing keeps pages for it, it may starve: it may hear ENOMEM, after which its text is
    another one.
    """
    if not starves or len(told) != len(alone):
        return told == alone
    for given, wanted in zip(_MESSAGE.iter_unpack(told), _MESSAGE.iter_unpack(alone), strict=True):
        if given[1] == -Errno.ENOMEM:
            return True
        if given != wanted:
            return False
    return True


@lru_cache(maxsize=4)
def expected_of_victim(native: bool = False, rich: bool = False) -> bytes:
    found: list[bytes] = []

    async def alone(rig: FuzzRig) -> None:
        run = await start(rig, rich)
        await run.ended
        found.append(b"".join(run.messages))

    seen, _ = played(Setting(predictions=False, native=native), Random(0), alone)
    assert not seen.wrong, seen.wrong
    assert len(found[0]) == _MESSAGE.size * (2 * _TOKENS + 1 if rich else _TOKENS)
    assert all(answer == _TOKEN.size for _, answer in _MESSAGE.iter_unpack(found[0]))
    return found[0]


async def ended(rig: FuzzRig, run: LiveRun, who: str) -> tuple[str, str]:
    """Wait for a run's end and look at it; return status and reason."""
    result = await run.ended
    status, reason = result.status, result.reason
    if "wall time" in reason and run.read:
        rig.seen.wrong.append(f"{who} has waited for ever")
    elif "fault of the server" in reason or "does not have the program" in reason:
        rig.seen.wrong.append(f"{who} ended: {reason}")
    return status, reason
