"""Tenants whose programs make one pred after the other, against a scheduler in virtual time."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from symphony_kernel.platform.clock import VirtualClock
from symphony_kernel.protocol.pred_options import DEFAULT, PredOptions
from symphony_kernel.scheduler.batcher import Step, StepLimits
from symphony_kernel.scheduler.scheduler import Scheduler

from tests.support.kernel.scheduling import VOCAB_SIZE, LengthFile, Pool, make_work, no_eviction

PAGES = 1 << 24


@dataclass(frozen=True)
class Wants:
    """What a tenant does: each branch of its LIPs makes a pred, and the next after its result."""

    lips: tuple[int, ...] = (1,)  # branches of each
    weight: float = 1.0
    size: int = 1  # tokens of a pred
    context: int = 0  # entries before it
    tree: bool = False
    think: float | None = 0.0  # seconds from a result to the next pred; None: in the same turn
    begin: float = 0.0
    computes: float = 0.0  # seconds of a processor for each second of the device's
    result_bytes: int = 0  # of a pred; 0: as many as its options make it


class World:
    """Runs tenants against a scheduler; subclasses say what a step takes."""

    limits = StepLimits()
    always_busy = False  # whether some request must always be queued

    def __init__(self, tenants: Mapping[str, Wants]) -> None:
        self.clock, self.pool, self.tenants = VirtualClock(), Pool(PAGES), tenants
        self.scheduler = Scheduler(self.clock, VOCAB_SIZE, no_eviction(), self.limits)
        for name, wants in tenants.items():
            self.scheduler.set_tenant_weight(name, wants.weight)

    async def serve(self, ended: Callable[[], bool]) -> None:
        """Launch steps one after the other until `ended` says so."""
        self.loop, self.came = asyncio.get_running_loop(), asyncio.Event()
        lips = [(name, lip) for name, wants in self.tenants.items() for lip in wants.lips]
        for root, (name, branches) in enumerate(lips, 1):
            for branch in range(branches):
                if begin := self.tenants[name].begin:
                    self.loop.call_later(begin, self._submit, name, root, branch)
                else:
                    self._submit(name, root, branch)
        while not ended():
            self.came.clear()
            polled = self.scheduler.poll()
            if isinstance(polled, Step):
                await self.compute(polled)
                continue
            assert polled is not None or not self.always_busy, "no request is queued"
            timer = self.loop.call_later(0.1 if polled is None else polled.seconds, self.came.set)
            await self.came.wait()
            timer.cancel()

    async def compute(self, step: Step) -> None:
        """Take a step's time and complete it."""
        raise AssertionError("each world has its own")

    def answered(self, name: str) -> None:
        """A pred of a tenant has its result."""

    def _submit(self, name: str, root: int, branch: int) -> None:
        wants = self.tenants[name]
        file, options = LengthFile(self.pool, wants.context), DEFAULT
        if wants.tree:
            options = PredOptions(parents=(-1,) + (0,) * (wants.size - 1), keep=False)

        def done(result: bytes | int) -> None:
            assert isinstance(result, bytes)
            file.close()
            self.answered(name)
            if wants.think is None:
                self._submit(name, root, branch)
            else:
                self.loop.call_later(wants.think, self._submit, name, root, branch)

        request = make_work(
            root, wants.size, file, tenant=name, instance=branch + 1, options=options, done=done
        )
        self.scheduler.submit(request)
        self.came.set()
