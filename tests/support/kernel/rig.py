"""A kernel in this process, and a gateway and workers that speak the protocol by hand."""

import asyncio
import struct
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import msgpack
import numpy as np
from symphony_kernel.executor.base import Executor
from symphony_kernel.executor.models.assets import ModelAssets
from symphony_kernel.executor.simulated import CostModel, SimulatedExecutor, simulated_model
from symphony_kernel.kernel import Kernel, KernelOptions, describe
from symphony_kernel.maintenance.upkeep import AuditOptions
from symphony_kernel.platform.clock import Clock, VirtualClock
from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.links import Link

from tests.support.memory_links import attach_peer, memory_pair

T = TypeVar("T")
Result = int | bytes

ASSETS = ModelAssets(simulated_model(), b"{}", None, {})
A, B, C = 1 << 16, 1 << 16 | 1, 1 << 16 | 2  # handles
PROMPT = np.arange(1, 60, dtype="<u4").tobytes()
ANY_MS = CostModel(fixed_us=10_000, prefill_token_us=10, decode_row_us=20)


def tokens(*ids: int) -> bytes:
    return np.array(ids, "<u4").tobytes()


def options(**given: Any) -> bytes:
    packed: bytes = msgpack.packb(given)
    return packed


def pairs(result: Result) -> list[tuple[int, float]]:
    """Decode (token, value) pairs."""
    assert isinstance(result, bytes), f"errno {result}"
    return list(struct.iter_unpack("<If", result))


