"""One tenant's completions during another's floods: the whole kernel, in virtual time.

What the tenant gets is compared with what it has alone on a device of half the speed, its fair
share of two: exact, and the same on every machine.
"""

import asyncio
import statistics
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import astuple, dataclass
from itertools import count, pairwise, product
from typing import Any

import numpy as np
from symphony_kernel.executor.base import Batch
from symphony_kernel.executor.simulated import CostModel, SimulatedExecutor
from symphony_kernel.kernel import Kernel
from symphony_kernel.options import KernelOptions
from symphony_kernel.platform.clock import VirtualClock
from symphony_kernel.protocol.limits import DELIVERY_BATCH_MS_MAX, LOOKAHEAD_STEPS_MAX
from symphony_kernel.protocol.messages import Op
from symphony_kernel.scheduler.batcher import StepLimits
from symphony_kernel.syscalls.table import Handler

from tests.support.kernel.rig import A, KernelRig, Worker, start, with_kernel

VICTIM, HOSTILE = "victim", "hostile"
PAGES = 1 << 15  # room for all of them
INSTANCES = 100  # the victim's are from here on
REPLACE = 1
TOKENS_MAX = 400  # ids of prompts
FILE_CALLS = (
    Op.KV_CREATE, Op.KV_FORK, Op.KV_APPEND, Op.KV_SAVE, Op.KV_CLOSE, Op.KV_TRUNCATE, Op.KV_LIST,
    Op.KV_TOKENS, Op.KV_OFFER, Op.KV_MATCH, Op.KV_EXTRACT,
)  # fmt: skip
_COUNTED = ("prefill_tokens", "device_steps_ahead", "steps")


@dataclass(frozen=True)
class Completions:
    """What the victim wants: so many streams of completions, one behind the other."""

    streams: int = 2
    prompt: int = 60
    tokens: int = 96
    each: int = 3  # completions of a stream
    between_ms: float = 4.0  # from the end of one to the next one's first call


WANTED = {
    "short prompts": Completions(),
    # Of one stream: prompts of several would lengthen each other's steps, alone at other times.
    "long prompts": Completions(streams=1, prompt=1_000, tokens=48),
}


@dataclass(frozen=True, slots=True)
class Device(CostModel):
    """What a step takes. `host_us`: the host's part of one that does not follow by itself."""

    host_us: float = 0.0

    def seconds(self, batch: Batch) -> float:
        """Return the duration of one step."""
        host = self.host_us if batch.chain is None and batch.rows else 0.0
        return CostModel.seconds(self, batch) + 1e-6 * host

    def told(self) -> int:
        """Return how many tokens a reader gets at once, where steps are short."""
        step_ms = (self.fixed_us + self.decode_row_us) / 1000
        return min(max(int(DELIVERY_BATCH_MS_MAX / step_ms), 1), LOOKAHEAD_STEPS_MAX)

    def slower(self, times: float) -> "Device":
        """Return one that takes so many times as long for everything."""
        return Device(*(times * each for each in astuple(self)))


@dataclass(frozen=True)
class Got:
    """What the victim's completions got."""

    rate: float  # tokens a second
    first_ms: float  # mean time to a completion's first token
    p99_ms: float  # between two tokens, or batches of them that are delivered together
    beside: float  # tokens a second of prompts that others had computed meanwhile
    ahead: float  # of all steps those that the device went on with by itself

    def worse(self, fair: "Got") -> tuple[float, float, float]:
        """Return how many times worse than a fair share it is: throughput, first, between."""
        return fair.rate / self.rate, self.first_ms / fair.first_ms, self.p99_ms / fair.p99_ms


# -- The floods ------------------------------------------------------------------------------------
Flood = Callable[[Worker, int], Coroutine[Any, Any, None]]


def prompts(size: int) -> Flood:
    """Return a program that has prompts of so many tokens computed, without end."""

    async def run(worker: Worker, instance: int) -> None:
        while True:
            assert isinstance(await worker.pred(instance, A, _ids(instance, size)), bytes)
            assert await worker.call(instance, Op.KV_TRUNCATE, A, 0) == 0

    return run


async def files(worker: Worker, instance: int) -> None:
    """Make KV files without end: prompts, forks, appends, names."""
    for turn in count(1):
        assert isinstance(await worker.pred(instance, A, _ids(instance, 64)), bytes)
        forks = [turn << 16 | index for index in range(1, 33)]
        for fork in forks:
            worker.tell(instance, Op.KV_FORK, fork, A)
            worker.tell(instance, Op.KV_APPEND, fork, A, 0, 63)
            assert await worker.call(instance, Op.KV_SAVE, fork, "a", REPLACE) == 0
        for fork in forks:
            worker.tell(instance, Op.KV_CLOSE, fork)
        await worker.call(instance, Op.KV_TRUNCATE, A, 0)


def in_parallel(number: int, one: Callable[[Worker, int, int], Coroutine[Any, Any, None]]) -> Flood:
    """Return a program that does `one` thing with so many files at once."""

    async def run(worker: Worker, instance: int) -> None:
        handles = [1 << 16 | index for index in range(1, 1 + number)]
        worker.create(instance, *handles)
        await asyncio.gather(*(one(worker, instance, handle) for handle in handles))

    return run


