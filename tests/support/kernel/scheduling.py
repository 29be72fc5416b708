"""A scheduler without a kernel: files that are only lengths, and a device that counts."""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from math import inf

import numpy as np
from symphony_kernel.executor.base import Int32, UInt32
from symphony_kernel.executor.simulated import CostModel
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.filesystem import KVFS
from symphony_kernel.kvfs.tenants import TenantLimits
from symphony_kernel.kvfs.tiers.eviction import Eviction
from symphony_kernel.platform.clock import VirtualClock
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import PAGE_TOKENS
from symphony_kernel.protocol.pred_options import DEFAULT, PredOptions
from symphony_kernel.request import Request
from symphony_kernel.scheduler.batcher import Step, StepLimits
from symphony_kernel.scheduler.scheduler import Scheduler, Wait

from tests.support.kernel.page_device import make_account

VOCAB_SIZE = 64
UNBOUNDED = StepLimits(decode_gap_ms=inf)  # test_fairness has the bound
COSTS = CostModel(fixed_us=10_000, prefill_token_us=10, decode_row_us=20)


class Pool:
    """A number of free pages."""

    def __init__(self, pages: int = 1 << 20) -> None:
        self.pages = self.free = pages


def no_eviction() -> Eviction:
    """Return the eviction of a device from which `LengthFile`s take no frames."""
    return KVFS(1, lambda: 0.0).eviction