class Worker:
    """One worker's end of its link. Every instance's calls go through it."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.welcome: asyncio.Future[m.Welcome] = asyncio.get_running_loop().create_future()
        self.closed = asyncio.Event()
        self.replies: dict[tuple[int, int], asyncio.Future[Result]] = {}
        self.generations: dict[tuple[int, int], Generation] = {}
        self.order: list[tuple[int, int]] = []
        self.paces: list[m.Pace] = []
        self.frames = 0
        self._seq = 0
        link.receive(self._on_frame, self.closed.set)

    def _on_frame(self, frame: list[Any]) -> None:
        message = m.decode(frame)
        if isinstance(message, m.Welcome):
            self.welcome.set_result(message)
            return
        if isinstance(message, m.Pace):
            self.paces.append(message)
            return
        assert isinstance(message, m.Replies)
        self.frames += 1
        for instance, seq, result in message.replies:
            self.order.append((instance, seq))
            if (instance, seq) in self.generations:
                self.generations[instance, seq].put(result)
                continue
            self.replies.pop((instance, seq)).set_result(result)

    def call(self, instance: int, op: int, *args: Any) -> asyncio.Future[Result]:
        """Send one call that wants a reply."""
        (reply,) = self.calls((instance, op, *args))
        return reply

    def tell(self, instance: int, op: int, *args: Any) -> None:
        """Send one call that wants none."""
        self.link.send(m.encode(m.Calls([[instance, op, 0, *args]])))

    def create(self, instance: int, *handles: int) -> None:
        """Make an empty file for each handle."""
        for handle in handles:
            self.tell(instance, m.Op.KV_CREATE, handle)

    def calls(self, *calls: tuple[Any, ...]) -> list[asyncio.Future[Result]]:
        """Send several calls in one frame; each wants a reply."""
        frame, replies = [], []
        for instance, op, *args in calls:
            self._seq += 1
            reply: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
            self.replies[instance, self._seq] = reply
            replies.append(reply)
            frame.append([instance, op, self._seq, *args])
        self.link.send(m.encode(m.Calls(frame)))
        return replies

    def pred(
        self, instance: int, handle: int, ids: bytes, opts: bytes = b"", positions: Any = None
    ) -> asyncio.Future[Result]:
        return self.call(instance, m.Op.PRED, handle, ids, positions, opts)

    def generate(
        self, instance: int, handle: int, ids: bytes, eager: bool = True, **given: Any
    ) -> "Generation":
        """Begin a generation; an `eager` one gives credit for each record at once."""
        self._seq += 1
        made = Generation(self, instance, self._seq, eager, 8 * (1 + given.get("logprobs", 0)))
        self.generations[instance, self._seq] = made
        packed = options(**given) if given else b""
        self.link.send(
            m.encode(m.Calls([[instance, m.Op.GENERATE, self._seq, handle, ids, packed]]))
        )
        return made

    async def complete(
        self, instance: int, handle: int, ids: bytes, eager: bool = True, **given: Any
    ) -> "Generation":
        """Return a generation that has ended without an error."""
        made = self.generate(instance, handle, ids, eager, **given)
        assert await made.end == b""
        return made


class Generation:
    """What a generation gave: `records` in order, then `end` (b"" or an errno)."""

    def __init__(self, worker: Worker, instance: int, seq: int, eager: bool, size: int = 8) -> None:
        """`size`: of a record, in bytes."""
        self.worker, self.instance, self.seq, self.eager = worker, instance, seq, eager
        self.size = size
        self.records: list[bytes] = []
        self.replies = 0  # that had records
        self.times: list[float] = []  # of the records, in the loop's seconds
        self.end: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

    def put(self, result: Result) -> None:
        assert not self.end.done(), "a reply behind the last one"
        if isinstance(result, int) or not result:
            self.end.set_result(result)
            return
        count, rest = divmod(len(result), self.size)
        assert not rest, "a record is never split"
        self.replies += 1
        self.records += [result[at : at + self.size] for at in range(0, len(result), self.size)]
        self.times += [asyncio.get_running_loop().time()] * count
        if self.eager:
            self.take(count)

    def take(self, n: int) -> None:
        """Give credit for n records."""
        self.worker.tell(self.instance, m.Op.TAKEN, self.seq, n)

    def cancel(self) -> None:
        self.worker.tell(self.instance, m.Op.CANCEL, self.seq)

    @property
    def ids(self) -> list[int]:
        return [int.from_bytes(record[:4], "little") for record in self.records]


async def pred_loop(
    worker: Worker, instance: int, count: int, prompt: bytes = PROMPT, **given: Any
) -> list[bytes]:
    """Return what a loop of preds with one result each gives, from a prompt on."""
    packed = options(**given) if given else b""
    records, next_ = [], prompt
    for _ in range(count):
        record = await worker.pred(instance, A, next_, packed)
        assert isinstance(record, bytes), record
        records.append(record)
        next_ = record[:4]
    return records


async def appended(worker: Worker, instance: int = 1, handle: int = A) -> list[int]:
    """Return the tokens behind PROMPT."""
    start = len(PROMPT) // 4
    length = await worker.call(instance, m.Op.KV_LEN, handle)
    assert isinstance(length, int)
    found = await worker.call(instance, m.Op.KV_TOKENS, handle, start, length - start)
    assert isinstance(found, bytes)
    return [int.from_bytes(found[i : i + 4], "little") for i in range(0, len(found), 4)]


class Gateway:
    """The gateway's end of its link."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.welcome: asyncio.Future[m.Welcome] = asyncio.get_running_loop().create_future()
        self.closed = asyncio.Event()
        self.exceeded: list[m.Exceeded] = []
        self.traced: list[m.Traced] = []
        self.paces: list[m.Pace] = []
        self._answers: dict[int, asyncio.Future[m.Answer]] = {}
        self._seq = 0
        link.receive(self._on_frame, self.closed.set)

    def _on_frame(self, frame: list[Any]) -> None:
        message = m.decode(frame)
        if isinstance(message, m.Welcome):
            self.welcome.set_result(message)
        elif isinstance(message, m.Exceeded):
            self.exceeded.append(message)
        elif isinstance(message, m.Traced):
            self.traced.append(message)
        elif isinstance(message, m.Pace):
            self.paces.append(message)
        else:
            assert isinstance(message, m.Answer)
            self._answers.pop(message.seq).set_result(message)

    def _send(self, make: Callable[[int], m.Message]) -> Awaitable[m.Answer]:
        self._seq += 1
        answer: asyncio.Future[m.Answer] = asyncio.get_running_loop().create_future()
        self._answers[self._seq] = answer
        self.link.send(m.encode(make(self._seq)))
        return answer

    async def register(
        self,
        instance: int,
        tenant: str = "t",
        worker: str = "w",
        parent: int = 0,
        stage: int = 0,
        **given: Any,
    ) -> m.Answer:
        return await self._send(
            lambda seq: m.Register(seq, instance, tenant, worker, parent, stage, given)
        )

    async def end(self, instance: int) -> m.Answer:
        return await self._send(lambda seq: m.End(seq, instance))

    async def ask(self, what: str, **args: Any) -> m.Answer:
        return await self._send(lambda seq: m.Ask(seq, what, args))

    async def statistics(self) -> dict[str, Any]:
        answer = await self.ask("statistics")
        assert isinstance(answer.value, dict)
        return answer.value

    async def check_integrity(self) -> None:
        answer = await self.ask("check_integrity")
        assert (answer.errno, answer.value) == (0, 0)


