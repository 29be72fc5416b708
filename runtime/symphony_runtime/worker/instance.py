"""An instance: one running module, with everything that it holds.

A run is a tree of instances (`worker.run`). Syscall handlers (`worker/syscalls`) check a guest's
arguments and work on an `Instance`. The worker drives its fiber and carries its messages.
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
_WARNING = 2  # log level
_LOG_FULL = b"(the log is full: further lines are dropped)"

OnReply = Callable[[Any], None]
OnAnswer = Callable[[int, Any], None]  # errno (0 or negative) and value of the gateway's answer
Finish = Callable[[Any], int]  # a kernel's reply -> the suspended call's result


class Services(Protocol):
    """What an instance needs from its worker; `Worker` documents the methods."""

    loop: asyncio.AbstractEventLoop
    now: Callable[[], float]
    early_ms: int
    text: ModelTokenizer
    texts: TextPool
    next_stage: Callable[[], int]  # an unused number for STAGE
    # Notes that an instance with files waits, and not for the kernel.
    note_idle_wait: Callable[["Instance"], None]
    random: Callable[[int], bytes]

    def kernel_call(self, call: list[Any], size: int = 0) -> None: ...
    def ask_gateway(self, what: str, args: dict[str, Any], on_answer: OnAnswer) -> int: ...
    def cancel_ask(self, seq: int) -> None: ...
    def links_are_behind(self) -> bool: ...
    def output(self, instance: int, data: bytes) -> None: ...
    def flush(self) -> None: ...
    def log(self, instance: int, level: int, data: bytes) -> None: ...
    def notify_received(self, instance: int, size: int) -> None: ...
    def make_runnable(self, instance: "Instance") -> None: ...
    def start_child(
        self, parent: "Instance", pid: int, made: dict[str, Any], data: bytes
    ) -> None: ...
    def end_cancelled_child(self, instance: "Instance") -> None: ...
    def fault(self, instance: "Instance", error: Exception) -> None: ...
    def unix_ms(self) -> int: ...


class Instance:
    """One running module. Only the worker's loop touches it, between polls."""

    traced = False

    __slots__ = (
        "children", "cpu_ns", "depth", "end_code", "ended", "fiber", "gateway_asks",
        "granted", "handles", "id", "idle_reported", "inbox", "input", "input_closed",
        "joiners", "last_error", "memory_bytes", "memory_peak", "next_pid",
        "output", "parent", "pending", "pending_spawns", "pid", "queued", "receivers",
        "run", "send_blocked", "send_result", "services", "source", "started", "syscalls",
        "take_claimed", "tickets", "timers", "unanswered", "wait_timer", "waited",
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
        self.source = b""  # of a program in a language
        self.started = services.now()
        self.ended = self.queued = False
        self.end_code = 0
        # What it holds.
        self.tickets = Tickets(run.tickets, run.results)
        self.handles = Handles(run.handles)
        # Kernel calls without a reply, by seq. For `pred_claim`: the address of its result.
        self.pending: dict[int, Ticket | OnReply | int] = {}
        self.gateway_asks: set[int] = set()
        self.timers: set[asyncio.TimerHandle] = set()
        self.wall_timer: asyncio.TimerHandle | None = None
        self.unanswered = 0  # kernel calls since the last one with a reply
        # What it waits for while it is suspended.
        self.waited: dict[int, int] | None = None  # ticket number -> index
        self.take_claimed: Callable[[], int] | None = None  # takes the ticket that it waits for
        self.wait_timer: asyncio.TimerHandle | None = None
        self.idle_reported = False  # the kernel knows that it is idle (`IdleHint`)
        self.send_blocked, self.send_result = False, 0
        # Messages from the user.
        self.inbox: deque[bytes] = deque()
        self.receivers: deque[Ticket] = deque()
        self.input_closed = parent is not None
        # Its children by pid, ended ones until they are joined.
        self.children: dict[int, Instance] = {}
        # For children whose grants the kernel does not have yet: what undoes their spawn.
        self.pending_spawns: set[Callable[[], None]] = set()
        self.next_pid = 1
        self.joiners: list[Ticket] = []  # its parent's tickets
        self.granted: dict[str, int] = {}  # name -> handle of grants that it has taken
        self.last_error = b""  # message of the last failed call that has one
        self.output: list[bytes] = []  # messages of a child
        # Accounting.
        self.cpu_ns = self.syscalls = self.memory_bytes = self.memory_peak = 0

    # -- Running -------------------------------------------------------------------------------
    def resume(self, result: int) -> None:
        """Give the pending call's result and let the guest run."""
        self.fiber.resume(result)
        self.services.make_runnable(self)

    def complete(self, ticket: Ticket, result: bytes | int) -> None:
        """Make a ticket ready, and wake the guest if it waits for it."""
        ticket.result = result
        ticket.drop = None
        held = 0 if isinstance(result, int) else len(result)
        if held != ticket.held:
            self.tickets.held += held - ticket.held
            ticket.held = held
        if self.waited is not None:
            index = self.waited.get(ticket.number)
            if index is not None:
                self.end_wait(index)

    def add_records(self, stream: Stream, reply: bytes | int) -> None:
        """Add a generation's reply to its stream, and wake the guest if it waits for it."""
        if not stream.add_reply(reply):
            self.pending[stream.number] = stream  # more records follow
        elif stream.ended:  # the last record was taken before the end came
            stream.release_file()
        if self.waited is not None and stream.result is not None:
            index = self.waited.get(stream.number)
            if index is not None:
                self.end_wait(index)

    def end_wait(self, result: int) -> None:
        """End the guest's wait with the index of a ready ticket, or an errno."""
        take_claimed = self.take_claimed
        self.waited = self.take_claimed = None
        if self.wait_timer is not None:
            self.wait_timer.cancel()
            self.wait_timer = None
        if self.idle_reported:
            self.idle_reported = False
            self.services.kernel_call([self.id, _WAITS, 0, 0])
        self.resume(result if take_claimed is None or result < 0 else take_claimed())

    # -- The kernel ----------------------------------------------------------------------------
    def call_kernel(self, op: Op, *arguments: Any) -> None:
        """Make a kernel call that has no reply."""
        self.unanswered += 1
        self.services.kernel_call([self.id, op, 0, *arguments], _size(arguments))

    def post_call(self, result: int, op: Op, *arguments: Any) -> int | None:
        """Make a kernel call that has no reply; the guest's call returns `result`.

        After some such calls the guest waits for a reply of the kernel, so that it cannot make them
        faster than the kernel executes them.
        """
        self.call_kernel(op, *arguments)
        if self.unanswered < INSTANCE_CALLS_UNANSWERED_MAX:
            return result
        self.unanswered = 0
        # Handle 0 does not exist: the kernel answers EBADF at once, even if other calls wait.
        self.ask_kernel(lambda _: self.resume(result), Op.KV_CLOSE, 0)
        return None

    def ask_kernel(self, on_reply: OnReply, op: Op, *arguments: Any) -> None:
        seq = self.tickets.number()
        self.pending[seq] = on_reply
        self.services.kernel_call([self.id, op, seq, *arguments], _size(arguments))

    def suspend_on_kernel(self, finish: Finish, op: Op, *arguments: Any) -> None:
        """Suspend the guest for a kernel call; its result is `finish(reply)` or the errno."""

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
            except Exception as error:  # a bug of ours: a guest's mistake is a SyscallError
                self.services.fault(self, error)
                return
            self.resume(code)

        self.services.texts.submit(self, pieces, size, on_done)

    def on_reply(self, seq: int, result: Any) -> None:
        """Handle the reply to a kernel call; drop it if the call was cancelled."""
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
            self.add_records(pending, result)
        else:
            assert not isinstance(pending, Ticket | int)
            pending(result)

    # -- The gateway ---------------------------------------------------------------------------
    def ask_gateway(self, what: str, args: dict[str, Any], on_answer: OnAnswer) -> int:
        """Ask the gateway; an answer after the instance's end is dropped."""

        def answered(errno: int, value: Any) -> None:
            self.gateway_asks.discard(seq)
            if not self.ended:
                on_answer(errno, value)

        seq = self.services.ask_gateway(what, args, answered)
        self.gateway_asks.add(seq)
        return seq

    def cancel_ask(self, seq: int) -> None:
        self.gateway_asks.discard(seq)
        self.services.cancel_ask(seq)

    def ticket_of_gateway(
        self, what: str, args: dict[str, Any], bytes_max: int, note: OnAnswer
    ) -> int | None:
        """Ask the gateway; return a ticket for its answer. `note` gets the answer first."""
        ticket = self.tickets.issue(held=bytes_max)

        def on_answer(errno: int, value: Any) -> None:
            note(errno, value)
            self.complete(ticket, errno if errno < 0 else value)

        seq = self.ask_gateway(what, {"instance": self.id} | args, on_answer)
        ticket.drop = lambda: self.cancel_ask(seq)
        return self.paced(ticket.number)

    def paced(self, result: int) -> int | None:
        """Return a call's result, later if kernel or gateway have much to read."""
        if not self.services.links_are_behind():
            return result

        def retry() -> None:
            if self.services.links_are_behind():
                self.add_timer(_PACE_MS, retry)
            else:
                self.resume(result)

        self.add_timer(_PACE_MS, retry)
        return None

    def add_timer(self, milliseconds: float, action: Callable[[], None]) -> asyncio.TimerHandle:
        """Call `action` later, unless the instance has ended; the handle may be cancelled."""

        def fire() -> None:
            self.timers.discard(handle)
            action()

        handle = self.call_after(milliseconds, fire)
        self.timers.add(handle)
        return handle

    def call_after(
        self, milliseconds: float, action: Callable[..., None], *what: Any
    ) -> asyncio.TimerHandle:
        """Call action(*what) after a time, never before: loop timers may be early."""
        return self.services.loop.call_later(
            (milliseconds + self.services.early_ms) / 1000, action, *what
        )

    def cancel_timer(self, handle: asyncio.TimerHandle) -> None:
        handle.cancel()
        self.timers.discard(handle)

    # -- Messages ------------------------------------------------------------------------------
    def send(self, data: bytes, result: int = 0) -> int | None:
        """Send to the user, or from a child to its parent. None: suspended until read."""
        self.run.count_output(len(data), by_child=self.parent is not None)
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

    def send_large(self, length: int, read: Callable[[], bytes], result: int = 0) -> None:
        """Send what `read` returns once the gateway has memory for it; suspends until then."""
        self.run.count_output(length)

        def on_answer(errno: int, _value: Any) -> None:
            if errno:  # the gateway knows no such run any more
                self.resume(result)
                return
            self.services.output(self.id, read())
            self.services.flush()  # no turn may follow that does
            self.run.unread_bytes += length
            self.send_blocked, self.send_result = True, result
            self.add_send_credit(0)  # unless it must wait for a reader, too

        self.ask_gateway("send", {"instance": self.id, "bytes": length}, on_answer)

    def add_send_credit(self, taken: int) -> None:
        """Note that the gateway has taken this many bytes."""
        self.run.unread_bytes -= taken
        if self.send_blocked and self.run.unread_bytes <= SEND_WINDOW_BYTES:
            self.send_blocked = False
            self.resume(self.send_result)

    def deliver_message(self, data: bytes) -> None:
        if self.receivers:
            self.complete(self.receivers.popleft(), data)
            self.services.notify_received(self.id, len(data))
        else:
            self.inbox.append(data)

    def close_input(self) -> None:
        """Fail all receivers, now and later: no further message comes."""
        self.input_closed = True
        while self.receivers:
            self.complete(self.receivers.popleft(), -Errno.EPIPE)

    def write_log(self, level: int, data: bytes) -> None:
        """Add a line to the run's log, up to its limit."""
        run = self.run
        left = run.log_bytes_max - len(_LOG_FULL) - run.log_bytes
        if left <= 0:
            run.hit("log_bytes")
            return
        run.log_bytes += len(data) + LOG_LINE_BYTES
        self.services.log(run.id, level, data[:left])
        if len(data) + LOG_LINE_BYTES >= left:
            run.hit("log_bytes")
            self.services.log(run.id, _WARNING, _LOG_FULL)

    def note_refusal(self, errno: int, reason: object) -> None:
        """Keep the gateway's reason for an error, for `last_error`."""
        if errno < 0 and reason:
            self.last_error = str(reason).encode(errors="replace")

    def note_limit(self, error: LimitError) -> None:
        """Keep the reason that a limit refused a call, and log it once a run."""
        self.last_error = error.detail.encode()
        self.run.hit(error.limit)
        if self.run.hits[error.limit] == 1:
            self.write_log(_WARNING, b"a limit was reached: " + self.last_error)

    # -- Accounting ----------------------------------------------------------------------------
    def note_memory(self, size: int) -> None:
        """Charge the guest's memory, which has grown to `size` bytes."""
        change, self.memory_bytes = size - self.memory_bytes, size
        self.memory_peak = size
        self.run.share.memory.add(change)
        self.run.count_memory(change)

    def assume_memory(self) -> None:
        """Charge the most that the guest's memory may have, until it is measured."""
        most = self.fiber.bound
        change, self.memory_bytes = most - self.memory_bytes, most
        self.run.share.memory.add(change)
        self.run.count_memory(change, measured=False)

    def memory_hint(self) -> str:
        """Return a hint for a trap's reason if the memory was nearly full."""
        size, limit = self.fiber.measure(), self.fiber.bound
        return f"; its memory had {size} of at most {limit} bytes" if size > limit * 7 // 8 else ""

    def drop_input(self) -> None:
        """Free the input; a child's counts as memory."""
        if self.parent is not None:
            self.run.memory_bytes -= len(self.input)
        self.input = b""

    def elapsed_ms(self) -> int:
        return int((self.services.now() - self.started) * 1000 + 0.001)  # 1 us against rounding

    def usage(self) -> dict[str, int]:
        """Return what it used, its children included."""
        peak = self.run.memory_peak if self.parent is None else self.memory_peak
        return {
            "cpu_ms": round(self.cpu_ns / 1e6),
            "wall_ms": self.elapsed_ms(),
            "syscalls": self.syscalls,
            "peak_memory_bytes": peak,
        }

    # -- The end -------------------------------------------------------------------------------
    def release(self) -> None:
        """Release what it holds in this process; the gateway tells the kernel."""
        assert not self.ended
        self.ended = True
        size = self.fiber.close()
        self.memory_peak = max(self.memory_peak, size)
        self.run.memory_peak = max(
            self.run.memory_peak, self.run.memory_bytes - self.memory_bytes + size
        )
        self.run.memory_bytes -= self.memory_bytes
        self.run.share.memory.add(-self.memory_bytes - self.fiber.program.table_bytes)
        self.drop_input()
        self.services.texts.cancel(self)
        self.tickets.close()
        self.handles.release()
        for handle in (*self.timers, self.wall_timer, self.wait_timer):
            if handle is not None:
                handle.cancel()
        self.timers.clear()
        for seq in self.gateway_asks:
            self.services.cancel_ask(seq)
        self.gateway_asks.clear()
        self.pending.clear()
        self.run.children -= len(self.children)
        self.children.clear()
        for abandon in self.pending_spawns:
            abandon()
        self.pending_spawns.clear()
        self.inbox.clear()
        self.receivers.clear()
        self.waited = self.take_claimed = None


def _size(arguments: tuple[Any, ...]) -> int:
    return sum(len(argument) for argument in arguments if isinstance(argument, bytes))


def check_released(instance: Instance) -> None:
    """Raise KernelBug if an ended instance still holds something."""
    held = [
        name for name in ("timers", "gateway_asks", "pending", "inbox") if getattr(instance, name)
    ]
    if held or instance.tickets.live or not instance.ended:
        raise KernelBug(f"instance {instance.id} ended and still holds {held}")