class LengthFile:
    """A `RequestFile` of a pool: real bookkeeping of room, no contents."""

    def __init__(self, pool: Pool, length: int = 0) -> None:
        self.pool = pool
        self.length = 0
        self.pages = 0
        self.error: Errno | None = None
        self.computed_at = 0.0
        self.root = 0
        self.era = 1  # the eviction order's first: it never counts as unused
        if length:
            self.reserve(length)
            self.length = length

    def pages_needed(self, n: int) -> int:
        return max(0, -(-(self.length + n) // PAGE_TOKENS) - self.pages)

    def reserve(self, n: int) -> None:
        needed = self.pages_needed(n)
        if needed > self.pool.free:
            raise SyscallError(Errno.ENOMEM)
        self.pool.free -= needed
        self.pages += needed

    def block_table(self, entries: int) -> Int32:
        assert entries <= self.pages * PAGE_TOKENS
        return _range(0, -(-entries // PAGE_TOKENS))

    def commit(
        self, tokens: UInt32, positions: Int32, parents: Sequence[int] | None = None
    ) -> None:
        assert len(tokens) == len(positions)
        self.length += len(tokens)
        assert self.length <= self.pages * PAGE_TOKENS

    def commit_one(self, token: int, position: int) -> None:
        self.commit(np.array([token], np.uint32), np.array([position], np.int32))

    def unreserve(self) -> None:
        self._keep(-(-self.length // PAGE_TOKENS))

    def close(self) -> None:
        self.length = 0
        self._keep(0)

    def _keep(self, pages: int) -> None:
        self.pool.free += self.pages - pages
        self.pages = pages


# Millions of requests are made of the same few arrays.
@lru_cache(maxsize=256)
def _tokens(count: int) -> UInt32:
    made = np.arange(count, dtype=np.uint32) % VOCAB_SIZE
    made.setflags(write=False)
    return made


@lru_cache(maxsize=1024)
def _range(first: int, count: int) -> Int32:
    made = np.arange(first, first + count, dtype=np.int32)
    made.setflags(write=False)
    return made


def make_work(
    root: int,
    tokens: int = 1,
    file: LengthFile | KVFile | None = None,
    *,
    tenant: str = "t",
    instance: int | None = None,
    options: PredOptions = DEFAULT,
    weight: float = 1.0,
    done: Callable[[bytes | int], None] = lambda _: None,
) -> Request:
    """Return a pred of `tokens` tokens at the end of `file`, or of a file of its own."""
    file = LengthFile(Pool()) if file is None else file
    return Request(
        instance=root if instance is None else instance,
        root=root,
        tenant=tenant,
        seq=1,
        file=file,
        tokens=_tokens(tokens),
        positions=_range(file.length, tokens),
        options=options,
        done=done,
        weight=weight,
    )


class Device:
    """Runs a scheduler's steps on a virtual clock, one after the other, and keeps their parts."""

    def __init__(self, clock: VirtualClock, scheduler: Scheduler, costs: CostModel) -> None:
        self.clock, self.scheduler, self.costs = clock, scheduler, costs
        self.steps: list[list[tuple[int, int]]] = []  # (root, tokens) of each row

    async def run_until_idle(self, seconds_max: float = 1e9) -> None:
        """Launch and complete steps until nothing waits (or the time is up)."""
        end = self.clock.now() + seconds_max
        while self.clock.now() < end:
            polled = self.scheduler.poll()
            if polled is None:
                return
            if isinstance(polled, Wait):
                await self.clock.sleep(polled.seconds)
                continue
            self.steps.append([(part.request.root, part.count) for part in polled.chunks])
            await self.clock.sleep(self.costs.seconds(polled.batch))
            self.scheduler.complete(
                polled,
                [
                    bytes(len(row.places) * row.options.place_bytes(VOCAB_SIZE, 0))
                    for row in polled.batch.rows
                ],
            )


class SchedulerRig:
    """A scheduler and a device on a virtual clock. Only KV files take its `frames`."""

    def __init__(self, frames: int = 1, costs: CostModel = COSTS) -> None:
        self.clock, self.pool = VirtualClock(), Pool()
        self.kvfs = KVFS(frames, self.clock.now, TenantLimits(frames))
        self.scheduler = Scheduler(self.clock, VOCAB_SIZE, self.kvfs.eviction, UNBOUNDED)
        self.device = Device(self.clock, self.scheduler, costs)
        self.results: list[tuple[int, bytes | int]] = []

    def note(self, root: int) -> Callable[[bytes | int], None]:
        return lambda result: self.results.append((root, result))

    def submit(
        self,
        root: int,
        tokens: int = 1,
        file: LengthFile | None = None,
        *,
        tenant: str = "t",
        options: PredOptions = DEFAULT,
    ) -> LengthFile:
        file = file or LengthFile(self.pool)
        self._submit(root, tokens, file, tenant, options)
        return file

    def submit_new(self, root: int, tokens: int, options: PredOptions = DEFAULT) -> None:
        """Submit a pred on a new KV file, which takes frames."""
        self._submit(root, tokens, self.kvfs.create("t", make_account(self.kvfs)), "t", options)

    def _submit(
        self, root: int, tokens: int, file: LengthFile | KVFile, tenant: str, options: PredOptions
    ) -> None:
        done = self.note(root)
        self.scheduler.submit(
            make_work(root, tokens, file, tenant=tenant, options=options, done=done)
        )

    def step(self) -> Step:
        """Form a step, without computing it."""
        step = self.scheduler.poll()
        assert isinstance(step, Step)
        return step

    def run(self, seconds_max: float = 1e9) -> None:
        self.clock.run(self.device.run_until_idle(seconds_max))

    def sleep(self, seconds: float) -> None:
        self.clock.run(self.clock.sleep(seconds))

    def decode(self, root: int, times: int) -> None:
        """Let a LIP decode: each answer is followed at once by the next pred."""
        file = LengthFile(self.pool)
        left = [times]

        def done(result: bytes | int) -> None:
            self.results.append((root, result))
            left[0] -= 1
            if left[0] > 0:
                self.scheduler.submit(make_work(root, 1, file, done=done))

        self.scheduler.submit(make_work(root, 1, file, done=done))


def tokens_of(steps: Iterable[list[tuple[int, int]]], root: int) -> int:
    """Return how many tokens of a LIP the steps computed."""
    return sum(count for step in steps for each, count in step if each == root)
