"""The gateway's links: to the kernel, which it believes, and to workers, which it does not.

    KernelLink    connects, and again when the kernel was away; asks and awaits
    WorkerLinks   listens; knows each worker by its name and secret; checks every frame

What happens on a link is told to one listener each (`KernelEvents`, `WorkerEvents`), in order.
"""

import asyncio
import hmac
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import (
    WORKER_BACKLOG_BYTES_MAX,
    WORKER_FRAME_BYTES_MAX,
    WORKER_PROGRAMS_BYTES_MAX,
)
from symphony_kernel.protocol.links import Link, SocketLink, connect_unix, serve_unix

_log = logging.getLogger(__name__)
_CONNECT_SECONDS = (0.002, 0.1)  # first and longest pause between attempts
_HELLO_SECONDS_MAX = 10.0
_MODULE_BYTES = 32 << 10  # what a program costs a worker besides its machine code, about


class KernelAwayError(Exception):
    """The kernel is not there, or went away before it answered."""


class KernelEvents(Protocol):
    """Who hears from the kernel."""

    def exceeded(self, instance: int, reason: str) -> None:
        """An instance has used up a limit that the kernel counts."""

    def traced(self, instance: int, events: list[Any]) -> None:
        """The kernel tells of a traced run's preds (see `messages.Traced`)."""

    def kernel_lost(self) -> None:
        """The link has ended; every instance in the kernel has, too."""


class KernelLink:
    """The link to the kernel; `run` keeps it up until it is cancelled."""

    def __init__(self, path: Path, secret: bytes, events: KernelEvents) -> None:
        self._path = path
        self._secret = secret
        self._events = events
        self._link: SocketLink | None = None
        self._seq = 0
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._lost = asyncio.Event()
        self.pid = 0  # of the kernel; 0 while it is away
        self.about: dict[str, Any] = {}

    @property
    def ready(self) -> bool:
        """Whether the kernel has welcomed us and is still there."""
        return self.pid != 0

    async def run(self) -> None:
        """Connect, serve the link until it ends, and again."""
        pause, longest = _CONNECT_SECONDS
        while True:
            self._lost.clear()
            try:
                link = await connect_unix(self._path)
            except OSError:
                await asyncio.sleep(pause)
                pause = min(pause * 2, longest)
                continue
            self._link = link
            link.receive(self._take, self._lost.set)
            hello = m.Hello(m.PROTOCOL_VERSION, "gateway", "gateway", self._secret, os.getpid())
            link.send(m.encode(hello))
            try:
                await self._lost.wait()
            finally:
                link.close()
            # Not welcomed: it will not be next time either, soon.
            pause = _CONNECT_SECONDS[0] if self.ready else min(pause * 2, longest)
            self._forget()
            await asyncio.sleep(pause)

    async def register(
        self,
        instance: int,
        tenant: str,
        worker: str,
        parent: int,
        stage: int,
        options: dict[str, Any],
    ) -> None:
        """Let an instance call the kernel.

        Raises:
            KernelAwayError: no kernel; SyscallError: it refuses.
        """
        seq, answer = self._expect()
        self._send(m.Register(seq, instance, tenant, worker, parent, stage, options))
        await answer

    async def end(self, instance: int) -> dict[str, int]:
        """Give back what an instance held; return its use of the kernel.

        Raises:
            KernelAwayError: no kernel; SyscallError: it does not know the instance.
        """
        seq, answer = self._expect()
        self._send(m.End(seq, instance))
        usage: dict[str, int] = await answer
        return usage

    async def ask(self, what: str, **args: Any) -> Any:
        """Return the kernel's answer to an `Ask`.

        Raises:
            KernelAwayError: no kernel; SyscallError: its answer is an errno.
        """
        seq, answer = self._expect()
        self._send(m.Ask(seq, what, args))
        return await answer

    def _expect(self) -> tuple[int, "asyncio.Future[Any]"]:
        if not self.ready:
            raise KernelAwayError("the kernel is not ready")
        self._seq += 1
        answer = asyncio.get_running_loop().create_future()
        self._waiting[self._seq] = answer
        return self._seq, answer

    def _send(self, message: m.Message) -> None:
        assert self._link is not None
        self._link.send(m.encode(message))

    def _take(self, frame: list[Any]) -> None:
        message = m.decode(frame)
        if isinstance(message, m.Answer):
            self._take_answer(message)
        elif isinstance(message, m.Exceeded):
            self._events.exceeded(message.instance, message.reason)
        elif isinstance(message, m.Traced):
            self._events.traced(message.instance, message.events)
        elif isinstance(message, m.Welcome):
            self.pid, self.about = message.pid, message.about
            _log.info("linked to the kernel, process %d", message.pid)

    def _take_answer(self, message: m.Answer) -> None:
        answer = self._waiting.pop(message.seq, None)
        if answer is None or answer.done():
            return
        if message.errno:
            answer.set_exception(SyscallError(Errno(abs(message.errno)), str(message.value or "")))
        else:
            answer.set_result(message.value)

    def _forget(self) -> None:
        was_ready, self.pid, self._link = self.ready, 0, None
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            if not answer.done():
                answer.set_exception(KernelAwayError("the kernel went away"))
        if was_ready:
            _log.warning("the link to the kernel ended")
            self._events.kernel_lost()


