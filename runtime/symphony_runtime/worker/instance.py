"""Instances: one LIP each, with everything it holds. A run is a tree of them (`worker.run`).

Syscall handlers (`worker/syscalls`) check a guest's arguments and work on an `Instance`; the worker
drives its fiber and carries its messages.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from symphony_kernel.protocol.errno import Errno, KernelBug, LimitError, SyscallError
from symphony_kernel.protocol.limits import (
    INSTANCE_CALLS_UNANSWERED_MAX,
    LOG_LINE_BYTES,
    SEND_WINDOW_BYTES,
)
from symphony_kernel.protocol.messages import Op

from symphony_runtime.engine.fiber import Fiber
from symphony_runtime.worker.handles import Handles
from symphony_runtime.worker.run import Run
from symphony_runtime.worker.text.pool import TextPool
from symphony_runtime.worker.text.tokenizer import ModelTokenizer, Pieces
from symphony_runtime.worker.tickets import Stream, Ticket, Tickets

_WAITS = int(Op.WAITS)
_PACE_MS = 5
_WARNING = 2  # a level of the log
_LOG_FULL = b"(the log is full: further lines are dropped)"

OnReply = Callable[[Any], None]
Finish = Callable[[Any], int]  # a kernel's reply -> the suspended call's result


class Services(Protocol):
    """What an instance needs of its worker."""

    loop: asyncio.AbstractEventLoop
    now: Callable[[], float]
    early_ms: int
    text: ModelTokenizer
    texts: TextPool

    def kernel_call(self, call: list[Any], size: int = 0) -> None:
        """Put [instance, op, seq, argument, ...] into this turn's Calls; `size`: of long ones."""

    def ask(self, what: str, args: dict[str, Any], on_answer: Callable[[int, Any], None]) -> int:
        """Ask the gateway; `on_answer` gets errno (0 or negative) and value. Returns the seq."""

    def unask(self, seq: int) -> None:
        """Say that the answer is no longer wanted."""

    def links_are_behind(self) -> bool:
        """Whether kernel or gateway have left much of what we said unread."""

    def output(self, instance: int, data: bytes) -> None:
        """Put a message into this turn's Output."""

    def log(self, instance: int, level: int, data: bytes) -> None:
        """Put a line into this turn's Logs."""

    def received(self, instance: int, size: int) -> None:
        """Tell the gateway that the program has received a message of `size` bytes."""

    def runnable(self, instance: "Instance") -> None:
        """Let an instance run that was suspended."""

    def waits_outside(self, instance: "Instance") -> None:
        """An instance with files waits, and not for the kernel."""

    def start_child(self, parent: "Instance", pid: int, made: dict[str, Any], data: bytes) -> None:
        """Start the child that the gateway registered."""

    def end_unwanted(self, instance: "Instance") -> None:
        """End a child whose parent cancelled its spawn."""

    def fault(self, instance: "Instance", error: Exception) -> None:
        """End an instance whose call met a fault of ours."""

    def next_stage(self) -> int:
        """Return a number for a STAGE that no other has."""

    def unix_ms(self) -> int:
        """Milliseconds since 1970."""

    def random(self, count: int) -> bytes:
        """Random bytes."""


