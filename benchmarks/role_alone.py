"""One role by itself in one process: frames in, frames out, without sockets or the other role.

    python -m benchmarks.host_overhead --role kernel|worker [--lips 1,16,256] [--cold]

What a pred costs the kernel, or the worker, of its processor's time: all frames are made before the
clock starts, and all LIPs make their preds at the same pace, so that each turn of the role takes a
frame with one pred (or one reply) for each of them. The least of several rounds, since other
work of the machine only adds. With another checkout beside this one, run both in turn.

With --cold the caches are emptied before each frame that the role takes, and in the kernel before
each step's end, too (`benchmarks.cold`): so it is beside a model. The kernel guesses preds then, as
with a model, and also makes generations, of which each LIP has one that is not taken from.
"""

import asyncio
import json
import time
from collections.abc import Callable, Iterable
from resource import RUSAGE_SELF, getrusage
from typing import Any

import msgpack
from symphony_kernel.__main__ import new_loop
from symphony_kernel.executor.base import Executor
from symphony_kernel.executor.simulated import SimulatedExecutor, simulated_model
from symphony_kernel.ipc.server import Server
from symphony_kernel.kernel import Kernel, KernelOptions
from symphony_kernel.platform.clock import RealClock
from symphony_kernel.platform.interpreter import settle
from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.links import Frame, OnClosed, OnFrame, decode, encode
from symphony_kernel.protocol.sessions import BEGIN
from symphony_kernel.scheduler.prediction import PredictionOptions
from symphony_runtime import event_loop
from symphony_runtime.compiler.compiler import compile_program
from symphony_runtime.worker.__main__ import tune
from symphony_runtime.worker.worker import Worker
from wasmtime import wat2wasm

from benchmarks.cold import Cold, ColdDevice

WORKER, TENANT, MODULE = "worker-0", "tenant", "guest"
SECRET = b"secret"
PAGES = 1 << 18
HANDLE = 1 << 16
ENTRIES_MAX = 256  # of a file, before it is cut to nothing
ROUNDS = 7
ROUND_PREDS = 20_000  # of all LIPs, about; fewer where each makes ENTRIES_MAX
COLD_TURNS = 128  # of a round: a turn takes milliseconds then
WARM_TURNS = 64
LIMITS = {"wall_ms": 600_000, "cpu_ms": 600_000, "memory_bytes": 1 << 20}
_TOKEN = bytes(4)  # what the device says each time: a pred goes on with it
_WANTED = encode([m.ReceiptWanted.KIND])