class Modules:
    """The programs that a worker holds, within a bound on what nobody uses of them."""

    def __init__(self, bytes_max: int = WORKER_PROGRAMS_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._sizes: dict[str, int] = {}  # the one used last comes last
        self._bytes = 0

    def use(self, module: str) -> bool:
        """Note that a run wants a program; return whether it is there."""
        size = self._sizes.pop(module, None)
        if size is not None:
            self._sizes[module] = size
        return size is not None

    def add(self, module: str, artefact_bytes: int) -> None:
        """Note that the worker gets a program."""
        size = artefact_bytes + _MODULE_BYTES
        self._sizes[module] = size
        self._bytes += size

    @property
    def too_many(self) -> bool:
        """Whether those that nobody uses should go."""
        return self._bytes > self._bytes_max

    def evict(self, in_use: set[str]) -> list[str]:
        """Forget programs until what is left is within the bound; return them, the oldest first."""
        gone = []
        for module in [module for module in self._sizes if module not in in_use]:
            if not self.too_many:
                break
            self._bytes -= self._sizes.pop(module)
            gone.append(module)
        return gone


class Worker:
    """A worker that has proved itself. `modules` are those it holds, `live` the runs it has."""

    def __init__(self, name: str, pid: int, link: Link) -> None:
        self.name = name
        self.pid = pid
        self.modules = Modules()
        self.live = 0
        self._link = link

    @property
    def away(self) -> bool:
        """Whether its link has ended."""
        return self._link.closed

    def send(self, message: m.Message) -> None:
        """Queue a message; dropped when the worker is away. One that reads nothing is cut off."""
        self._link.send(m.encode(message))
        if self._link.backlog > WORKER_BACKLOG_BYTES_MAX:
            _log.error("%s does not read; its link is cut", self.name)
            self.drop()

    def answer(self, seq: int, value: Any) -> None:
        """Answer an `Ask`."""
        self.send(m.Answer(seq, 0, value))

    def refuse(self, seq: int, errno: Errno, detail: str) -> None:
        """Answer an `Ask` with an errno."""
        self.send(m.Answer(seq, -errno, detail))

    def drop(self) -> None:
        """End the link now, read or unread: this worker is not believed any longer."""
        self._link.abort()


class WorkerEvents(Protocol):
    """Who hears from workers. Instances in messages are claims: check whose they are."""

    def worker_message(self, worker: Worker, message: m.Message) -> None:
        """`message` is Output, Logs, Received, Traced, Ended, Ask or Unask."""

    def worker_lost(self, worker: Worker) -> None:
        """Its link has ended, and with it everything that it ran."""


class WorkerLinks:
    """Listens for workers and knows those that are there."""

    def __init__(self, path: Path, secrets: Mapping[str, bytes], events: WorkerEvents) -> None:
        self._path = path
        self._secrets = secrets
        self._events = events
        self._server: asyncio.AbstractServer | None = None
        self.workers: dict[str, Worker] = {}

    async def open(self) -> None:
        """Begin to listen."""
        self._server = await serve_unix(self._path, self._meet, WORKER_FRAME_BYTES_MAX)

    async def close(self) -> None:
        """Stop listening and end all links; nothing more is told of them."""
        if self._server is not None:
            self._server.close()
        workers, self.workers = self.workers, {}
        for worker in workers.values():
            worker.drop()
        self._path.unlink(missing_ok=True)

    def by_load(self) -> list[Worker]:
        """Return the workers that are there, the one with the fewest runs first."""
        return sorted(self.workers.values(), key=lambda worker: worker.live)

    @property
    def expected(self) -> list[str]:
        """Names of all workers that may come."""
        return list(self._secrets)

    def _meet(self, link: SocketLink) -> None:
        loop = asyncio.get_running_loop()
        late = loop.call_later(_HELLO_SECONDS_MAX, link.close)
        worker: Worker | None = None

        def on_frame(frame: list[Any]) -> None:
            nonlocal worker
            try:
                message = m.decode(frame)
                if worker is not None:
                    self._events.worker_message(worker, message)
                    return
                late.cancel()
                worker = self._welcome(link, message)
            except m.MessageError as error:
                _log.warning("%s broke the protocol: %s", worker.name if worker else "?", error)
                link.abort()

        def on_closed() -> None:
            late.cancel()
            if worker is not None:
                self._forget(worker)

        link.receive(on_frame, on_closed)

    def _welcome(self, link: SocketLink, message: m.Message) -> Worker:
        if not isinstance(message, m.Hello) or message.role != "worker":
            raise m.MessageError("the first frame of a worker must be its Hello")
        secret = self._secrets.get(message.name, b"")
        if not hmac.compare_digest(secret, message.secret) or not secret:
            raise m.MessageError(f"{message.name!r} has not the secret of that worker")
        if message.version != m.PROTOCOL_VERSION:
            raise m.MessageError(f"{message.name} speaks version {message.version}")
        before = self.workers.get(message.name)
        if before is not None:
            before.drop()
            self._forget(before)
        worker = self.workers[message.name] = Worker(message.name, message.pid, link)
        worker.send(m.Welcome(os.getpid(), {}))
        _log.info("%s is here, process %d", worker.name, worker.pid)
        return worker

    def _forget(self, worker: Worker) -> None:
        if self.workers.get(worker.name) is worker:
            del self.workers[worker.name]
            _log.warning("the link to %s ended", worker.name)
            self._events.worker_lost(worker)
