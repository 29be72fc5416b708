"""The gateway's links: to the trusted kernel, and to untrusted workers.

    KernelLink    connects, and reconnects after a loss; sends requests and awaits answers. A
                  request survives a lost connection, and a kernel that restores its journal
    WorkerLinks   listens; checks each worker's name and secret, and every frame

Each link reports its events to one listener (`KernelEvents`, `WorkerEvents`), in order.
"""

import asyncio
import hmac
import logging
import os
import secrets
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any, Protocol

from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import (
    HELLO_SECONDS_MAX,
    WORKER_BACKLOG_BYTES_MAX,
    WORKER_FRAME_BYTES_MAX,
    WORKER_PROGRAMS_BYTES_MAX,
)
from symphony_kernel.protocol.links import Link, SocketLink, connect_unix, serve_unix
from symphony_kernel.protocol.role_processes import Processes, Started
from symphony_kernel.protocol.sessions import Dialer, LinkLostError, SessionLink

from symphony_runtime.sandboxing.contain import LAYERS

_log = logging.getLogger(__name__)
_CONNECT_SECONDS = (0.002, 0.1)  # first and longest pause between attempts
_SEQ_BITS = 60  # of the first request's number
_WORDS_MAX = 80  # characters of a worker's words about itself
_MODULE_BYTES = 32 << 10  # approximate cost of a program in a worker besides machine code


class KernelAwayError(Exception):
    """The kernel is away, or went away before it answered."""


class KernelEvents(Protocol):
    """Listener for events of the kernel."""

    def exceeded(self, instance: int, reason: str) -> None:
        """Take that an instance has reached a limit which the kernel counts."""

    def traced(self, instance: int, events: list[Any]) -> None:
        """Take a traced run's preds (`messages.Traced`)."""

    def kernel_lost(self, kernel: "KernelLink") -> None:
        """Take that a kernel has lost all its instances."""


