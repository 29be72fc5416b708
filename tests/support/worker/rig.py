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
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
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
from symphony_kernel.platform.clock import Clock, RealClock
from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import (
    RUN_CPU_MS_MAX,
    RUN_KV_TOKENS_MAX,
    RUN_MEMORY_BYTES_MAX,
    RUN_TOKENS_MAX,
    RUN_WALL_MS_MAX,
)
from symphony_kernel.protocol.links import Link, memory_pair
from symphony_runtime.compiler.validation import CompileOutcome, check_and_compile
from symphony_runtime.engine.hostcalls.compiled_calls import CompiledHostCalls
from symphony_runtime.worker.worker import Worker
from wasmtime import wat2wasm

from tests.support.kernel.rig import poisoned
from tests.support.worker.guests import Step, script

TENANT = "tenant"
WORKER = "worker-0"
SECRET = b"secret"
CHANNEL_ITEMS = 4
LIMITS = {
    "wall_ms": RUN_WALL_MS_MAX,
    "cpu_ms": RUN_CPU_MS_MAX,
    "memory_bytes": RUN_MEMORY_BYTES_MAX,
    "tokens": RUN_TOKENS_MAX,
    "kv_tokens": RUN_KV_TOKENS_MAX,
}


@dataclass
class RunResult:
    """What became of a run."""

    status: str
    exit_code: int
    reason: str
    messages: list[bytes]
    logs: list[tuple[int, bytes]]
    usage: dict[str, Any]

    @property
    def output(self) -> bytes:
        """All messages joined."""
        return b"".join(self.messages)


@dataclass(eq=False)
class LiveRun:
    """A run under way; `read` says whether a reader takes what it sends."""

    gateway: "Gateway"
    instance: int
    read: bool = True
    messages: list[bytes] = field(default_factory=list)
    logs: list[tuple[int, bytes]] = field(default_factory=list)
    received: int = 0  # messages that the program has received
    ended: "asyncio.Future[RunResult]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    spoke: asyncio.Event = field(default_factory=asyncio.Event)

    def deliver(self, data: bytes) -> None:
        """A message from the user."""
        self.gateway.to_worker(m.Deliver(self.instance, data))

    def close_input(self) -> None:
        """The user says nothing more."""
        self.gateway.to_worker(m.CloseInput(self.instance))

    def kill(self, reason: str = "cancelled") -> None:
        """End it."""
        self.gateway.to_worker(m.Kill(self.instance, reason))

    def credit(self, taken: int) -> None:
        """A reader took this many bytes."""
        self.gateway.to_worker(m.Credit(self.instance, taken))

    async def wait_messages(self, number: int) -> list[bytes]:
        """Return the messages once there are this many."""
        while len(self.messages) < number:
            self.spoke.clear()
            await asyncio.wait_for(self.spoke.wait(), 10)
        return self.messages


