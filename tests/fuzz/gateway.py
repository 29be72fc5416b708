"""The gateway's part of the protocol for several tenants and workers; it believes no worker."""

import asyncio
from collections import defaultdict, deque
from collections.abc import Coroutine
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

import msgpack
from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.links import Link

CHANNEL_ITEMS = 4
KERNEL_GONE = "the kernel died"
_OUTSIDE_ERRNOS = (Errno.EACCES, Errno.ENOENT, Errno.ETIMEDOUT, Errno.EIO)


@dataclass(eq=False)
class Run:
    """A run that was started; `ended` is its (status, reason)."""

    instance: int
    tenant: str
    worker: str
    reads: bool = True
    messages: list[bytes] = field(default_factory=list)
    ended: "asyncio.Future[tuple[str, str]]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class Gateway:
    """Registers runs with the kernel, starts them at workers, answers what they ask."""

    def __init__(self, rng: Random) -> None:
        self._kernel: Link
        self._rng = rng
        self._workers: dict[str, Link] = {}
        self.runs: dict[int, Run] = {}
        self._places: dict[int, tuple[str, str]] = {}  # of live instances: tenant, worker
        self._answers: dict[int, asyncio.Future[m.Answer]] = {}
        self._seq, self._instances = count(1), count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._queues: dict[tuple[str, str], deque[bytes]] = defaultdict(deque)
        self._receivers: dict[tuple[str, str], deque[tuple[str, int]]] = defaultdict(deque)
        self.errors: list[BaseException] = []
        self._welcomes: dict[str, asyncio.Event] = {}

    def use(self, kernel: Link) -> None:
        """Ask this kernel from now on, whose frames come to `on_kernel`."""
        self._kernel = kernel

    def lose_kernel(self) -> None:
        """It has forgotten everything: what was asked is not answered, and all runs end."""
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            if not answer.done():
                answer.set_exception(SyscallError(Errno.EPIPE, KERNEL_GONE))
        places, self._places = self._places, {}
        for instance in places:
            run = self.runs.get(instance)
            if run is not None:
                self.tell(run, m.Kill(instance, KERNEL_GONE))
                self._ended(instance, "failed", KERNEL_GONE)

    def attach(self, worker: str, link: Link, artefact: bytes) -> None:
        """Take a worker's link; it gets the program "player"."""
        self._workers[worker] = link
        link.receive(lambda frame: self._on_worker(worker, frame), lambda: self._lose(worker))
        link.send(m.encode(m.Welcome(0, {})))
        link.send(m.encode(m.Module("player", artefact)))

    def tell(self, run: Run, message: m.Message) -> None:
        """Send to a run's worker, if that is still there."""
        link = self._workers.get(run.worker)
        if link is not None:
            link.send(m.encode(message))

    async def start(
        self, tenant: str, worker: str, data: bytes, limits: dict[str, int], reads: bool = True
    ) -> Run:
        """Register a run and start it."""
        run = Run(next(self._instances), tenant, worker, reads)
        options = {key: limits[key] for key in ("tokens", "kv_tokens") if key in limits}
        await self._register(run.instance, tenant, worker, 0, 0, options)
        self.runs[run.instance] = run
        if worker in self._workers:
            self.tell(run, m.Start(run.instance, "player", "", data, limits))
        else:
            self._ended(run.instance, "failed", "the worker died")
        return run

    async def register(self, instance: int, tenant: str, worker: str) -> None:
        """Let an instance of a worker call the kernel, with nothing of it here."""
        await self._request(lambda seq: m.Register(seq, instance, tenant, worker, 0, 0, {}))

    async def end(self, instance: int) -> None:
        """End such an instance."""
        await self._request(lambda seq: m.End(seq, instance))

    async def ask(self, what: str, **args: Any) -> Any:
        """Ask the kernel."""
        return await self._request(lambda seq: m.Ask(seq, what, args))

    async def wait_idle(self) -> None:
        """Return when the kernel has heard of every end."""
        while self._places or self._tasks:  # noqa: ASYNC110 - many things, in virtual time
            await asyncio.sleep(0.001)

    @property
    def live(self) -> dict[int, tuple[str, str]]:
        """Instances that have not ended."""
        return self._places

    # -- Inside --------------------------------------------------------------------------------
    async def _request(self, make: Any) -> Any:
        seq = next(self._seq)
        future: asyncio.Future[m.Answer] = asyncio.get_running_loop().create_future()
        self._answers[seq] = future
        self._kernel.send(m.encode(make(seq)))
        answer = await future
        if answer.errno:
            raise SyscallError(Errno(-answer.errno), str(answer.value))
        return answer.value

    async def _register(
        self, instance: int, tenant: str, worker: str, parent: int, stage: int, options: Any
    ) -> None:
        self._places[instance] = tenant, worker
        try:
            await self._request(
                lambda seq: m.Register(seq, instance, tenant, worker, parent, stage, options)
            )
        except SyscallError:
            self._places.pop(instance, None)
            raise

    def on_kernel(self, frame: list[Any]) -> None:
        """Take a frame of the kernel's."""
        message = m.decode(frame)
        if isinstance(message, m.Answer):
            self._answers.pop(message.seq).set_result(message)
        elif isinstance(message, m.Exceeded):
            place = self._places.get(message.instance)
            if place is not None and place[1] in self._workers:
                kill = m.Kill(message.instance, message.reason)
                self._workers[place[1]].send(m.encode(kill))

    def _on_worker(self, worker: str, frame: list[Any]) -> None:
        message = m.decode(frame)
        if isinstance(message, m.Output):
            self._take(worker, message)
        elif isinstance(message, m.Ended):
            self._ended(message.instance, message.status, message.reason)
        elif isinstance(message, m.Ask):
            self._asked(worker, message)
        elif isinstance(message, m.Unask):
            for waiting in self._receivers.values():
                if (worker, message.seq) in waiting:
                    waiting.remove((worker, message.seq))

    def _take(self, worker: str, message: m.Output) -> None:
        taken: dict[int, int] = defaultdict(int)
        for instance, data in message.messages:
            run = self.runs[instance]
            run.messages.append(data)
            if run.reads:
                taken[instance] += len(data)
        for instance, size in taken.items():
            self._workers[worker].send(m.encode(m.Credit(instance, size)))

    def _ended(self, instance: int, status: str, reason: str) -> None:
        self._spawn(self._end(instance))
        run = self.runs.get(instance)
        if run is not None and not run.ended.done():
            run.ended.set_result((status, reason))

    async def _end(self, instance: int) -> None:
        if self._places.pop(instance, None) is not None:
            try:
                await self._request(lambda seq: m.End(seq, instance))
            except SyscallError as error:
                if error.detail != KERNEL_GONE:  # whoever comes behind it does not know of it
                    raise

    def _lose(self, worker: str) -> None:
        del self._workers[worker]
        for waiting in self._receivers.values():
            for entry in [each for each in waiting if each[0] == worker]:
                waiting.remove(entry)
        for instance, place in list(self._places.items()):
            if place[1] == worker:
                self._ended(instance, "failed", "the worker died")

    def _answer(self, worker: str, seq: int, errno: int, value: Any) -> None:
        if worker in self._workers:
            self._workers[worker].send(m.encode(m.Answer(seq, errno, value)))

    def _asked(self, worker: str, ask: m.Ask) -> None:
        if ask.what == "spawn":
            self._spawn(self._child(worker, ask))
        elif ask.what == "tools":
            self._answer(worker, ask.seq, 0, b"\x90")
        elif ask.what in ("http", "tool"):
            self._spawn(self._egress(worker, ask))
        else:
            self._channel(worker, ask)

    async def _egress(self, worker: str, ask: m.Ask) -> None:
        await asyncio.sleep(self._rng.choice((0, 0.003, 0.06, 0.5)))
        if self._rng.random() < 0.5:
            self._answer(worker, ask.seq, -self._rng.choice(_OUTSIDE_ERRNOS), "no")
        else:
            answer = msgpack.packb({"ok": True, "content": "x" * self._rng.choice((0, 9, 5_000))})
            self._answer(worker, ask.seq, 0, answer)

    async def _child(self, worker: str, ask: m.Ask) -> None:
        args = ask.args
        instance, parent = next(self._instances), args["parent"]
        try:
            if args["program"] not in (None, "player") or parent not in self._places:
                raise SyscallError(Errno.ENOENT, "no such program")
            if args["entry"] not in ("", "lip_main", "child"):
                raise SyscallError(Errno.ENOENT, "no such entry")
            tenant = self._places[parent][0]
            await self._register(instance, tenant, worker, parent, args["stage"], {})
        except SyscallError as error:
            self._answer(worker, ask.seq, -error.errno, error.detail)
            return
        if worker not in self._workers:
            self._ended(instance, "failed", "the worker died")
            return
        entries = ["child", "lip_main"]
        made = {"instance": instance, "module": "player", "entries": entries}
        self._answer(worker, ask.seq, 0, made)

    def _channel(self, worker: str, ask: m.Ask) -> None:
        tenant = self._places.get(ask.args["instance"], ("", ""))[0]
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
