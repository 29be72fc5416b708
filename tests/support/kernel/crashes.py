"""A kernel with a journal that dies and comes back, and peers whose sessions outlive it."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, TypeVar

import msgpack
from symphony_kernel.executor.simulated import CostModel, SimulatedExecutor
from symphony_kernel.ipc.server import Server
from symphony_kernel.journal.recorder import Recorder
from symphony_kernel.journal.replay import Replay
from symphony_kernel.journal.store import Store
from symphony_kernel.kernel import Kernel, KernelOptions, describe
from symphony_kernel.platform.clock import VirtualClock
from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.links import Link
from symphony_kernel.protocol.sessions import Dialer, LinkLostError, SessionLink

from tests.support.kernel.rig import ANY_MS, ASSETS, Gateway, Worker
from tests.support.memory_links import memory_pair

T = TypeVar("T")
SECRET = b"s" * 16
IDENTITY = bytes(range(32))


def kill(kernel: Kernel) -> None:
    """Stop a kernel with a journal at once: it writes and sends nothing more."""
    assert kernel.hooks is not None
    kernel.hooks.abandon()
    kernel._step_loop.halt()
    recovery = kernel._recovery
    assert recovery is not None
    recovery._recorder = None  # no image, even if one is due
    kernel._kvfs.tiers.spill_tier.close()


def doom(kernel: Kernel, chance: random.Random, then: Callable[[], None]) -> None:
    """Kill it in the middle of its next turn's record, which is written by chance, then call."""
    recorder, written = kernel.hooks, chance.random() < 0.5
    assert isinstance(recorder, Recorder)
    log = recorder._log
    append = log.append

    def last(*parts: bytes) -> None:
        if written:
            append(*parts)
        recorder.abandon()
        asyncio.get_running_loop().call_soon(then)

    log.append = last  # type: ignore[method-assign]


def close_or_abort(links: Iterable[Link], chance: random.Random) -> None:
    """End a dead kernel's links; what it has sent arrives by chance."""
    for link in links:
        (link.close if chance.random() < 0.5 else link.abort)()


def image(kernel: Kernel) -> bytes:
    """Return what the kernel holds now, as its journal would."""
    kernel.flush()
    assert kernel._recovery is not None
    return kernel._recovery.take_snapshot()


def recovered_image(store: Store, kernel: Kernel, log_bytes: int) -> bytes | None:
    """Return what a new `kernel` would hold that comes back from the journal; None without one."""
    found = store._newest()
    if found is None:
        return None
    recovery = kernel.make_recovery(store, log_bytes, threads=False)
    recovery.replay(found, Replay(kernel, kernel._kvfs))
    return recovery.take_snapshot()


class Peer:
    """A peer's way to the kernel: connects again whenever a connection ends."""

    def __init__(self, rig: "CrashingKernelRig", role: str, name: str) -> None:
        self._rig = rig
        self.dialer = Dialer(role, name, SECRET, lambda _: None, self)
        self.lost = 0  # sessions that the kernel did not know any more
        self.begun = asyncio.Event()
        self._task = asyncio.create_task(self._keep())

    @property
    def session(self) -> SessionLink:
        assert self.dialer.session is not None
        return self.dialer.session

    async def _keep(self) -> None:
        while True:
            await self._rig.alive.wait()
            ours, theirs = memory_pair()
            self._rig.links.append(theirs)
            self._rig.door.accept(theirs)
            try:
                over = await self.dialer.connect(ours)
            except LinkLostError:
                continue
            await over.wait()

    def stop(self) -> None:
        self._task.cancel()

    def session_begun(self, session: SessionLink, welcome: m.Welcome) -> None:
        self.begun.set()

    def session_resumed(self, welcome: m.Welcome) -> None:
        pass

    def session_cut(self) -> None:
        pass

    def session_ended(self) -> None:
        self.lost += 1