class Instance:
    """One LIP. Only the worker's loop touches it, between two polls of its fiber."""

    traced = False

    __slots__ = (
        "asks",
        "births",
        "children",
        "claimed",
        "cpu_ns",
        "depth",
        "end_code",
        "ended",
        "fiber",
        "granted",
        "handles",
        "id",
        "inbox",
        "input",
        "input_closed",
        "joiners",
        "last_error",
        "memory_bytes",
        "memory_peak",
        "module",
        "next_pid",
        "output",
        "parent",
        "pending",
        "pid",
        "queued",
        "receivers",
        "run",
        "send_blocked", "send_result",
        "services",
        "started",
        "syscalls",
        "tickets",
        "timers",
        "told_waiting",
        "unanswered",
        "wait_timer",
        "waited",
        "wall_timer",
    )  # fmt: skip

    def __init__(
        self,
        services: Services,
        run: Run,
        instance: int,
        data: bytes,
        parent: "Instance | None" = None,
        pid: int = 0,
    ) -> None:
        self.services, self.run, self.id, self.input = services, run, instance, data
        self.parent, self.pid = parent, pid
        self.depth: int = parent.depth + 1 if parent else 0
        self.fiber: Fiber  # set by the worker before anything else
        self.module = ""
        self.started = services.now()
        self.ended = self.queued = False
        self.end_code = 0
        # What it holds.
        self.tickets = Tickets(run.tickets, run.results)
        self.handles = Handles(run.handles)
        # Kernel calls without an answer, by seq; of a `pred_claim` where its result goes.
        self.pending: dict[int, Ticket | OnReply | int] = {}
        self.asks: set[int] = set()
        self.timers: set[asyncio.TimerHandle] = set()
        self.wall_timer: asyncio.TimerHandle | None = None
        self.unanswered = 0  # kernel calls since the last one that was answered
        # What it waits for, while it is suspended.
        self.waited: dict[int, int] | None = None  # ticket number -> index
        self.claimed: Callable[[], int] | None = None  # takes what it waits for
        self.wait_timer: asyncio.TimerHandle | None = None
        self.told_waiting = False  # the kernel knows that it waits for the outside
        self.send_blocked, self.send_result = False, 0
        # Messages from the user.
        self.inbox: deque[bytes] = deque()
        self.receivers: deque[Ticket] = deque()
        self.input_closed = parent is not None
        # Its children by pid, ended ones until they are joined, and who joins this one.
        self.children: dict[int, Instance] = {}
        # Of children whose grants the kernel has not got yet: what gives back what they count for.
        self.births: set[Callable[[], None]] = set()
        self.next_pid = 1
        self.joiners: list[Ticket] = []  # its parent's
        self.granted: dict[str, int] = {}  # grants that it has taken up
        self.last_error = b""  # words of the last call that failed and has any
        self.output: list[bytes] = []  # a child's sends
        # Accounting.
        self.cpu_ns = self.syscalls = self.memory_bytes = self.memory_peak = 0

    # -- Going on ------------------------------------------------------------------------------
    def resume(self, result: int) -> None:
        """Give the pending call's result and let the guest run."""
        self.fiber.resume(result)
        self.services.runnable(self)

    def complete(self, ticket: Ticket, result: bytes | int) -> None:
        """Make a ticket ready, and wake the guest when it waits for it."""
        ticket.result = result
        ticket.drop = None
        held = 0 if isinstance(result, int) else len(result)
        if held != ticket.held:
            self.tickets.held += held - ticket.held
            ticket.held = held
        if self.waited is not None:
            index = self.waited.get(ticket.number)
            if index is not None:
                self.wake(index)

    def give(self, stream: Stream, reply: bytes | int) -> None:
        """A generation has given records, or has ended; wake the guest when it waits for it."""
        if not stream.add(reply):
            self.pending[stream.number] = stream  # there is more to come
        elif stream.ended:  # the last record was taken as it came, before this reply behind it
            stream.let_go()
        if self.waited is not None and stream.result is not None:
            index = self.waited.get(stream.number)
            if index is not None:
                self.wake(index)

    def wake(self, result: int) -> None:
        """End the guest's wait: with the index of a ticket that is ready, or an errno."""
        claimed = self.claimed
        self.waited = self.claimed = None
        if self.wait_timer is not None:
            self.wait_timer.cancel()
            self.wait_timer = None
        if self.told_waiting:
            self.told_waiting = False
            self.services.kernel_call([self.id, _WAITS, 0, 0])
        self.resume(result if claimed is None or result < 0 else claimed())

    # -- The kernel ----------------------------------------------------------------------------
    def call_kernel(self, op: Op, *arguments: Any) -> None:
        """Make a kernel call that wants no reply."""
        self.unanswered += 1
        self.services.kernel_call([self.id, op, 0, *arguments], _size(arguments))

    def post(self, result: int, op: Op, *arguments: Any) -> int | None:
        """Make a kernel call that wants no reply; the guest's call returns `result`.

        Once in a while the guest waits for a sign of the kernel, so that it cannot make such calls
        faster than they are executed.
        """
        self.call_kernel(op, *arguments)
        if self.unanswered < INSTANCE_CALLS_UNANSWERED_MAX:
            return result
        self.unanswered = 0
        # No handle is 0: answered with EBADF as soon as it is read, whatever the others wait for.
        self.ask_kernel(lambda _: self.resume(result), Op.KV_CLOSE, 0)
        return None

    def ask_kernel(self, on_reply: OnReply, op: Op, *arguments: Any) -> None:
        """Make a kernel call; `on_reply` gets what comes back."""
        seq = self.tickets.number()
        self.pending[seq] = on_reply
        self.services.kernel_call([self.id, op, seq, *arguments], _size(arguments))

    def suspend_on_kernel(self, finish: Finish, op: Op, *arguments: Any) -> None:
        """Make a kernel call and suspend the guest; its result is `finish(reply)`, or the errno."""

        def on_reply(reply: Any) -> None:
            try:
                failed = type(reply) is int and reply < 0
                result = reply if failed else finish(reply)
            except SyscallError as error:
                result = -error.errno
            self.resume(result)

        self.ask_kernel(on_reply, op, *arguments)

    def suspend_on_text(self, pieces: Pieces, size: int, finish: Callable[[bytes], int]) -> None:
        """Suspend the guest while the text pool works; its result is `finish(result)`."""

        def on_done(result: bytes | Exception) -> None:
            try:
                if isinstance(result, Exception):
                    raise result
                code = finish(result)
            except SyscallError as error:
                code = -error.errno
            except Exception as error:  # ours: what a guest can do wrong is a SyscallError
                self.services.fault(self, error)
                return
            self.resume(code)

        self.services.texts.submit(self, pieces, size, on_done)

    def on_reply(self, seq: int, result: Any) -> None:
        """A kernel call's reply came; one that nobody waits for any more is dropped."""
        pending = self.pending.pop(seq, None)
        if pending is None:
            return
        if type(pending) is int:
            if type(result) is not int:
                self.fiber.write(pending, result)
                result = len(result)
            self.resume(result)
        elif type(pending) is Ticket:
            self.complete(pending, result)
        elif type(pending) is Stream:
            self.give(pending, result)
        else:
            assert not isinstance(pending, Ticket | int)
            pending(result)

    # -- The gateway ---------------------------------------------------------------------------
    def ask_gateway(
        self, what: str, args: dict[str, Any], on_answer: Callable[[int, Any], None]
    ) -> int:
        """Ask the gateway; the answer is dropped when the instance has ended before."""

        def answered(errno: int, value: Any) -> None:
            self.asks.discard(seq)
            if not self.ended:
                on_answer(errno, value)

        seq = self.services.ask(what, args, answered)
        self.asks.add(seq)
        return seq

    def unask_gateway(self, seq: int) -> None:
        """Drop a question."""
        self.asks.discard(seq)
        self.services.unask(seq)

    def pace(self, result: int) -> int | None:
        """Return a call's result, later when kernel or gateway are behind with reading."""
        if not self.services.links_are_behind():
            return result

        def again() -> None:
            if self.services.links_are_behind():
                self.timer(_PACE_MS, again)
            else:
                self.resume(result)

        self.timer(_PACE_MS, again)
        return None

    def timer(self, milliseconds: float, action: Callable[[], None]) -> asyncio.TimerHandle:
        """Do something later, unless the instance has ended; the handle may be cancelled."""

        def fire() -> None:
            self.timers.discard(handle)
            action()

        handle = self.call_after(milliseconds, fire)
        self.timers.add(handle)
        return handle

    def call_after(
        self, milliseconds: float, action: Callable[..., None], *what: Any
    ) -> asyncio.TimerHandle:
        """Call action(*what) once so much time has passed: the loop's timers may be early."""
        return self.services.loop.call_later(
            (milliseconds + self.services.early_ms) / 1000, action, *what
        )

    def drop_timer(self, handle: asyncio.TimerHandle) -> None:
        """Cancel a timer."""
        handle.cancel()
        self.timers.discard(handle)

    # -- Messages ------------------------------------------------------------------------------
    def send(self, data: bytes, result: int = 0) -> int | None:
        """Send a message to the user (a child's: to its parent). None: suspended until read."""
        self.run.count_output(len(data))
        if self.parent is not None:
            self.output.append(data)
            return result
        self.services.output(self.id, data)
        self.run.unread_bytes += len(data)
        if self.run.unread_bytes <= SEND_WINDOW_BYTES:
            return result
        self.send_blocked = True
        self.send_result = result
        return None

    def credit(self, taken: int) -> None:
        """The gateway has taken this many bytes."""
        self.run.unread_bytes -= taken
        if self.send_blocked and self.run.unread_bytes <= SEND_WINDOW_BYTES:
            self.send_blocked = False
            self.resume(self.send_result)

    def deliver(self, data: bytes) -> None:
        """A message from the user."""
        if self.receivers:
            self.complete(self.receivers.popleft(), data)
            self.services.received(self.id, len(data))
        else:
            self.inbox.append(data)

    def close_input(self) -> None:
        """No further message comes."""
        self.input_closed = True
        while self.receivers:
            self.complete(self.receivers.popleft(), -Errno.EPIPE)

    def write_log(self, level: int, data: bytes) -> None:
        """Keep a line with the run, as far as the run's log has room."""
        run = self.run
        room = run.log_bytes_max - len(_LOG_FULL) - run.log_bytes
        if room <= 0:
            run.hit("log_bytes")
            return
        run.log_bytes += len(data) + LOG_LINE_BYTES
        self.services.log(run.id, level, data[:room])
        if len(data) + LOG_LINE_BYTES >= room:
            run.hit("log_bytes")
            self.services.log(run.id, 2, _LOG_FULL)

    def note_refusal(self, errno: int, words: object) -> None:
        """The gateway refused a call, and says why."""
        if errno < 0 and words:
            self.last_error = str(words).encode(errors="replace")

    def refuse(self, error: LimitError) -> None:
        """A call would have gone past a limit: say it in words, and once in the run's log."""
        self.last_error = words = error.detail.encode()
        self.run.hit(error.limit)
        if self.run.hits[error.limit] == 1:
            self.write_log(_WARNING, b"a limit was reached: " + words)

    # -- Accounting ----------------------------------------------------------------------------
    def note_memory(self, size: int) -> None:
        """The guest's memory has grown to `size` bytes."""
        change, self.memory_bytes = size - self.memory_bytes, size
        self.memory_peak = size
        self.run.share.memory.count(change)
        self.run.count_memory(change)

    def assume_memory(self) -> None:
        """Until it is measured next: it may hold as much as its limit lets it."""
        most = self.fiber.bound
        change, self.memory_bytes = most - self.memory_bytes, most
        self.run.share.memory.count(change)
        self.run.count_memory(change, measured=False)

    def memory_words(self) -> str:
        """What a guest's author must hear who did not look at what `memory.grow` returned."""
        size, limit = self.fiber.measure(), self.fiber.bound
        return f"; its memory had {size} of at most {limit} bytes" if size > limit * 7 // 8 else ""

    def drop_input(self) -> None:
        """Nobody will read its input any more; a child's has been counted as memory."""
        if self.parent is not None:
            self.run.memory_bytes -= len(self.input)
        self.input = b""

    def elapsed_ms(self) -> int:
        """Whole milliseconds since it started; a microsecond's grace for what floats lose."""
        return int((self.services.now() - self.started) * 1000 + 0.001)

    def usage(self) -> dict[str, int]:
        """What it used, its children included."""
        peak = self.run.memory_peak if self.parent is None else self.memory_peak
        return {
            "cpu_ms": round(self.cpu_ns / 1e6),
            "wall_ms": self.elapsed_ms(),
            "syscalls": self.syscalls,
            "peak_memory_bytes": peak,
        }

    # -- The end -------------------------------------------------------------------------------
    def release(self) -> None:
        """Give everything back that it holds in this process; the kernel hears from the gateway."""
        assert not self.ended
        self.ended = True
        size = self.fiber.close()
        self.memory_peak = max(self.memory_peak, size)
        self.run.memory_peak = max(
            self.run.memory_peak, self.run.memory_bytes - self.memory_bytes + size
        )
        self.run.memory_bytes -= self.memory_bytes
        self.run.share.memory.count(-self.memory_bytes - self.fiber.program.table_bytes)
        self.drop_input()
        self.services.texts.cancel(self)
        self.tickets.close()
        self.handles.end()
        for handle in (*self.timers, self.wall_timer, self.wait_timer):
            if handle is not None:
                handle.cancel()
        self.timers.clear()
        for seq in self.asks:
            self.services.unask(seq)
        self.asks.clear()
        self.pending.clear()
        # Nobody will join its children.
        self.run.children -= len(self.children)
        self.children.clear()
        for not_born in self.births:
            not_born()
        self.births.clear()
        self.inbox.clear()
        self.receivers.clear()
        self.waited = self.claimed = None


def _size(arguments: tuple[Any, ...]) -> int:
    return sum(len(argument) for argument in arguments if isinstance(argument, bytes))


def check_released(instance: Instance) -> None:
    """Raise KernelBug when an ended instance still holds something."""
    held = [name for name in ("timers", "asks", "pending", "inbox") if getattr(instance, name)]
    if held or instance.tickets.live or not instance.ended:
        raise KernelBug(f"instance {instance.id} ended and still holds {held}")
