"""The same simulation on real kernels: schedulers, KVFS and prefix cache, on simulated devices.

Each node is a whole kernel (`symphony_kernel.kernel.Kernel`) under one virtual clock. A run is one
generation with `share`, so its document comes from the kernel's prefix cache, or goes there. It is
for traces of documents: an agent's tools and a node's failure are only in the model.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import numpy as np
from symphony_kernel.executor.simulated import SimulatedExecutor
from symphony_kernel.kernel import Kernel, KernelOptions, describe
from symphony_kernel.platform.clock import VirtualClock
from symphony_kernel.protocol.limits import GPU_PREFILL_QUANTUM_TOKENS, PAGE_TOKENS
from symphony_kernel.protocol.messages import Op
from symphony_kernel.scheduler.batcher import StepLimits

from benchmarks.cluster.nodes import Job, Node
from benchmarks.cluster.simulation import Outcome, Simulation
from benchmarks.cluster.traces import DOCUMENT_TOKENS, Work
from tests.support.kernel.rig import ASSETS, A, KernelRig

TENANT = "t"
_VOCABULARY = 4_000
_LOOK_S = 0.001  # between looks for a first token
_MOST_PAGES = 4  # times the cache, so that no run waits for pages


def document_tokens(document: int) -> bytes:
    """Return a document's tokens (u32)."""
    source = np.random.default_rng(document)
    return source.integers(1, _VOCABULARY, DOCUMENT_TOKENS).astype("<u4").tobytes()


class KernelNode(Node):
    """A node whose steps a kernel forms; `cache` says what its prefix cache holds."""

    __slots__ = ("_instances", "_texts", "kernel", "rig")

    def begin(self, kernel: Kernel) -> None:
        self.kernel, self.rig = kernel, KernelRig(kernel)
        self._instances = 0
        self._texts: dict[bytes, bytes] = {}  # documents that were here

    def start(self, job: Job, now: float) -> None:  # noqa: ARG002 - the kernel has the clock
        self.jobs.add(job)
        document = document_tokens(job.work.document)
        self._texts[job.key] = document
        self.cache[job.key] = DOCUMENT_TOKENS
        self._instances += 1
        question = np.random.default_rng((self.index, self._instances))
        own = question.integers(1, _VOCABULARY, job.work.turns[0].prompt).astype("<u4").tobytes()
        job.task = asyncio.ensure_future(self._run(job, self._instances, document + own))

    async def _run(self, job: Job, instance: int, prompt: bytes) -> None:
        answer = await self.rig.gateway.register(instance, job.work.tenant)
        assert answer.errno == 0, answer
        worker = self.rig.worker
        worker.tell(instance, Op.KV_CREATE, A)
        made = worker.generate(instance, A, prompt, max=job.work.turns[0].answer, share=True)
        while not made.records and not made.end.done():
            await asyncio.sleep(_LOOK_S)
        if made.records:
            job.first = made.times[0]
            self._first(job, job.first)
        assert await made.end == b"", "a generation has failed"
        await self.rig.gateway.end(instance)
        self.jobs.remove(job)
        self._note_evicted()
        self._stopped(job, made.times[-1])

    async def fill(self, key: bytes, document: int) -> None:
        """Have a document computed before the trace begins."""
        self._instances += 1
        instance, text = self._instances, document_tokens(document)
        answer = await self.rig.gateway.register(instance, TENANT)
        assert answer.errno == 0, answer
        self.rig.worker.tell(instance, Op.KV_CREATE, A)
        await self.rig.worker.complete(instance, A, text + bytes([1, 0, 0, 0]), max=1, share=True)
        await self.rig.gateway.end(instance)
        self._texts[key], self.cache[key] = text, DOCUMENT_TOKENS

    def _note_evicted(self) -> None:
        """Compare with what the kernel's prefix cache holds."""
        cache = self.kernel._kvfs.prefix_cache  # noqa: SLF001 - as tests look at it
        pages = DOCUMENT_TOKENS // PAGE_TOKENS
        for key in list(self.cache):
            _, found = cache.peek(TENANT, self._texts[key], pages, None, 0)
            if len(found) < pages // 2 and not any(job.key == key for job in self.jobs):
                del self.cache[key]
                self._evicted(self, key)


class KernelSimulation(Simulation):
    """A cluster of real kernels and its policy."""

    def _make_nodes(self, count: int) -> Sequence[Node]:
        told = self._at, self._first, self._stopped, self._evicted
        return [KernelNode(index, self._machine, *told) for index in range(count)]

    def run(self) -> Outcome:
        if self._trace.agents or self._trace.fail_s:
            raise ValueError(f"kernels have no trace {self._trace.name!r}: only documents")
        began = time.process_time()
        clock = VirtualClock()
        last = clock.run(self._main(clock))
        return self._outcome(last, time.process_time() - began)

    async def _main(self, clock: VirtualClock) -> float:
        async with AsyncExitStack() as stack:
            for node in self.nodes:
                assert isinstance(node, KernelNode)
                self.policy.join(node.index)
                node.begin(await stack.enter_async_context(self._kernel(clock)))
            await self._fill()
            start, last = clock.now(), 0.0
            busy = [self._busy_s(node) for node in self.nodes]
            self._policy_s = 0.0
            for work in self._trace.works(len(self.nodes), self._runs, self._seed):
                await asyncio.sleep(max(start + work.at_s - clock.now(), 0.0))
                last = self.now = clock.now()
                self._arrive(work)
            await asyncio.gather(*(job.task for job in self.jobs))
            for node, before in zip(self.nodes, busy, strict=True):
                node.busy_s = self._busy_s(node) - before
        for job in self.jobs:  # times from the trace's beginning
            job.arrived, job.first, job.ended = (
                each - start for each in (job.arrived, job.first, job.ended)
            )
        return last - start

    @asynccontextmanager
    async def _kernel(self, clock: VirtualClock) -> AsyncIterator[Kernel]:
        frames = _MOST_PAGES * self._machine.cache_tokens // PAGE_TOKENS
        device = SimulatedExecutor(clock, frames, costs=self._machine.costs, hashed=False)
        steps = StepLimits(tokens=self._machine.step_tokens, quantum=GPU_PREFILL_QUANTUM_TOKENS)
        options = KernelOptions(steps=steps, prefix_cache_share=1 / _MOST_PAGES)
        kernel = Kernel(device, describe(ASSETS), clock, options)
        running = asyncio.create_task(kernel.run())
        try:
            yield kernel
        finally:
            await kernel.close()
            await running

    async def _fill(self) -> None:
        for document in range(self._trace.documents * len(self.nodes)):
            node = self.nodes[document % len(self.nodes)]
            assert isinstance(node, KernelNode)
            key = self._key(Work(0.0, document, DOCUMENT_TOKENS, ()))
            await node.fill(key, document)
            self.policy.stored(node.index, key, DOCUMENT_TOKENS)

    @staticmethod
    def _busy_s(node: Node) -> float:
        assert isinstance(node, KernelNode)
        return float(node.kernel.statistics()["device_busy_ms"]) / 1000
