"""A worker, a kernel with a simulated executor, and a scripted gateway, in one process.

    async def main() -> None:
        async with WorkerRig() as rig:
            result = await rig.run(guests.HELLO, b"input")
            assert result.output == b"hello"

    asyncio.run(main())            # or VirtualClock().run(main()) with WorkerRig(clock=that clock)

Links are in memory, frames are real. Leaving the rig checks that everything came back.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import lru_cache
from itertools import count
from typing import Any

from symphony_kernel.executor.models.assets import ModelAssets
from symphony_kernel.executor.simulated import (
    PAGES_DEFAULT,
    CostModel,
    SimulatedExecutor,
    simulated_model,
)
from symphony_kernel.ipc.server import Server
from symphony_kernel.kernel import Kernel, KernelOptions, describe
from symphony_kernel.platform.clock import Clock, RealClock, VirtualClock
from symphony_kernel.protocol.limits import (
    RUN_CPU_MS_MAX,
    RUN_KV_TOKENS_MAX,
    RUN_MEMORY_BYTES_MAX,
    RUN_TOKENS_MAX,
    RUN_WALL_MS_MAX,
)
from symphony_runtime.compiler.validation import CompileOutcome, check_and_compile
from symphony_runtime.worker.worker import Worker
from wasmtime import wat2wasm

from tests.support.kernel.rig import poisoned
from tests.support.memory_links import attach_peer, memory_pair
from tests.support.worker.gateway import LiveRun as LiveRun
from tests.support.worker.gateway import RunResult as RunResult
from tests.support.worker.gateway import ScriptedGateway
from tests.support.worker.guests import Step, script

TENANT = "tenant"
WORKER = "worker-0"
SECRET = b"secret"
LIMITS = {
    "wall_ms": RUN_WALL_MS_MAX, "cpu_ms": RUN_CPU_MS_MAX, "memory_bytes": RUN_MEMORY_BYTES_MAX,
    "tokens": RUN_TOKENS_MAX, "kv_tokens": RUN_KV_TOKENS_MAX,
}  # fmt: skip


@lru_cache(maxsize=64)
def _compiled(wasm: bytes) -> CompileOutcome:
    return check_and_compile(wasm, own=True)


class WorkerRig:
    """Enter it to have the three; `clock` may be virtual when the loop is that clock's."""

    def __init__(
        self,
        clock: Clock | None = None,
        costs: CostModel | None = None,
        assets: ModelAssets | None = None,
        pages: int = PAGES_DEFAULT,
        hashed: bool = True,
        options: KernelOptions | None = None,
        device: type[SimulatedExecutor] = SimulatedExecutor,
    ) -> None:
        self._options = poisoned(options)
        self._clock = clock or RealClock()
        self._assets = assets or ModelAssets(simulated_model(), b"", None, {})
        self._executor = device(
            self._clock, pages, self._assets.model, costs or CostModel(), hashed
        )
        self._names = count(1)
        self._known: dict[bytes, str] = {}

    async def __aenter__(self) -> "WorkerRig":
        self.kernel = Kernel(self._executor, describe(self._assets), self._clock, self._options)
        self._running = asyncio.create_task(self.kernel.run())
        worker_kernel, kernel_worker = memory_pair()
        gateway_kernel, kernel_gateway = memory_pair()
        worker_gateway, gateway_worker = memory_pair()
        Server(self.kernel, {WORKER: SECRET}).accept(kernel_worker)
        attach_peer(self.kernel, "gateway", kernel_gateway)
        self.gateway = ScriptedGateway()
        gateway_kernel.receive(self.gateway.on_kernel, lambda: None)
        self.gateway.use(gateway_kernel)
        self.gateway.attach(WORKER, gateway_worker)
        self.worker = Worker(WORKER, SECRET)
        await self.worker.attach_kernel(worker_kernel)
        await self.worker.attach_gateway(worker_gateway)
        return self

    async def __aexit__(self, kind: Any, *exc: object) -> None:
        try:
            if kind is None:
                await self.check_nothing_leaks()
        finally:
            self.worker.close()
            await self.kernel.close()
            with contextlib.suppress(asyncio.CancelledError):
                self._running.cancel()
                await self._running
        self.gateway.close()

    def add(self, program: str | bytes, name: str = "") -> str:
        """Compile a program (WAT or Wasm) once and return its module's name."""
        wasm = bytes(wat2wasm(program)) if isinstance(program, str) else program
        known = self._known.get(wasm)
        if known and (not name or known == name):
            return known
        outcome = _compiled(wasm)
        assert not outcome.problems, outcome.problems
        module = name or f"program-{next(self._names)}"
        self._known[wasm] = module
        self.gateway.programs[module] = outcome
        return module

    async def start(
        self,
        program: str | bytes,
        data: bytes = b"",
        *,
        entry: str = "",
        limits: dict[str, int] | None = None,
        read: bool = True,
        tenant: str = TENANT,
    ) -> LiveRun:
        module = self.add(program)
        limits = LIMITS | (limits or {})
        return await self.gateway.start(
            module, data, limits, tenant=tenant, worker=WORKER, entry=entry, read=read
        )

    async def run(
        self,
        program: str | bytes,
        data: bytes = b"",
        *,
        entry: str = "",
        limits: dict[str, int] | None = None,
        seconds: float = 20,
        messages: Iterable[bytes] | None = None,
    ) -> RunResult:
        """Run a program to its end. With `messages` its user sends them, and closes the input."""
        run = await self.start(program, data, entry=entry, limits=limits)
        if messages is not None:
            for message in messages:
                run.deliver(message)
            run.close_input()
        return await asyncio.wait_for(run.ended, seconds)

    async def play(
        self, *steps: Step, parts: tuple[str, ...] = (), data: bytes = b""
    ) -> list[int | bytes]:
        """Run a script (`guests.script`) and return each step's result."""
        made = script(*steps, parts=parts)
        ended = await self.run(made.source, data)
        assert (ended.status, ended.exit_code) == ("exited", 0), ended
        return made.results(ended.messages)

    async def statistics(self) -> dict[str, Any]:
        found: dict[str, Any] = await self.gateway.ask("statistics")
        return found

    async def check_nothing_leaks(self) -> None:
        """Fail unless everything that ended instances held is back, in every process."""
        await asyncio.wait_for(self.gateway.wait_idle(), 10)
        assert self.worker.instances == {}
        assert list(self.worker.faults) == []
        for named in await self.gateway.ask("kv_list", tenant=TENANT):
            await self.gateway.ask("kv_remove", tenant=TENANT, path=named["path"])
        await self.gateway.ask("check_integrity")
        found = await self.statistics()
        assert found["instances"] == 0
        assert found["files"] == 0
        assert found["handles"] == 0
        assert found["pages_free"] + found["prefix_cache_idle_pages"] == found["pages"]


@contextlib.asynccontextmanager
async def worker_rig(seconds: float) -> AsyncIterator[WorkerRig]:
    """Give a rig in real time for so long at most: the fixture `rig` of tests."""
    async with asyncio.timeout(seconds), WorkerRig() as rig:
        yield rig


def in_virtual_time(test: Callable[[WorkerRig], Awaitable[None]], **rig: Any) -> None:
    """Run a test with a rig whose steps take 10 ms, in no time."""

    async def whole() -> None:
        async with WorkerRig(clock=clock, **{"costs": CostModel(fixed_us=10_000), **rig}) as made:
            await test(made)

    clock = VirtualClock()
    clock.run(whole())