class Peer:
    """A link whose other end is this script: what is sent is counted, and the next frame fed."""

    backlog = 0
    closed = False
    body = b""

    def __init__(self, cold: Cold | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._cold = cold
        self._on_frame: OnFrame | None = None
        self._bodies: list[bytes] = []
        self._items_each = 0  # that answer one body
        self._count: Callable[[bytes], int] = _items
        self._items = self._next = self._numbered = 0
        self._over: asyncio.Future[None] | None = None
        self.heard: list[bytes] = []  # while nothing is driven

    # -- Link ----------------------------------------------------------------------------------
    def send(self, frame: Frame, now: bool = False) -> None:
        """See `Link`."""
        self.send_encoded(encode(frame), now)

    def send_encoded(self, body: bytes, now: bool = False) -> None:  # noqa: ARG002
        """See `Link`."""
        if body == _WANTED:
            self._loop.call_soon(self.say, [m.Receipt.KIND, self._numbered])
        elif self._over is None:
            self.heard.append(body)
            self._numbered += body[1] in (m.Calls.KIND, m.Replies.KIND)
        else:
            self._numbered += 1
            self._items += self._count(body)
            if self._items >= self._items_each:
                self._items = 0
                self._loop.call_soon(self._feed)

    def flush(self) -> None:
        """See `Link`."""

    def receive(self, on_frame: OnFrame, on_closed: OnClosed) -> None:  # noqa: ARG002
        """See `Link`."""
        self._on_frame = on_frame

    def close(self) -> None:
        """See `Link`."""

    def abort(self) -> None:
        """See `Link`."""
        raise AssertionError("a frame was not understood")

    # -- The other end -------------------------------------------------------------------------
    def say(self, frame: Frame) -> None:
        """Let the role take a frame."""
        self._take(encode(frame))

    async def hears(self, items: int) -> None:
        """Return once so many calls, replies or messages have come; they are forgotten."""
        while sum(map(_items, self.heard)) < items:
            await asyncio.sleep(0.001)
        self.heard.clear()

    async def drive(
        self, bodies: Iterable[bytes], items_each: int, count: Callable[[bytes], int] | None = None
    ) -> float:
        """Feed frames, each when the last one is answered; return the processor's seconds.

        It is when frames with so many items have come, as `count` has it of each.
        """
        self._bodies, self._next, self._items_each = list(bodies), 0, items_each
        self._count = count or _items
        self._over = self._loop.create_future()
        began = self._role_seconds()
        self._feed()
        await self._over
        self._over = None
        return self._role_seconds() - began

    def _role_seconds(self) -> float:
        """Return the processor's seconds so far but for those that caches were emptied in."""
        return _processor_seconds() - (self._cold.seconds if self._cold else 0.0)

    def _feed(self) -> None:
        if self._next == len(self._bodies):
            assert self._over is not None
            self._over.set_result(None)
            return
        body = self._bodies[self._next]
        self._next += 1
        if self._cold is not None:
            self._cold.flush()
        self._take(body)

    def _take(self, body: bytes) -> None:
        assert self._on_frame is not None
        self._on_frame(decode(body))


def _items(body: bytes) -> int:
    """Return how many items the list of a frame [kind, list] has; 0 of any other frame."""
    if body[0] != 0x92:  # no array of two
        return 0
    if body[2] >> 4 == 0x9:
        return body[2] & 15
    return int.from_bytes(body[3:5], "big") if body[2] == 0xDC else 0


def _ends(body: bytes) -> int:
    """Return how many generations a frame of replies ends."""
    if b"\xc4\0" not in body:  # a result of no bytes
        return 0
    return sum(result == b"" for _, _, result in decode(body)[1])


def _processor_seconds() -> float:
    used = getrusage(RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _turns(lips: int, cold: Cold | None) -> int:
    """Return how many preds each LIP makes in a round."""
    if cold is not None:
        return min(COLD_TURNS, ENTRIES_MAX)
    return max(min(ROUND_PREDS // lips, 4_000), ENTRIES_MAX // 4)


# --- The kernel ----------------------------------------------------------------------------------
def calls(lips: int, turn: int) -> bytes:
    """Return the frame of one pred of each LIP, the `turn`-th (from 1 on)."""
    made: list[list[Any]] = []
    for lip in range(1, lips + 1):
        if turn % ENTRIES_MAX == 0:
            made.append([lip, int(m.Op.KV_TRUNCATE), 0, HANDLE, 0])
        made.append([lip, int(m.Op.PRED), turn, HANDLE, _TOKEN, None, b""])
    return encode([m.Calls.KIND, made])


def generations(lips: int, round_number: int, tokens: int) -> bytes:
    """Return the frame in which each LIP cuts its file and begins a generation."""
    options = msgpack.packb({"max": tokens, "ahead": 1024})
    made: list[list[Any]] = []
    for lip in range(1, lips + 1):
        seq = 2 * round_number + 1
        made.append([lip, int(m.Op.KV_TRUNCATE), seq, HANDLE, 0])
        made.append([lip, int(m.Op.GENERATE), seq + 1, HANDLE, b"\7\0\0\0", options])
    return encode([m.Calls.KIND, made])


class KernelAlone:
    """A kernel with LIPs that have a file each; this process is gateway and worker."""

    def __init__(self, lips: int, cold: Cold | None) -> None:
        self.lips = lips
        clock = RealClock()
        executor: Executor
        if cold is None:
            executor = SimulatedExecutor(clock, PAGES, simulated_model(), hashed=False)
        else:
            executor = ColdDevice(cold, PAGES)
        self._kernel = Kernel(executor, {}, clock, KernelOptions(predictions=PredictionOptions()))
        self._running = asyncio.create_task(self._kernel.run())
        server = Server(self._kernel, {"gateway": SECRET, WORKER: SECRET})
        gateway, self.worker = Peer(), Peer(cold)
        for peer, role, name, session in (
            (gateway, "gateway", "gateway", b""),
            (self.worker, "worker", WORKER, b"a session of this"),
        ):
            server.accept(peer)
            hello = m.Hello(m.PROTOCOL_VERSION, role, name, SECRET, 0, session, BEGIN)
            peer.say(m.encode(hello))
        for lip in range(1, lips + 1):
            gateway.say(m.encode(m.Register(lip, lip, TENANT, WORKER, 0, 0, {})))
        made = [[lip, int(m.Op.KV_CREATE), 0, HANDLE] for lip in range(1, lips + 1)]
        self.worker.say([m.Calls.KIND, made])

    async def preds(self, first: int, turns: int) -> float:
        """Let each LIP make so many preds; return the processor's seconds."""
        bodies = [calls(self.lips, turn) for turn in range(first, first + turns)]
        return await self.worker.drive(bodies, self.lips)

    async def generations(self, number: int, tokens: int) -> float:
        """Let each LIP generate so many tokens; return the processor's seconds.

        How many replies tell them is the kernel's affair; the last one of each is empty.
        """
        body = generations(self.lips, number, tokens)
        return await self.worker.drive([body], self.lips, _ends)

    async def close(self) -> None:
        """End it."""
        await self._kernel.close()
        await self._running


async def kernel_alone(lips: int, cold: Cold | None = None, what: str = "pred") -> float:
    """Return the microseconds of a pred in a kernel, or of a generation's token."""
    alone = KernelAlone(lips, cold)
    settle()
    turns, least, first = _turns(lips, cold), float("inf"), 1
    await alone.preds(first, WARM_TURNS)
    first += WARM_TURNS
    for number in range(ROUNDS):
        if what == "generate":
            taken = await alone.generations(first + number, turns)
        else:
            taken = await alone.preds(first, turns)
            first += turns
        least = min(least, taken)
    await alone.close()
    return least / (turns * lips) * 1e6


# --- The worker ----------------------------------------------------------------------------------
def replies(lips: int, seq: int) -> bytes:
    """Return the frame of one reply to each LIP."""
    return encode([m.Replies.KIND, [[lip, seq, bytes(8)] for lip in range(1, lips + 1)]])


async def _attach(peer: Peer, attaching: Any) -> None:
    """Welcome the worker on a link."""
    attached = asyncio.create_task(attaching)
    await asyncio.sleep(0)  # it says hello
    about = {"model": {"name": "", "vocab_size": 4_096}}
    peer.say(m.encode(m.Welcome(0, about)))
    await attached


async def worker_alone(lips: int, guest: str, cold: Cold | None = None) -> float:
    """Return the microseconds of a pred in a worker. `guest` never cuts its file."""
    compiled = await compile_program(bytes(wat2wasm(guest)))
    worker = Worker(WORKER, SECRET, now=time.monotonic, early_ms=event_loop.EARLY_MS)
    kernel, gateway = Peer(cold), Peer()
    await _attach(kernel, worker.attach_kernel(kernel))
    await _attach(gateway, worker.attach_gateway(gateway))
    turns, least = _turns(lips, cold), float("inf")
    preds = WARM_TURNS + ROUNDS * turns + 1
    gateway.say(m.encode(m.Module(MODULE, compiled.artefact)))
    for lip in range(1, lips + 1):
        start = m.Start(lip, MODULE, "", preds.to_bytes(4, "little"), LIMITS, tenant=TENANT)
        gateway.say(m.encode(start))
    await kernel.hears(lips)  # a file each
    tune()
    for lip in range(1, lips + 1):
        gateway.say(m.encode(m.Deliver(lip, b"go")))
    await kernel.hears(lips)  # the first preds
    first = 2  # the number of their tickets: the message had one before
    await kernel.drive([replies(lips, first + turn) for turn in range(WARM_TURNS)], lips)
    first += WARM_TURNS
    for _ in range(ROUNDS):
        bodies = [replies(lips, first + turn) for turn in range(turns)]
        least = min(least, await kernel.drive(bodies, lips))
        first += turns
    worker.close()
    return least / (turns * lips) * 1e6


def measure(
    role: str, lips: list[int], guest: str, cold: bool = False, what: str = "pred"
) -> dict[int, float]:
    """Return the microseconds of a pred in a role, by the number of LIPs.

    `what`: of a kernel, "generate" measures a generation's token instead.
    """
    caches = Cold() if cold else None
    if role == "worker":
        endless = guest.replace(f"i32.const {ENTRIES_MAX}", f"i32.const {1 << 30}")
        return {number: event_loop.run(worker_alone(number, endless, caches)) for number in lips}
    found: dict[int, float] = {}
    for number in lips:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            found[number] = runner.run(kernel_alone(number, caches, what))
    return found


def show(role: str, found: dict[str, dict[int, float]], as_json: bool) -> None:
    """Print what `measure` returns, by what was measured."""
    if as_json:
        print(json.dumps({"role": role} | {f"us_per_{what}": by for what, by in found.items()}))
        return
    for what, by_lips in found.items():
        each = "pred" if what == "pred" else "token generated"
        print(f"{'LIPs':>6} {f'{role}, cpu us a {each}':>36}")
        for lips, microseconds in by_lips.items():
            print(f"{lips:>6} {microseconds:>36.1f}")
