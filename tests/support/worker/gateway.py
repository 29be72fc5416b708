"""The gateway's part of the protocol, without HTTP and without a store, for workers in tests."""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.links import Link
from symphony_runtime.compiler.validation import CompileOutcome

CHANNEL_ITEMS = 4
WORKER_GONE = "the worker died"


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
    """A run that was started; `read` says whether a reader takes what it sends."""

    gateway: "ScriptedGateway"
    instance: int
    worker: str
    read: bool = True
    messages: list[bytes] = field(default_factory=list)
    logs: list[tuple[int, bytes]] = field(default_factory=list)
    received: int = 0  # messages that the program has received
    ended: "asyncio.Future[RunResult]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    spoke: asyncio.Event = field(default_factory=asyncio.Event)

    def deliver(self, data: bytes) -> None:
        """Send a message of the user's."""
        self.gateway.to_worker(self.worker, m.Deliver(self.instance, data))

    def close_input(self) -> None:
        self.gateway.to_worker(self.worker, m.CloseInput(self.instance))

    def kill(self, reason: str = "cancelled") -> None:
        self.gateway.to_worker(self.worker, m.Kill(self.instance, reason))

    def credit(self, taken: int) -> None:
        """Report that a reader took this many bytes."""
        self.gateway.to_worker(self.worker, m.Credit(self.instance, taken))

    def end(self, status: str, exit_code: int, reason: str, usage: dict[str, Any]) -> None:
        """Set the result, if there is none yet."""
        if not self.ended.done():
            result = RunResult(status, exit_code, reason, self.messages, self.logs, usage)
            self.ended.set_result(result)

    async def wait_messages(self, number: int) -> list[bytes]:
        """Return the messages once there are this many."""
        while len(self.messages) < number:
            self.spoke.clear()
            await asyncio.wait_for(self.spoke.wait(), 10)
        return self.messages