class KernelRig:
    """A running kernel with a gateway and the worker "w" on in-memory links."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.gateway = self.attach_gateway()
        self.worker = self.attach_worker("w")

    def attach_gateway(self) -> Gateway:
        ours, theirs = memory_pair()
        attach_peer(self.kernel, "gateway", ours)
        return Gateway(theirs)

    def attach_worker(self, name: str) -> Worker:
        ours, theirs = memory_pair()
        attach_peer(self.kernel, name, ours)
        return Worker(theirs)


class HasPeers(Protocol):
    """A rig with a gateway and a worker."""

    gateway: Gateway
    worker: Worker


async def start(rig: HasPeers, instance: int = 1, **given: Any) -> Worker:
    """Register an instance of the worker "w" with an empty file at handle A."""
    answer = await rig.gateway.register(instance, **given)
    assert answer.errno == 0, answer
    rig.worker.tell(instance, m.Op.KV_CREATE, A)
    return rig.worker


def ids(result: Result) -> list[int]:
    return [token for token, _ in pairs(result)]


async def decode(worker: Worker, instance: int, handle: int, first: int, count: int) -> list[int]:
    """Decode greedily; each answer is the next pred's token."""
    token, out = first, []
    for _ in range(count):
        (token,) = ids(await worker.pred(instance, handle, tokens(token)))
        out.append(token)
    return out


def poisoned(given: KernelOptions | None = None) -> KernelOptions:
    """Return options that poison freed pages and frames, so that a read of them shows."""
    given = given or KernelOptions()
    return replace(given, places=replace(given.places, poison=True))


def audited(given: KernelOptions | None = None) -> KernelOptions:
    """Return such options under which the kernel also audits itself while it is idle."""
    return replace(poisoned(given), audit=AuditOptions(seconds=0.1))


async def run_beside(kernel: Kernel, test: Callable[[KernelRig], Coroutine[Any, Any, T]]) -> T:
    """Run a test beside a kernel until either of them ends."""
    running = asyncio.create_task(kernel.run())
    testing = asyncio.create_task(test(KernelRig(kernel)))
    await asyncio.wait({testing, running}, return_when=asyncio.FIRST_COMPLETED)
    await kernel.close()
    await running
    return await testing


def with_kernel(
    test: Callable[[KernelRig], Coroutine[Any, Any, T]],
    *,
    pages: int = 256,
    costs: CostModel | None = None,
    executor: Callable[[Clock], Executor] | None = None,
    kernel_options: KernelOptions | None = None,
) -> T:
    """Run `test` with a kernel in virtual time; afterwards it must hold nothing."""
    clock = VirtualClock()

    async def main() -> T:
        device = (
            executor(clock)
            if executor
            else SimulatedExecutor(clock, pages, costs=costs if costs is not None else ANY_MS)
        )
        kernel = Kernel(device, describe(ASSETS), clock, poisoned(kernel_options))
        result = await run_beside(kernel, test)
        statistics = kernel.statistics()
        assert statistics["instances"] == 0
        free = statistics["pages_free"] + statistics["prefix_cache_idle_pages"]
        # Offered pages may be off the device: then all frames are free, and they count besides.
        assert free >= statistics["pages"] or statistics["names"]
        return result

    return clock.run(main())