class KernelLink:
    """The link to the kernel; `run` keeps it up until it is cancelled."""

    def __init__(
        self, path: Path, secret: bytes, events: KernelEvents, wait_seconds: float
    ) -> None:
        """`wait_seconds`: how long to wait for an answer of a kernel that is away."""
        self._path = path
        self._events = events
        self._wait_seconds = wait_seconds
        self._dialer = Dialer("gateway", "gateway", secret, self._take, self)
        self._session: SessionLink | None = None
        # A random start: late answers to an earlier gateway match no request of ours.
        self._seq = secrets.randbits(_SEQ_BITS)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self.pid = 0  # of the kernel; 0 while it is away
        self.linked = asyncio.Event()  # it has been linked once
        self.life = 0  # counts kernels that started without the state of the one before
        self.about: dict[str, Any] = {}
        self.on_linked: Callable[[], None] = lambda: None  # linked, maybe to a new process
        # Gets (tenant, seconds): a pause for work of the tenant that belongs to no instance.
        self.on_pace: Callable[[str, float], None] = lambda _tenant, _seconds: None

    @property
    def ready(self) -> bool:
        return self.pid != 0

    @property
    def expected(self) -> bool:
        """Whether requests wait: the kernel is linked or may come back."""
        return self._session is not None

    async def run(self) -> None:
        pause, longest = _CONNECT_SECONDS
        while True:
            try:
                link = await connect_unix(self._path)
                over = await self._dialer.connect(link)
            except (OSError, LinkLostError):
                await asyncio.sleep(pause)
                pause = min(pause * 2, longest)
                continue
            pause = _CONNECT_SECONDS[0]
            try:
                await over.wait()
            finally:
                link.close()
            _log.warning("the link to the kernel ended")

    # -- SessionEvents -------------------------------------------------------------------------
    def session_begun(self, session: SessionLink, welcome: m.Welcome) -> None:
        """Note a kernel that knows nothing of this gateway yet."""
        self._session, self.about, self.pid = session, welcome.about, welcome.pid
        self.life += 1
        self.linked.set()
        _log.info("linked to the kernel, process %d", welcome.pid)
        self.on_linked()

    def session_resumed(self, welcome: m.Welcome) -> None:
        """Note a kernel that is back with its state, maybe as a new process."""
        self.pid = welcome.pid
        _log.warning("the kernel is back, process %d", welcome.pid)
        self.on_linked()

    def session_cut(self) -> None:
        self.pid = 0

    def session_ended(self) -> None:
        """Fail all requests: the kernel has lost its state."""
        self.pid, self._session = 0, None
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            if not answer.done():
                answer.set_exception(KernelAwayError("the kernel went away"))
        _log.warning("the kernel has lost its state")
        self._events.kernel_lost(self)

    # -- Requests ------------------------------------------------------------------------------
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

        Raises KernelAwayError: no kernel, for long; SyscallError: it refuses.
        """
        try:
            await self._request(
                lambda seq: m.Register(seq, instance, tenant, worker, parent, stage, options),
                self._wait_seconds,
            )
        except KernelAwayError:
            if self._session is not None:  # it will get the Register yet, and then this End
                self._seq += 1
                self._session.send(m.encode(m.End(self._seq, instance)))
            raise

    async def end(self, instance: int) -> dict[str, int]:
        """End an instance; return its kernel usage. Waits for a kernel that is away.

        Raises KernelAwayError: no kernel; SyscallError: it does not know the instance.
        """
        usage: dict[str, int] = await self._request(lambda seq: m.End(seq, instance), None)
        return usage

    async def ask(self, what: str, **args: Any) -> Any:
        """Return the kernel's answer to an `Ask`.

        Raises KernelAwayError: no kernel, for long; SyscallError: its answer is an errno.
        """
        return await self._request(lambda seq: m.Ask(seq, what, args), self._wait_seconds)

    def report_cpu(self, spent: Mapping[int | str, int]) -> None:
        """Report CPU microseconds, by instance and by tenant name.

        Dropped while there is no kernel, which may answer with a pause for a tenant (`on_pace`).
        """
        if self._session is not None and spent:
            self._session.send(m.encode(m.Spent([list(each) for each in spent.items()])))

    async def _request(self, make: Callable[[int], m.Message], seconds: float | None) -> Any:
        if self._session is None:
            raise KernelAwayError("the kernel is not ready")
        self._seq += 1
        seq, answer = self._seq, asyncio.get_running_loop().create_future()
        self._waiting[seq] = answer
        self._session.send(m.encode(make(seq)))
        try:
            async with asyncio.timeout(seconds):
                return await answer
        except TimeoutError:
            raise KernelAwayError("the kernel does not answer") from None
        finally:
            self._waiting.pop(seq, None)

    def _take(self, frame: list[Any]) -> None:
        message = m.decode(frame)
        if isinstance(message, m.Answer):
            self._take_answer(message)
        elif isinstance(message, m.Exceeded):
            self._events.exceeded(message.instance, message.reason)
        elif isinstance(message, m.Traced):
            self._events.traced(message.instance, message.events)
        elif isinstance(message, m.Pace):
            self.on_pace(message.tenant, message.ms / 1000)

    def _take_answer(self, message: m.Answer) -> None:
        answer = self._waiting.pop(message.seq, None)
        if answer is None or answer.done():
            return
        if message.errno:
            answer.set_exception(SyscallError(Errno(abs(message.errno)), str(message.value or "")))
        else:
            answer.set_result(message.value)


class LoadedModules:
    """The programs that a worker has loaded; unused ones are evicted past a bound."""

    def __init__(self, bytes_max: int = WORKER_PROGRAMS_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._sizes: dict[str, int] = {}  # in order of last use
        self._bytes = 0

    def note_use(self, module: str) -> bool:
        size = self._sizes.pop(module, None)
        if size is not None:
            self._sizes[module] = size
        return size is not None

    def add(self, module: str, artefact_bytes: int) -> None:
        size = artefact_bytes + _MODULE_BYTES
        self._sizes[module] = size
        self._bytes += size

    def forget_prefix(self, prefix: str, in_use: set[str]) -> list[str]:
        gone = [each for each in self._sizes if each.startswith(prefix) and each not in in_use]
        for module in gone:
            self._bytes -= self._sizes.pop(module)
        return gone

    @property
    def too_many(self) -> bool:
        return self._bytes > self._bytes_max

    def evict(self, in_use: set[str]) -> list[str]:
        """Remove unused programs until the bound holds; return them, oldest first."""
        gone = []
        for module in [module for module in self._sizes if module not in in_use]:
            if not self.too_many:
                break
            self._bytes -= self._sizes.pop(module)
            gone.append(module)
        return gone


class Worker:
    """A worker that has authenticated itself. `live` is the number of its runs.

    `containment` names the layers of its sandbox, in the worker's own words.
    """

    def __init__(self, name: str, pid: int, link: Link, about: Mapping[str, Any]) -> None:
        self.name = name
        self.pid = pid
        said = about.get("containment")
        known = said if isinstance(said, dict) else {}
        self.containment: dict[str, str] = {
            layer: words[:_WORDS_MAX]
            for layer in LAYERS
            if isinstance(words := known.get(layer), str)
        }
        self.modules = LoadedModules()
        self.live = 0
        self.tenant: str | None = None  # its only tenant, with workers per tenant
        self.used = 0.0  # time of last use, by the clock of `WorkerAssignment`
        self.retiring = False  # its process is about to end
        self.process: Started | None = None  # according to the system and the supervisor
        self._link = link

    @property
    def away(self) -> bool:
        return self._link.closed

    def send(self, message: m.Message) -> None:
        """Queue a message; dropped if unlinked. Cuts a worker that does not read."""
        self._link.send(m.encode(message))
        if self._link.backlog > WORKER_BACKLOG_BYTES_MAX:
            _log.error("%s does not read; its link is cut", self.name)
            self.drop()

    def answer(self, seq: int, value: Any) -> None:
        self.send(m.Answer(seq, 0, value))

    def refuse(self, seq: int, errno: Errno, detail: str) -> None:
        self.send(m.Answer(seq, -errno, detail))

    def drop(self) -> None:
        """Cut the link at once, with unread frames: this worker is not trusted any longer."""
        self._link.abort()


class WorkerEvents(Protocol):
    """Listener for workers. Instances in their messages are claims to check."""

    def worker_output(self, worker: Worker, messages: list[Any]) -> None:
        """Take the items of an Output."""

    def worker_message(self, worker: Worker, message: m.Message) -> None:
        """Take Logs, Received, Traced, Ended, Ask or Unask."""

    def worker_lost(self, worker: Worker) -> None:
        """Take that a worker's link has ended, and with it all that it ran."""