class Gateway:
    """The gateway's part of the protocol, by the book and without a store."""

    def __init__(self, kernel: Link, worker: Link) -> None:
        self._kernel, self._worker = kernel, worker
        self.programs: dict[str, CompileOutcome] = {}
        self.runs: dict[int, LiveRun] = {}
        self.live: set[int] = set()  # instances, children included
        self.module_of: dict[int, str] = {}
        self.ended: list[m.Ended] = []
        self.asked: list[m.Ask] = []
        self._answers: dict[int, asyncio.Future[m.Answer]] = {}
        self._seq = count(1)
        self._instances = count(1001)
        self._sent_modules: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._queues: dict[str, deque[bytes]] = defaultdict(deque)
        self._receivers: dict[str, deque[int]] = defaultdict(deque)
        self.errors: list[BaseException] = []
        kernel.receive(self._on_kernel, lambda: None)
        worker.receive(self._on_worker, lambda: None)

    def to_worker(self, message: m.Message) -> None:
        """Send to the worker."""
        self._worker.send(m.encode(message))

    async def start(
        self,
        module: str,
        data: bytes,
        entry: str,
        limits: dict[str, int],
        read: bool,
        tenant: str = TENANT,
    ) -> LiveRun:
        """Register and start a run."""
        run = LiveRun(self, next(self._instances), read)
        await self._register(run.instance, 0, 0, limits, tenant)
        self.runs[run.instance] = run
        self._send_module(module)
        self.module_of[run.instance] = module
        self.to_worker(m.Start(run.instance, module, entry, data, limits, tenant=tenant))
        return run

    async def ask(self, what: str, **args: Any) -> Any:
        """Ask the kernel."""
        return await self._request(lambda seq: m.Ask(seq, what, args))

    async def wait_idle(self) -> None:
        """Return when the kernel has heard of every end."""
        while self.live or self._tasks:  # noqa: ASYNC110 - a test waits on many things
            await asyncio.sleep(0.001)

    def close(self) -> None:
        """Raise what went wrong in the background."""
        for error in self.errors:
            raise error

    # -- Inside --------------------------------------------------------------------------------
    async def _request(self, make: Callable[[int], m.Message]) -> Any:
        seq = next(self._seq)
        future: asyncio.Future[m.Answer] = asyncio.get_running_loop().create_future()
        self._answers[seq] = future
        self._kernel.send(m.encode(make(seq)))
        answer = await future
        if answer.errno:
            raise SyscallError(Errno(-answer.errno), str(answer.value))
        return answer.value

    async def _register(
        self,
        instance: int,
        parent: int,
        stage: int,
        limits: dict[str, int],
        tenant: str = TENANT,
    ) -> None:
        options: dict[str, Any] = {k: limits[k] for k in limits if k in ("tokens", "kv_tokens")}
        self.live.add(instance)
        try:
            await self._request(
                lambda seq: m.Register(seq, instance, tenant, WORKER, parent, stage, options)
            )
        except SyscallError:
            self.live.discard(instance)
            raise

    def _send_module(self, module: str) -> None:
        if module not in self._sent_modules:
            self._sent_modules.add(module)
            self.to_worker(m.Module(module, self.programs[module].artefact))

    def _on_kernel(self, frame: list[Any]) -> None:
        message = m.decode(frame)
        if isinstance(message, m.Answer):
            self._answers.pop(message.seq).set_result(message)
        elif isinstance(message, m.Exceeded):
            self.to_worker(m.Kill(message.instance, message.reason))

    def _on_worker(self, frame: list[Any]) -> None:
        message = m.decode(frame)
        if isinstance(message, m.Hello):
            self.to_worker(m.Welcome(0, {}))
        elif isinstance(message, m.Output):
            self._take_output(message)
        elif isinstance(message, m.Logs):
            for instance, level, line in message.lines:
                self.runs[instance].logs.append((level, line))
        elif isinstance(message, m.Received):
            self.runs[message.instance].received += message.messages
        elif isinstance(message, m.Ended):
            self.ended.append(message)
            self._spawn(self._end(message))
        elif isinstance(message, m.Ask):
            self.asked.append(message)
            if message.what == "spawn":
                self._spawn(self._spawn_child(message))
            elif message.what == "tools":  # there are none
                self.to_worker(m.Answer(message.seq, 0, b"\x90"))
            else:
                self._channel(message)
        else:
            assert isinstance(message, m.Unask), message
            for waiting in self._receivers.values():
                if message.seq in waiting:
                    waiting.remove(message.seq)

    def _take_output(self, message: m.Output) -> None:
        taken: dict[int, int] = defaultdict(int)
        for instance, data in message.messages:
            run = self.runs[instance]
            run.messages.append(data)
            run.spoke.set()
            if run.read:
                taken[instance] += len(data)
        for instance, size in taken.items():
            self.to_worker(m.Credit(instance, size))

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)

        def done(task: "asyncio.Task[None]") -> None:
            self._tasks.discard(task)
            error = None if task.cancelled() else task.exception()
            if error is not None:
                self.errors.append(error)

        task.add_done_callback(done)

    async def _end(self, message: m.Ended) -> None:
        usage = await self._request(lambda seq: m.End(seq, message.instance))
        self.live.discard(message.instance)
        run = self.runs.get(message.instance)
        if run is not None:
            run.ended.set_result(
                RunResult(
                    message.status,
                    message.exit_code,
                    message.reason,
                    run.messages,
                    run.logs,
                    message.usage | usage,
                )
            )

    async def _spawn_child(self, ask: m.Ask) -> None:
        try:
            self.to_worker(m.Answer(ask.seq, 0, await self._child(ask.args)))
        except SyscallError as error:
            self.to_worker(m.Answer(ask.seq, -error.errno, error.detail))

    def _channel(self, ask: m.Ask) -> None:
        if ask.what == "channel_recv":
            self._channel_recv(ask)
            return
        assert ask.what == "channel_send", ask
        name, item = ask.args["name"], ask.args["item"]
        if self._receivers[name]:
            self.to_worker(m.Answer(self._receivers[name].popleft(), 0, item))
        elif len(self._queues[name]) >= CHANNEL_ITEMS:
            self.to_worker(m.Answer(ask.seq, -Errno.EAGAIN, "full"))
            return
        else:
            self._queues[name].append(item)
        self.to_worker(m.Answer(ask.seq, 0, 0))

    async def _child(self, args: dict[str, Any]) -> dict[str, Any]:
        module = args["program"] or self.module_of[args["parent"]]
        outcome = self.programs.get(module)
        if outcome is None or (args["entry"] and args["entry"] not in outcome.entries):
            raise SyscallError(Errno.ENOENT, "no such program or entry")
        instance = next(self._instances)
        await self._register(instance, args["parent"], args["stage"], {})
        self.module_of[instance] = module
        self._send_module(module)
        return {"instance": instance, "module": module, "entries": outcome.entries}

    def _channel_recv(self, ask: m.Ask) -> None:
        name = ask.args["name"]
        if self._queues[name]:
            self.to_worker(m.Answer(ask.seq, 0, self._queues[name].popleft()))
        else:
            self._receivers[name].append(ask.seq)


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
        crossing: CompiledHostCalls | None = None,
        device: type[SimulatedExecutor] = SimulatedExecutor,
    ) -> None:
        self._options = poisoned(options)
        self._crossing = crossing
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
        Server(self.kernel, {WORKER: SECRET}).meet(kernel_worker)
        self.kernel.attach_gateway(kernel_gateway)
        self.gateway = Gateway(gateway_kernel, gateway_worker)
        self.worker = Worker(WORKER, SECRET, crossing=self._crossing)
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
        outcome = check_and_compile(wasm)
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
        """Start a run and return at once."""
        module = self.add(program)
        limits = LIMITS | (limits or {})
        return await self.gateway.start(module, data, entry, limits, read, tenant)

    async def run(
        self,
        program: str | bytes,
        data: bytes = b"",
        *,
        entry: str = "",
        limits: dict[str, int] | None = None,
        seconds: float = 20,
    ) -> RunResult:
        """Run a program to its end."""
        run = await self.start(program, data, entry=entry, limits=limits)
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
        """Return the kernel's counters."""
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


def with_worker(
    test: Callable[[WorkerRig], Awaitable[None]],
    seconds: float = 30,
    crossing: CompiledHostCalls | None = None,
) -> None:
    """Run a test with a rig in real time."""

    async def whole() -> None:
        async with asyncio.timeout(seconds), WorkerRig(crossing=crossing) as rig:
            await test(rig)

    asyncio.run(whole())
