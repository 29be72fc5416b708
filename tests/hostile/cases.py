"""A hostile program, and a rig that runs it next to a neighbour, which must not notice."""

import asyncio
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.support.worker.guests import DECODE
from tests.support.worker.rig import RunResult, WorkerRig

NEIGHBOURS = 3  # runs of one, each to its end, while the guest does its worst
END_SECONDS_MAX = 20
ENDLESS = "endless"
ENOUGH = "that is enough"


@dataclass(frozen=True)
class Guest:
    """A program, WAT or Wasm: `tries` says what it does.

    It must come to an end of this `status`, with a reason that has the words `says`; one that is
    ENDLESS runs until it is killed. `sent` is the i32s that it sends, where they are known;
    `others` are programs that it spawns, by name.
    """

    tries: str
    source: str | bytes
    status: str = ENDLESS
    says: str = ""
    sent: tuple[int, ...] | None = None
    limits: Mapping[str, int] = field(default_factory=dict)
    data: bytes = b""
    others: Mapping[str, str] = field(default_factory=dict)


async def meet(rig: WorkerRig, guest: Guest) -> RunResult:
    """Run a guest next to a neighbour that decodes, and check how it ends."""
    for name, source in guest.others.items():
        rig.add(source, name)
    hostile = await rig.start(guest.source, guest.data, limits=dict(guest.limits))
    while hostile.instance not in rig.worker.instances:
        assert not hostile.ended.done()
        await asyncio.sleep(0)  # it is there for a turn of the loop at least
    run = rig.worker.instances[hostile.instance].run
    for _ in range(NEIGHBOURS):
        neighbour = await rig.run(DECODE, bytes([3]))
        assert (neighbour.status, len(neighbour.messages)) == ("exited", 3)
    status, says = guest.status, guest.says
    if status == ENDLESS:
        assert not hostile.ended.done(), hostile.ended.result()
        hostile.kill(ENOUGH)
        status, says = "killed", ENOUGH
    ended = await asyncio.wait_for(hostile.ended, END_SECONDS_MAX)
    assert ended.status == status, ended.reason
    assert says in ended.reason, ended.reason
    if guest.sent is not None:
        assert numbers(ended.messages) == guest.sent
    await rig.gateway.wait_idle()  # its children's ends, and the births that were under way
    assert (run.children, run.memory_bytes) == (0, 0)
    assert not run.tickets.leases | run.results.leases | run.handles.leases
    return ended


def numbers(messages: list[bytes]) -> tuple[int, ...]:
    """Return what `$say` has sent."""
    return tuple(struct.unpack("<i", message)[0] for message in messages)