class WorkerLinks:
    """Listens for workers and holds the linked ones."""

    def __init__(
        self,
        path: Path,
        secrets: Mapping[str, bytes],
        events: WorkerEvents,
        processes: Processes | None = None,
        hanging: Container[str] = (),
    ) -> None:
        """`processes`: the allowed ones; None: all. `hanging`: roles that hang now."""
        self._path = path
        self._secrets = secrets
        self._processes = processes
        self._hanging = hanging
        self._gone: dict[str, Worker] = {}  # by name, the last worker whose link has ended
        self._events = events
        self._server: asyncio.AbstractServer | None = None
        self.workers: dict[str, Worker] = {}
        self.on_linked: Callable[[Worker], None] = lambda _: None

    async def open(self) -> None:
        self._server = await serve_unix(self._path, self._meet, WORKER_FRAME_BYTES_MAX)

    async def close(self) -> None:
        """Stop listening and cut all links, without reporting it."""
        if self._server is not None:
            self._server.close()
        workers, self.workers = self.workers, {}
        for worker in workers.values():
            worker.drop()
        self._path.unlink(missing_ok=True)

    def by_load(self) -> list[Worker]:
        """Return the linked workers, the one with the fewest runs first.

        Workers that hang are left out while another one is linked.
        """
        answering = [worker for name, worker in self.workers.items() if name not in self._hanging]
        return sorted(answering or self.workers.values(), key=lambda worker: worker.live)

    @property
    def expected(self) -> list[str]:
        return list(self._secrets)

    def _meet(self, link: SocketLink) -> None:
        loop = asyncio.get_running_loop()
        late = loop.call_later(HELLO_SECONDS_MAX, link.close)
        worker: Worker | None = None

        def on_frame(frame: list[Any]) -> None:
            nonlocal worker
            try:
                if worker is not None and m.is_output(frame):  # nearly all frames are
                    self._events.worker_output(worker, frame[1])
                    return
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
            raise m.MessageError(f"{message.name!r} does not have the secret of that worker")
        if message.version != m.PROTOCOL_VERSION:
            raise m.MessageError(f"{message.name} has protocol version {message.version}")
        process = None
        if self._processes is not None:
            process = self._processes.process_at(message.name, link)
            if process is None:
                raise m.MessageError(f"{message.name!r} is not the process that was started for it")
        before = self.workers.get(message.name)
        if before is not None:
            before.drop()
            self._forget(before)
        pid = process.pid if process is not None else message.pid
        worker = self.workers[message.name] = Worker(message.name, pid, link, message.about)
        worker.process = process
        gone = self._gone.pop(message.name, None)
        if process is not None and gone is not None and gone.process == process:
            worker.tenant, worker.retiring = gone.tenant, gone.retiring
        worker.send(m.Welcome(os.getpid(), {}))
        _log.info("%s is linked, process %d", worker.name, worker.pid)
        self.on_linked(worker)
        return worker

    def _forget(self, worker: Worker) -> None:
        if self.workers.get(worker.name) is worker:
            del self.workers[worker.name]
            self._gone[worker.name] = worker
            _log.warning("the link to %s ended", worker.name)
            self._events.worker_lost(worker)