class ScriptedGateway:
    """Registers runs with the kernel, starts them at workers, answers what these ask."""

    def __init__(self) -> None:
        self._kernel: Link
        self._workers: dict[str, Link] = {}
        self.programs: dict[str, CompileOutcome] = {}
        self.runs: dict[int, LiveRun] = {}
        # Of each instance that has not ended, children included: its tenant and its worker.
        self.live: dict[int, tuple[str, str]] = {}
        self.module_of: dict[int, str] = {}
        self.ended: list[m.Ended] = []
        self.asked: list[m.Ask] = []
        self.grants_sends = True  # at once
        self.sends_asked: list[tuple[str, m.Ask]] = []
        self._answers: dict[int, asyncio.Future[m.Answer]] = {}
        self._seq, self._instances = count(1), count(1001)
        self._sent_modules: set[tuple[str, str]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._queues: dict[tuple[str, str], deque[bytes]] = defaultdict(deque)
        self._receivers: dict[tuple[str, str], deque[tuple[str, int]]] = defaultdict(deque)
        self.errors: list[BaseException] = []

    def use(self, kernel: Link) -> None:
        """Ask this kernel from now on; its frames must come to `on_kernel`."""
        self._kernel = kernel

    def attach(self, worker: str, link: Link) -> None:
        """Serve a worker until its link ends."""
        self._workers[worker] = link
        link.receive(lambda frame: self._on_worker(worker, frame), lambda: self._lose(worker))

    def to_worker(self, worker: str, message: m.Message) -> None:
        """Send to a worker, if it is still there."""
        link = self._workers.get(worker)
        if link is not None:
            link.send(m.encode(message))

    async def start(
        self,
        module: str,
        data: bytes,
        limits: dict[str, int],
        *,
        tenant: str,
        worker: str,
        entry: str = "",
        read: bool = True,
    ) -> LiveRun:
        run = LiveRun(self, next(self._instances), worker, read)
        await self._register(run.instance, tenant, worker, 0, 0, limits)
        self.runs[run.instance] = run
        self.module_of[run.instance] = module
        if worker in self._workers:
            self._send_module(worker, module)
            self.to_worker(
                worker, m.Start(run.instance, module, entry, data, limits, tenant=tenant)
            )
        else:
            self._fail(run.instance, WORKER_GONE)
        return run

    async def ask(self, what: str, **args: Any) -> Any:
        return await self._request(lambda seq: m.Ask(seq, what, args))

    async def wait_idle(self) -> None:
        """Return when the kernel knows every end."""
        while self.live or self._tasks:  # noqa: ASYNC110 - a test waits on many things
            await asyncio.sleep(0.001)

    def close(self) -> None:
        """Raise what went wrong in the background."""
        for error in self.errors:
            raise error

    # -- The kernel ----------------------------------------------------------------------------
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
        tenant: str,
        worker: str,
        parent: int,
        stage: int,
        limits: dict[str, int],
    ) -> None:
        options: dict[str, Any] = {k: limits[k] for k in limits if k in ("tokens", "kv_tokens")}
        self.live[instance] = tenant, worker
        try:
            await self._request(
                lambda seq: m.Register(seq, instance, tenant, worker, parent, stage, options)
            )
        except SyscallError:
            self.live.pop(instance, None)
            raise

    def on_kernel(self, frame: list[Any]) -> None:
        message = m.decode(frame)
        if isinstance(message, m.Answer):
            self._answers.pop(message.seq).set_result(message)
        elif isinstance(message, m.Exceeded) and message.instance in self.live:
            _, worker = self.live[message.instance]
            self.to_worker(worker, m.Kill(message.instance, message.reason))

    # -- Workers -------------------------------------------------------------------------------
    def _send_module(self, worker: str, module: str) -> None:
        if (worker, module) not in self._sent_modules:
            self._sent_modules.add((worker, module))
            self.to_worker(worker, m.Module(module, self.programs[module].artefact))

    def _lose(self, worker: str) -> None:
        del self._workers[worker]
        self._sent_modules = {each for each in self._sent_modules if each[0] != worker}
        for waiting in self._receivers.values():
            for entry in [each for each in waiting if each[0] == worker]:
                waiting.remove(entry)
        for instance, place in list(self.live.items()):
            if place[1] == worker:
                self._fail(instance, WORKER_GONE)

    def _on_worker(self, worker: str, frame: list[Any]) -> None:
        message = m.decode(frame)
        if isinstance(message, m.Hello):
            self.to_worker(worker, m.Welcome(0, {}))
        elif isinstance(message, m.Output):
            self._take_output(worker, message)
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
            self._answer_ask(worker, message)
        else:
            assert isinstance(message, m.Unask), message
            for waiting in self._receivers.values():
                if (worker, message.seq) in waiting:
                    waiting.remove((worker, message.seq))

    def _take_output(self, worker: str, message: m.Output) -> None:
        taken: dict[int, int] = defaultdict(int)
        for instance, data in message.messages:
            run = self.runs[instance]
            run.messages.append(data)
            run.spoke.set()
            if run.read:
                taken[instance] += len(data)
        for instance, size in taken.items():
            self.to_worker(worker, m.Credit(instance, size))

    def _fail(self, instance: int, reason: str) -> None:
        self._spawn(self._end(m.Ended(instance, "failed", 0, reason, {})))

    async def _end(self, message: m.Ended) -> None:
        """End an instance at the kernel, once; then a run has its result."""
        usage: dict[str, Any] = {}
        if self.live.pop(message.instance, None) is not None:
            usage = await self._request(lambda seq: m.End(seq, message.instance))
        if message.instance in self.runs:
            self.runs[message.instance].end(
                message.status, message.exit_code, message.reason, message.usage | usage
            )

    # -- What workers ask ----------------------------------------------------------------------
    def _answer(self, worker: str, seq: int, errno: int, value: Any) -> None:
        self.to_worker(worker, m.Answer(seq, errno, value))

    def _answer_ask(self, worker: str, ask: m.Ask) -> None:
        if ask.what == "spawn":
            self._spawn(self._spawn_child(worker, ask))
        elif ask.what == "send":
            self.sends_asked.append((worker, ask))
            if self.grants_sends:
                self.grant_sends()
        elif ask.what == "tools":  # there are none
            self._answer(worker, ask.seq, 0, b"\x90")
        else:
            self._channel(worker, ask)

    def grant_sends(self) -> None:
        """Let all large messages be sent that wait."""
        for worker, ask in self.sends_asked:
            self._answer(worker, ask.seq, 0, 0)
        self.sends_asked.clear()

    async def _spawn_child(self, worker: str, ask: m.Ask) -> None:
        args, instance = ask.args, next(self._instances)
        try:
            module = args["program"] or self.module_of[args["parent"]]
            outcome = self.programs.get(module)
            if outcome is None or (args["entry"] and args["entry"] not in outcome.entries):
                raise SyscallError(Errno.ENOENT, "no such program or entry")
            if args["parent"] not in self.live:
                raise SyscallError(Errno.ENOENT, "the parent has ended")
            tenant, _ = self.live[args["parent"]]
            await self._register(instance, tenant, worker, args["parent"], args["stage"], {})
        except SyscallError as error:
            self._answer(worker, ask.seq, -error.errno, error.detail)
            return
        if worker not in self._workers:
            self._fail(instance, WORKER_GONE)
            return
        self.module_of[instance] = module
        self._send_module(worker, module)
        made = {"instance": instance, "module": module, "entries": outcome.entries}
        self._answer(worker, ask.seq, 0, made)

    def _channel(self, worker: str, ask: m.Ask) -> None:
        tenant, _ = self.live.get(ask.args["instance"], ("", ""))
        queue = tenant, ask.args["name"]
        if ask.what == "channel_recv":
            if self._queues[queue]:
                self._answer(worker, ask.seq, 0, self._queues[queue].popleft())
            else:
                self._receivers[queue].append((worker, ask.seq))
            return
        assert ask.what == "channel_send", ask
        if self._receivers[queue]:
            self._answer(*self._receivers[queue].popleft(), 0, ask.args["item"])
        elif len(self._queues[queue]) >= CHANNEL_ITEMS:
            self._answer(worker, ask.seq, -Errno.EAGAIN, "full")
            return
        else:
            self._queues[queue].append(ask.args["item"])
        self._answer(worker, ask.seq, 0, 0)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.errors.append(error)