async def _decode(worker: Worker, instance: int, handle: int) -> None:
    while True:
        for token in range(1, 200):
            assert isinstance(await worker.pred(instance, handle, _ids(token, 1)), bytes)
        await worker.call(instance, Op.KV_TRUNCATE, handle, 0)


async def _generate(worker: Worker, instance: int, handle: int) -> None:
    while True:
        await worker.generate(instance, handle, _ids(handle, 1), max=200).end
        await worker.call(instance, Op.KV_TRUNCATE, handle, 0)


FLOODS: dict[str, list[Flood]] = {
    "prompts": [prompts(8_000)] * 16,
    "small prompts": [prompts(200)] * 64,
    "files": [files] * 6,
}
FLOODS["all of these"] = [flood for floods in list(FLOODS.values()) for flood in floods]
# Decodes of others lengthen each step, too: that no rule bounds.
FLOODS["branches"] = [in_parallel(40, _decode)]
GENERATIONS = [in_parallel(256, _generate)]


# -- Measuring -------------------------------------------------------------------------------------
def measure(
    device: Device,
    wanted: Completions,
    floods: list[Flood],
    told: int | None = None,
    call_us: float = 0.0,
    weights: tuple[float, float] = (1.0, 1.0),
    attackers: int = 1,
) -> Got:
    """Return what the victim gets during these, or alone; `told`: tokens that are told together.

    `call_us`: what a call on a KV file takes the kernel, which does nothing else meanwhile.
    `weights` are the victim's and each attacker's; of the latter each runs all floods.
    """
    told = told or device.told()
    tenants = [f"{HOSTILE}{number}" for number in range(attackers)]

    async def test(rig: KernelRig) -> Got:
        take_time(rig.kernel, call_us)
        hostile = []
        for instance, (flood, tenant) in enumerate(product(floods, tenants), 1):
            worker = await start(rig, instance, tenant=tenant)
            hostile.append(asyncio.ensure_future(flood(worker, instance)))
        numbers = count(INSTANCES + len(hostile))
        await _stream(rig, numbers, wanted, 2)  # so that the costs are known
        loop = asyncio.get_running_loop()
        began, before = loop.time(), await rig.gateway.statistics()
        streams = (_stream(rig, numbers, wanted, wanted.each) for _ in range(wanted.streams))
        found = [each for stream in await asyncio.gather(*streams) for each in stream]
        seconds = loop.time() - began
        after = await rig.gateway.statistics()
        more = {key: after[key] - before[key] for key in _COUNTED}
        assert not any(task.done() for task in hostile), "a flood has ended"
        for instance in range(1, 1 + len(hostile)):
            await rig.gateway.end(instance)  # so nothing is answered any more
        for task in hostile:
            task.cancel()
        return _got(found, seconds, told, wanted.prompt * len(found), more)

    return with_kernel(
        test,
        executor=lambda clock: SimulatedExecutor(clock, PAGES, costs=device, hashed=False),
        kernel_options=KernelOptions(
            steps=StepLimits(delivery_ms=DELIVERY_BATCH_MS_MAX),
            tenant_weights={VICTIM: weights[0], **dict.fromkeys(tenants, weights[1])},
        ),
    )


def take_time(kernel: Kernel, call_us: float) -> None:
    """Let each of a kernel's calls on KV files take so long, in virtual time."""
    clock, table = kernel._clock, kernel._syscalls._table
    assert isinstance(clock, VirtualClock)

    def slow(handler: Handler) -> Handler:
        def call(*given: Any) -> Any:
            clock._jump(call_us * 1e-6)
            return handler(*given)

        return call

    for op in FILE_CALLS if call_us else ():
        handler, arguments = table[op]
        table[op] = slow(handler), arguments


def fair(device: Device, wanted: Completions) -> Got:
    """Return what the victim has alone on a device of half the speed."""
    return measure(device.slower(2.0), wanted, [], device.told())


async def _stream(
    rig: KernelRig, numbers: Iterator[int], wanted: Completions, completions: int
) -> list[list[float]]:
    """Return of each completion when it began and when each of its tokens came."""
    loop, found = asyncio.get_running_loop(), []
    for _ in range(completions):
        await asyncio.sleep(wanted.between_ms / 1000)
        instance, began = next(numbers), loop.time()
        worker = await start(rig, instance, tenant=VICTIM)
        made = await worker.complete(instance, A, _ids(instance, wanted.prompt), max=wanted.tokens)
        await rig.gateway.end(instance)
        assert len(made.times) == wanted.tokens
        found.append([began, *made.times])
    return found


def _got(
    found: list[list[float]], seconds: float, told: int, own: int, more: dict[str, int]
) -> Got:
    tokens = [times[1:] for times in found]
    gaps = [b - a for times in tokens for a, b in pairwise(times[::told])]
    return Got(
        rate=sum(map(len, tokens)) / seconds,
        first_ms=1000 * statistics.mean(times[1] - times[0] for times in found),
        p99_ms=1000 * statistics.quantiles(gaps, n=100)[98],
        beside=(more["prefill_tokens"] - own) / seconds,
        ahead=more["device_steps_ahead"] / more["steps"],
    )


def _ids(seed: int, size: int) -> bytes:
    return (np.arange(seed, seed + size) % TOKENS_MAX + 1).astype("<u4").tobytes()
