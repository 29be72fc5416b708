"""The worker: one event loop that runs all fibers and carries their calls.

    frames of kernel and gateway -> instances become runnable -> a turn -> frames of the turn

A turn takes runnable instances round-robin, and tenants fairly (`fairness.run_queue`). Each runs
until it suspends, ends, or has used a slice of a millisecond. Its calls leave as one `Calls` and
one `Output` frame. Threads process long texts (`text.pool`).
"""

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any

from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.errno import LimitError, SyscallError
from symphony_kernel.protocol.limits import (
    EPOCH_TICK_MS,
    HELLO_SECONDS_MAX,
    TURN_MS_MAX,
    WORKER_FRAME_BYTES_MAX,
)
from symphony_kernel.protocol.links import Link
from symphony_kernel.protocol.sessions import Dialer, LinkLostError, SessionLink

from symphony_runtime.abi import allowed_imports
from symphony_runtime.engine.fiber import CALLED, PREEMPTED, EndKind, FiberHost, HostFault
from symphony_runtime.worker.fairness.cpu_reporting import CpuReporter
from symphony_runtime.worker.fairness.run_queue import RunQueue
from symphony_runtime.worker.idle_hint import IdleHint
from symphony_runtime.worker.instance import Instance, OnAnswer, check_released
from symphony_runtime.worker.programs import LoadedPrograms
from symphony_runtime.worker.run import EXITED, FAILED, KILLED, TRAPPED, Ending, Run
from symphony_runtime.worker.syscalls import family
from symphony_runtime.worker.syscalls.table import handlers
from symphony_runtime.worker.text.pool import TextPool
from symphony_runtime.worker.text.tokenizer import NO_MODEL, ModelTokenizer
from symphony_runtime.worker.trace import Trace, TracedInstance, new_instance, traced

_log = logging.getLogger(__name__)

_SLICE_S = EPOCH_TICK_MS / 1000
_TURN_S = TURN_MS_MAX / 1000
_SPURIOUS_S = _SLICE_S / 4  # a yield sooner than this came from another guest's tick
_FRAME_BYTES = WORKER_FRAME_BYTES_MAX // 4  # a turn's frames leave early past this
_STOP_SECONDS_MAX = 1.0
_CALL_BYTES = 64  # of a call without its long arguments, roughly
_BACKLOG_BYTES = 4 << 20  # unread bytes past which instances that send have to wait