class CrashingKernelRig:
    """One kernel after the other, with one journal in `folder`."""

    def __init__(
        self,
        clock: VirtualClock,
        folder: Path,
        *,
        pages: int = 256,
        log_bytes: int = 1 << 20,
        costs: CostModel = ANY_MS,
        options: KernelOptions | None = None,
        device: type[SimulatedExecutor] = SimulatedExecutor,
    ) -> None:
        self.clock, self.folder, self._device = clock, folder, device
        self._pages, self._log_bytes, self._costs, self._options = pages, log_bytes, costs, options
        self.alive = asyncio.Event()
        self.links: list[Link] = []
        self.deaths = 0
        self.kernel: Kernel
        self.door: Server
        self.gateway: Gateway
        self.worker: Worker
        self._running: asyncio.Task[None]
        self.boot()

    def make(self) -> Kernel:
        executor = self._device(self.clock, self._pages, costs=self._costs)
        return Kernel(executor, describe(ASSETS), self.clock, self._options)

    def boot(self) -> None:
        self.kernel = self.make()
        store = Store(self.folder, IDENTITY)
        found = store.find(self.clock.now(), -9)
        self.kernel.start_journal(store, found, self._log_bytes, threads=False)
        self.door = Server(self.kernel, {"gateway": SECRET, "w": SECRET, "v": SECRET})
        self._running = asyncio.create_task(self.kernel.run())
        self.alive.set()

    async def join(self) -> None:
        """Connect a gateway and the worker "w"; their sessions have begun."""
        self.peers = [Peer(self, "gateway", "gateway"), Peer(self, "worker", "w")]
        for peer in self.peers:
            await peer.begun.wait()
        gateway, worker = (peer.session for peer in self.peers)
        self.gateway, self.worker = Gateway(gateway), Worker(worker)

    def die(self, chance: random.Random) -> None:
        """Kill the kernel where it stands."""
        self.deaths += 1
        self.alive.clear()
        kill(self.kernel)
        self._running.cancel()
        links, self.links = self.links, []
        close_or_abort(links, chance)

    def die_and_boot(self) -> None:
        """Kill the kernel and start the next one at once."""
        self.die(random.Random(0))
        self.boot()

    def doom(self, chance: random.Random) -> None:
        """Kill the kernel in the middle of its next turn's record."""
        doom(self.kernel, chance, lambda: self.die(chance))

    async def close(self) -> None:
        for peer in self.peers:
            peer.stop()
        await self.kernel.close()
        if self.kernel._failure is not None:
            raise self.kernel._failure
        await self._running

    def image(self) -> bytes:
        return image(self.kernel)

    def recovered_image(self) -> bytes:
        found = recovered_image(Store(self.folder, IDENTITY), self.make(), self._log_bytes)
        assert found is not None
        return found


def with_crashing_kernel(
    folder: Path, test: Callable[[CrashingKernelRig], Coroutine[Any, Any, T]], **given: Any
) -> T:
    """Run `test` with a kernel that may die, in virtual time."""
    clock = VirtualClock()

    async def main() -> T:
        rig = CrashingKernelRig(clock, folder, **given)
        await rig.join()
        testing = asyncio.create_task(test(rig))
        failing = asyncio.create_task(_watch(rig))
        await asyncio.wait({testing, failing}, return_when=asyncio.FIRST_COMPLETED)
        failing.cancel()
        await rig.close()
        return await testing

    return clock.run(main())


def facts(image: bytes) -> dict[str, Any]:
    """Return what an image says, field by field, for comparison.

    But not which frames are kept: one that has been acknowledged may be kept by who comes back.
    """
    _, classes, roots, objects = msgpack.unpackb(image, strict_map_key=False)
    things = {**roots, **dict(enumerate(objects))}
    found: dict[str, Any] = {}
    for name, (number, *values) in things.items():
        kind, fields = classes[number]
        if kind.endswith(".KVFile"):  # what lies behind the pages in use is anything
            table, count = fields.index("_table"), values[fields.index("_count")]
            values[table] = values[table][3][: 4 * count]
        for field, value in zip(fields, values, strict=True):
            if field == "peers":
                value = [peer[:-1] for peer in value[1:]]
            found[f"{name} {kind.rpartition('.')[2]}.{field}"] = value
    return found


def differences(one: bytes, other: bytes) -> list[str]:
    left, right = facts(one), facts(other)
    return [
        f"{key}: {str(left.get(key))[:300]} != {str(right.get(key))[:300]}"
        for key in left | right
        if left.get(key) != right.get(key)
    ]


async def _watch(rig: CrashingKernelRig) -> None:
    """Return when a kernel of the rig's has gone wrong."""
    while rig.kernel._failure is None:
        await rig.clock.sleep(0.05)