class Worker:
    """Runs instances that the gateway starts, and carries their calls to the kernel.

    `now` is `clock_ms`'s clock, by default the loop's. The loop's timers may be early by
    `early_ms`. `unix_time` and `random` are a program's sources of time and randomness. The
    kernel's link is a session: it may break, and the kernel may be another process afterwards
    (`SessionEvents`).
    """

    def __init__(
        self,
        name: str,
        secret: bytes,
        unix_time: Callable[[], float] = time.time,
        random: Callable[[int], bytes] = os.urandom,
        now: Callable[[], float] | None = None,
        early_ms: int = 0,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.now, self.early_ms = now or self.loop.time, early_ms
        self.name, self._secret = name, secret
        self.about: dict[str, Any] = {}  # about this process, for gateways
        self.on_retire: Callable[[], None] = lambda: None  # the gateway wants a new process
        self._unix_time, self.random = unix_time, random
        self.text = ModelTokenizer(NO_MODEL)
        self._fibers = FiberHost(allowed_imports())
        self._handlers = handlers()
        self._tracing_handlers = [
            (traced(name, handler), wide)
            for (_, name), (handler, wide) in zip(allowed_imports(), self._handlers, strict=True)
        ]
        self.instances: dict[int, Instance] = {}
        self._programs = LoadedPrograms(self._fibers)
        self._kernel: SessionLink | None = None
        self._dialer = Dialer("worker", name, secret, self._on_kernel_frame, self)
        self._gateway: Link | None = None
        self._run_queue = RunQueue()
        self.texts = TextPool(self.loop, self._charge_text)
        self._cpu_reporter = CpuReporter(self._run_queue, self._plan_turn, self.texts.serve)
        self._turn_planned = False
        # What the current turn sends.
        self._calls: list[list[Any]] = []
        self._messages: list[list[Any]] = []
        self._lines: list[list[Any]] = []
        self._unsent_bytes = 0  # of all three
        self._gateway_asks: dict[int, OnAnswer] = {}
        self._seq = count(1)
        self.next_stage = count(1).__next__
        self._idle_hint = IdleHint(self.loop, self.kernel_call, self.flush)
        self.note_idle_wait = self._idle_hint.add
        self._cpu_share = 1.0  # share of the last turn's time that this thread ran on a processor
        # The last bugs of ours; each is logged and has ended one instance.
        self.faults: deque[Exception] = deque(maxlen=8)

    # -- Links ---------------------------------------------------------------------------------
    async def attach_kernel(self, link: Link) -> asyncio.Event:
        """Introduce this worker to a kernel; the event is set when the link has ended.

        The instances live on without a link, as long as the kernel behind the next link knows them;
        their calls wait until then.

        Raises LinkLostError: it does not welcome us, or does not know our instances. Those have
        ended as failed, and the next attempt starts a new session.
        """
        return await self._dialer.connect(link)

    async def attach_gateway(self, link: Link) -> asyncio.Event:
        """Introduce this worker to a gateway; the event is set when the link has ended.

        Raises LinkLostError: it closed the link instead of welcoming us.
        """
        self._gateway = link  # before the welcome: a Start may follow it at once
        hello = m.Hello(
            m.PROTOCOL_VERSION, "worker", self.name, self._secret, os.getpid(), about=self.about
        )
        try:
            return await _meet_gateway(link, hello, self._on_gateway_frame, self._on_gateway_lost)
        except LinkLostError:
            self._gateway = None
            raise

    def session_begun(self, session: SessionLink, welcome: m.Welcome) -> None:
        """Start with a kernel that knows nothing of this worker."""
        self.text = ModelTokenizer(welcome.about)
        self._kernel = session

    def session_cut(self) -> None:
        """Do nothing: instances that wait for the kernel keep waiting."""

    def session_resumed(self, welcome: m.Welcome) -> None:
        """Do nothing: the kernel still knows everything."""

    def session_ended(self) -> None:
        """End all instances: the kernel no longer knows them."""
        self._kernel = None
        self._calls.clear()
        self.end_all("the kernel died")

    def _on_gateway_lost(self) -> None:
        self._gateway = None
        self._gateway_asks.clear()
        self.end_all("the gateway died")
        self._programs.unload_all()

    def end_all(self, reason: str) -> None:
        """End every run as failed."""
        for instance in [each for each in self.instances.values() if each.parent is None]:
            self._end_instance(instance, Ending(FAILED, reason))
        self.flush()

    async def stop(self) -> None:
        """End everything, give the gateway a second to read the ends, and stop."""
        self.end_all("the worker was stopped")
        until = self.loop.time() + _STOP_SECONDS_MAX
        gateway = self._gateway
        while gateway and gateway.backlog and self.loop.time() < until:  # noqa: ASYNC110 - silent
            await asyncio.sleep(_STOP_SECONDS_MAX / 100)
        self.close()
        await asyncio.sleep(0)

    def close(self) -> None:
        self.end_all("the worker was stopped")
        for link in (self._kernel, self._gateway):
            if link is not None:
                link.close()
        self._idle_hint.stop()
        self._cpu_reporter.close()
        self.texts.close()
        self._programs.unload_all()
        self._fibers.close()

    # -- Frames from the kernel and the gateway ------------------------------------------------
    def _on_kernel_frame(self, frame: list[Any]) -> None:
        if frame[0] != m.Replies.KIND:
            self._cpu_reporter.on_frame(frame)
            return
        instances = self.instances
        # The turn runs below: planning one would cost a pass of the event loop.
        planned, self._turn_planned = self._turn_planned, True
        try:
            for number, seq, result in frame[1]:
                instance = instances.get(number)
                if instance is not None:
                    try:
                        instance.on_reply(seq, result)
                    except Exception as error:  # a bug of ours
                        self.fault(instance, error)
        finally:  # after an error, too, turns are planned again
            self._turn_planned = planned
        if self._run_queue.shared:
            self._fair_turn(replies=True)
        else:
            self._turn(self._run_queue.sole.ready)

    def _on_gateway_frame(self, frame: list[Any]) -> None:
        message = m.decode(frame)
        if isinstance(message, m.Start):
            self._start(message)
        elif isinstance(message, m.Module):
            if message.language:
                self._programs.add_source(message.module, message.language, message.artefact)
            else:
                self._programs.load(message.module, message.artefact)
        elif isinstance(message, m.Unload):
            self._unload(message.module)
        elif isinstance(message, m.Retire):
            self.on_retire()
        elif isinstance(message, m.Answer):
            on_answer = self._gateway_asks.pop(message.seq, None)
            if on_answer is not None:
                on_answer(message.errno, message.value)
        else:
            self._on_instance_message(message)

    def _on_instance_message(self, message: m.Message) -> None:
        assert isinstance(message, m.Deliver | m.CloseInput | m.Kill | m.Credit), message
        instance = self.instances.get(message.instance)
        if instance is None:
            return  # it ended while the message was on its way
        if isinstance(message, m.Credit):
            instance.add_send_credit(message.taken)
        elif isinstance(message, m.Deliver):
            instance.deliver_message(message.data)
        elif isinstance(message, m.CloseInput):
            instance.close_input()
        else:
            began = time.perf_counter_ns()
            self._end_instance(instance, Ending(KILLED, message.reason))
            instance.run.share.used_ns += time.perf_counter_ns() - began
            self.flush()

    # -- Services of instances -----------------------------------------------------------------
    def kernel_call(self, call: list[Any], size: int = 0) -> None:
        """Add [instance, op, seq, argument, ...] to this turn's Calls.

        `size` is the bytes of its long arguments.
        """
        self._calls.append(call)
        self._unsent_bytes += _CALL_BYTES + size
        if self._unsent_bytes > _FRAME_BYTES:
            self.flush()

    def ask_gateway(self, what: str, args: dict[str, Any], on_answer: OnAnswer) -> int:
        """Ask the gateway; return the seq."""
        seq = next(self._seq)
        self._gateway_asks[seq] = on_answer
        self._send(m.Ask(seq, what, args))
        return seq

    def cancel_ask(self, seq: int) -> None:
        if self._gateway_asks.pop(seq, None) is not None:
            self._send(m.Unask(seq))

    def links_are_behind(self) -> bool:
        """Return whether kernel or gateway have many unread bytes of ours."""
        links = (self._kernel, self._gateway)
        unread = sum(link.backlog for link in links if link is not None)
        return unread + self._unsent_bytes > _BACKLOG_BYTES

    def output(self, instance: int, data: bytes) -> None:
        """Add a message to this turn's Output."""
        self._messages.append([instance, data])
        self._unsent_bytes += len(data) + 16
        if self._unsent_bytes > _FRAME_BYTES:
            self.flush()

    def log(self, instance: int, level: int, data: bytes) -> None:
        """Add a line to this turn's Logs."""
        self._lines.append([instance, level, data])
        self._unsent_bytes += len(data) + 16
        if self._unsent_bytes > _FRAME_BYTES:
            self.flush()

    def notify_received(self, instance: int, size: int) -> None:
        """Tell the gateway that the program has received a message of `size` bytes."""
        self._send(m.Received(instance, 1, size))

    def make_runnable(self, instance: Instance) -> None:
        if not instance.queued and not instance.ended:
            instance.queued = True
            share = instance.run.share
            share.ready.append(instance)
            if not share.listed:
                self._run_queue.enlist(share)
            if not self._turn_planned:
                self._plan_turn()

    def unix_ms(self) -> int:
        return int(self._unix_time() * 1000)

    def fault(self, instance: Instance, error: Exception) -> None:
        """End an instance after a bug of ours in one of its calls."""
        _log.error("instance %d met a fault of the worker", instance.id, exc_info=error)
        self.faults.append(error)
        reason = f"a fault of the server: {type(error).__name__}"
        self._end_instance(instance, Ending(FAILED, reason))

    # -- Starts --------------------------------------------------------------------------------
    def _unload(self, module: str) -> None:
        if self._programs.forget_source(module):
            return
        program = self._programs.pop(module, None)
        if program is None:
            return  # it did not load
        for instance in [i for i in self.instances.values() if i.fiber.program is program]:
            if not instance.ended:  # the gateway has ended it already
                self._end_instance(instance, Ending(FAILED, "its program was unloaded"))
        self._fibers.unload(program)

    def _start(self, message: m.Start) -> None:
        run = Run(message.instance, message.limits, self._run_queue.share_of(message.tenant))
        trace = None
        if message.trace:
            trace = Trace(lambda events: self._send(m.Traced(message.instance, events)))
        instance = new_instance(trace, self, run, message.instance, message.input)
        if not self._start_instance(instance, message.module, message.entry):
            return
        wall_s = run.wall_limit_ms / 1000
        instance.wall_timer = self.loop.call_later(wall_s, self._end_at_wall_limit, instance)

    def start_child(self, parent: Instance, pid: int, made: dict[str, Any], data: bytes) -> None:
        """Start the child that the gateway registered."""
        trace = parent.trace if isinstance(parent, TracedInstance) else None
        instance = new_instance(trace, self, parent.run, made["instance"], data, parent, pid)
        parent.children[pid] = instance
        if parent.ended:
            self._report_end(instance, Ending(KILLED, "its parent has ended"))
        else:
            self._start_instance(instance, made["module"], made["entry"])

    def end_cancelled_child(self, instance: Instance) -> None:
        """End a child whose parent cancelled its spawn."""
        if not instance.ended:  # it may have failed to start
            self._end_instance(instance, Ending(KILLED, "its parent cancelled it"))
        if instance.parent is not None:
            family.reap(instance.parent, instance)

    def _start_instance(self, instance: Instance, module: str, entry: str) -> bool:
        try:
            if self._kernel is None:
                raise Ending(FAILED, "the kernel is not there")
            self._programs.create_fiber(instance, module, entry, len(self.instances))
        except Ending as end:
            instance.ended, instance.end_code = True, end.code
            self._report_end(instance, end)
            return False
        self.instances[instance.id] = instance
        self._run_queue.add_instance(instance.run.share)
        self._run_queue.enqueue_new(instance)
        self._plan_turn()
        return True

    def _end_at_wall_limit(self, instance: Instance) -> None:
        reason = f"wall time limit: it ran longer than {instance.run.wall_limit_ms} ms"
        self._end_instance(instance, Ending(KILLED, reason))
        self.flush()

    # -- Turns ---------------------------------------------------------------------------------
    def _plan_turn(self) -> None:
        if not self._turn_planned:
            self._turn_planned = True
            self.loop.call_soon(self._planned_turn)

    def _planned_turn(self) -> None:
        self._turn_planned = False
        if self._run_queue.shared:
            self._fair_turn(replies=False)
            return
        self._turn(self._run_queue.sole.ready, _TURN_S)
        # One slice of an instance that computes, after the others' calls have left. So an instance
        # that makes calls waits for one such slice at most, however many compute.
        self._turn(self._run_queue.sole.computing, 0.0)

    def _turn(self, queue: deque[Instance], seconds: float = _TURN_S) -> None:
        """Run instances for about `seconds`, and at least one."""
        if not queue:
            self.flush()
            return
        now = time.perf_counter
        cpu_began, began = time.thread_time(), now()
        until, at = began + seconds, began
        share = self._cpu_share * 1e9
        while queue:
            instance = queue.popleft()
            instance.queued = False
            if instance.ended:
                continue
            self._run_slice(instance)
            ended = now()
            # The clock is read for each slice, the CPU time (a system call) for each turn. So a
            # slice is charged this thread's share of the processor in the last turn.
            self._charge(instance, int((ended - at) * share))
            at = ended
            if at >= until:
                break
        self._end_turn(began, at, cpu_began)
        if queue:
            self._plan_turn()

    def _fair_turn(self, *, replies: bool) -> None:
        """Run instances of several tenants; with `replies`, none that computes."""
        cpu_began, began = time.thread_time(), time.perf_counter()
        self._run_queue.run_turn(self._timed_slice, self.flush, replies=replies)
        self._cpu_reporter.send_report(self._kernel)  # before the turn's calls
        self._end_turn(began, time.perf_counter(), cpu_began)
        if self._run_queue.waiting():
            self._plan_turn()

    def _timed_slice(self, instance: Instance) -> int:
        """Run one instance for a slice, charge it, and return its nanoseconds."""
        began = time.perf_counter()
        self._run_slice(instance)
        took = int((time.perf_counter() - began) * 1e9)
        self._charge(instance, int(took * self._cpu_share))
        return took

    def _charge(self, instance: Instance, used: int) -> None:
        """Charge processor nanoseconds to an instance, and to its tenant if it shares."""
        run = instance.run
        instance.cpu_ns += used
        run.cpu_ns += used
        if self._run_queue.shared:
            self._cpu_reporter.add_spent(run, used)
        if run.cpu_ns > run.cpu_limit_ns and run.id in self.instances:
            reason = f"cpu time limit: it computed for more than {run.cpu_limit_ns // 10**6} ms"
            self._end_instance(self.instances[run.id], Ending(KILLED, reason))

    def _charge_text(self, instance: Instance, used: int) -> None:
        instance.run.share.used_ns += used
        self._charge(instance, used)
        self._cpu_reporter.send_report(self._kernel)  # no turn may come for a while

    def _end_turn(self, began: float, ended: float, cpu_began: float) -> None:
        self._fibers.ticker.disarm(ended)
        if ended - began > _SPURIOUS_S:
            self._cpu_share = min((time.thread_time() - cpu_began) / (ended - began), 1.0)
        self.flush()

    def _run_slice(self, instance: Instance) -> None:
        """Run one instance until it suspends, ends, or has used its slice."""
        try:
            if self._poll_fiber(instance) and not instance.queued and not instance.ended:
                instance.queued = True
                instance.run.share.computing.append(instance)
                self._plan_turn()
        except Ending as end:
            ended = self.instances[instance.run.id] if end.whole_run else instance
            self._end_instance(ended, end)
        except Exception as error:  # a bug of ours: a guest's mistake is a SyscallError
            self.fault(instance, error)

    def _poll_fiber(self, instance: Instance) -> bool:
        """Poll a fiber and make its calls; return whether it can continue later."""
        fiber, now = instance.fiber, time.perf_counter
        table = self._tracing_handlers if instance.traced else self._handlers
        memory = instance.run.share.memory
        if memory.watched:
            memory.bound_growth(instance)
        began = now()
        until = began + _SLICE_S
        poll, resume = fiber.poll, fiber.resume
        while True:
            state = poll()
            if fiber.size != instance.memory_bytes:
                instance.note_memory(fiber.size)
            if state == CALLED:
                instance.syscalls += 1
                handler, wide = table[fiber.call]
                try:
                    result = handler(instance, *fiber.args)
                except SyscallError as error:
                    result = -error.errno
                    if isinstance(error, LimitError):
                        instance.note_limit(error)
                if result is None:
                    return False
                resume(result, wide)
                if now() > until:
                    return True
            elif state == PREEMPTED:
                if not fiber.base:  # its start function computes: its memory cannot be measured yet
                    instance.assume_memory()
                if now() - began > _SPURIOUS_S:
                    return True
                began = -1.0  # once
            else:
                self._end_by_itself(instance)
                return False

    # -- Ends ----------------------------------------------------------------------------------
    def _end_by_itself(self, instance: Instance) -> None:
        end = instance.fiber.end
        assert end is not None
        if end.kind is EndKind.RETURNED:
            self._end_instance(instance, Ending(EXITED, code=end.code))
        elif end.kind is EndKind.TRAPPED:
            self._end_instance(instance, Ending(TRAPPED, end.reason + instance.memory_hint()))
        elif end.kind is EndKind.REFUSED:
            reason = instance.run.share.memory.why_refused(instance, end.reason)
            self._end_instance(instance, Ending(KILLED, reason))
        else:
            self.fault(instance, HostFault(end.reason))

    def _end_instance(self, instance: Instance, end: Ending) -> None:
        """End an instance, its children first, and release all that it holds."""
        for child in [c for c in instance.children.values() if not c.ended]:
            self._end_instance(child, Ending(KILLED, "its parent has ended"))
        instance.end_code = end.code
        instance.release()
        check_released(instance)
        del self.instances[instance.id]
        self._run_queue.remove_instance(instance.run.share)
        parent = instance.parent
        if parent is not None:
            parent.cpu_ns += instance.cpu_ns
            parent.syscalls += instance.syscalls
            if instance.joiners and not parent.ended:
                data = family.reap(parent, instance)
                for ticket in instance.joiners:
                    parent.complete(ticket, data)
        self._report_end(instance, end)

    def _report_end(self, instance: Instance, end: Ending) -> None:
        """Tell the gateway of an end, after everything that the instance has sent."""
        self.flush()
        hits = instance.run.hits.copy() if instance.parent is None else {}
        self._send(m.Ended(instance.id, end.status, end.code, end.reason, instance.usage(), hits))

    # -- Frames out ----------------------------------------------------------------------------
    def _send(self, message: m.Message) -> None:
        if self._gateway is not None:
            self._gateway.send(m.encode(message))

    def flush(self) -> None:
        """Send what the turn has made so far."""
        self._unsent_bytes = 0
        # Send now, so that the receiver need not wait for another pass of the loop.
        if self._calls:
            calls, self._calls = self._calls, []
            if self._kernel is not None:
                self._kernel.send([m.Calls.KIND, calls], now=True)
        if self._messages:
            messages, self._messages = self._messages, []
            if self._gateway is not None:
                self._gateway.send([m.Output.KIND, messages], now=True)
        if self._lines:
            lines, self._lines = self._lines, []
            self._send(m.Logs(lines))


async def _meet_gateway(
    link: Link, hello: m.Hello, on_frame: Callable[[list[Any]], None], on_lost: Callable[[], None]
) -> asyncio.Event:
    """Send the hello and wait for the welcome; return the event of the link's end.

    The link to the gateway is no session, unlike the kernel's.

    Raises LinkLostError: it was closed instead, or no welcome came.
    """
    welcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    lost = asyncio.Event()

    def received(frame: list[Any]) -> None:
        if welcome.done():
            on_frame(frame)
            return
        assert isinstance(m.decode(frame), m.Welcome), frame
        welcome.set_result(None)

    def closed() -> None:
        lost.set()
        if welcome.done():
            on_lost()
        else:
            welcome.set_exception(LinkLostError("the link was closed before a welcome"))

    link.receive(received, closed)
    link.send(m.encode(hello))
    try:
        async with asyncio.timeout(HELLO_SECONDS_MAX):
            await welcome
    except TimeoutError:
        link.close()
        raise LinkLostError("no welcome came") from None
    return lost
