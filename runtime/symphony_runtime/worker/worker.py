"""The worker: one event loop that runs every instance's fiber and carries its calls.

    frames of kernel and gateway -> instances become runnable -> a turn -> frames of the turn

A turn takes runnable instances round-robin, and tenants fairly (`fairness.run_queue`). Each runs
until it suspends, ends, or has had its slice of a millisecond. Its calls leave as one `Calls` and
one `Output` frame. Long texts are worked on by threads (`text.pool`).
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
from symphony_kernel.protocol.limits import EPOCH_TICK_MS, TURN_MS_MAX, WORKER_FRAME_BYTES_MAX
from symphony_kernel.protocol.links import Link
from symphony_kernel.protocol.sessions import Dialer, LinkLostError, SessionLink

from symphony_runtime.engine.fiber import EndKind, FiberHost, HostFault
from symphony_runtime.engine.hostcalls.compiled_calls import CompiledHostCalls
from symphony_runtime.engine.hostcalls.ctypes_calls import CALLED, PREEMPTED
from symphony_runtime.worker.fairness.cpu_reporting import CpuReporter
from symphony_runtime.worker.fairness.run_queue import RunQueue
from symphony_runtime.worker.gateway_link import meet
from symphony_runtime.worker.idle_hint import IdleHint
from symphony_runtime.worker.instance import Instance, check_released
from symphony_runtime.worker.instance_start import give_fiber
from symphony_runtime.worker.programs import LoadedPrograms
from symphony_runtime.worker.run import (
    EXITED,
    FAILED,
    FAILED_CODE,
    KILLED,
    KILLED_CODE,
    TRAPPED,
    TRAPPED_CODE,
    Ending,
    Run,
)
from symphony_runtime.worker.syscalls import family
from symphony_runtime.worker.syscalls.table import handlers, imports
from symphony_runtime.worker.text.pool import TextPool
from symphony_runtime.worker.text.tokenizer import NO_MODEL, ModelTokenizer
from symphony_runtime.worker.trace import Trace, TracedInstance, new_instance, traced

_log = logging.getLogger(__name__)

_SLICE_S = EPOCH_TICK_MS / 1000
_TURN_S = TURN_MS_MAX / 1000
_SPURIOUS_S = _SLICE_S / 4  # a yield sooner than this was due to somebody else's tick
_FRAME_BYTES = WORKER_FRAME_BYTES_MAX // 4  # a turn's frame leaves early past this
_STOP_SECONDS_MAX = 1.0
_CALL_BYTES = 64  # of a call without its long arguments, about
_BACKLOG_BYTES = 4 << 20  # unread by the others, past which whoever floods them has to wait

OnAnswer = Callable[[int, Any], None]


class Worker:
    """Runs instances. It hears of them from the gateway and makes their calls to the kernel.

    `now` is `clock_ms`'s clock, by default the loop's, whose timers may be early by `early_ms`;
    `unix_time` and `random` are what programs see of the outside. The kernel's link is a session:
    it may break, and the kernel may even be another process afterwards (`SessionEvents`).
    """

    def __init__(
        self,
        name: str,
        secret: bytes,
        unix_time: Callable[[], float] = time.time,
        random: Callable[[int], bytes] = os.urandom,
        now: Callable[[], float] | None = None,
        early_ms: int = 0,
        crossing: CompiledHostCalls | None = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.now, self.early_ms = now or self.loop.time, early_ms
        self.name, self._secret = name, secret
        self.about: dict[str, Any] = {}  # of this process, for gateways
        self.on_retire: Callable[[], None] = lambda: None  # the gateway wants another process
        self._unix_time, self.random = unix_time, random
        self.text = ModelTokenizer(NO_MODEL)
        self._fibers = FiberHost(imports(), crossing)
        self._handlers = handlers()
        names = (item.name for item in imports())
        self._tracing_handlers = [
            (traced(name, handler), wide)
            for name, (handler, wide) in zip(names, self._handlers, strict=True)
        ]
        self.instances: dict[int, Instance] = {}
        self._programs = LoadedPrograms(self._fibers)
        self._kernel: SessionLink | None = None
        self._dialer = Dialer("worker", name, secret, self._on_kernel, self)
        self._gateway: Link | None = None
        # The run queue, and what the present turn sends.
        self._run_queue = RunQueue()
        self.texts = TextPool(self.loop, self._charge_text)
        self._cpu_reporter = CpuReporter(self._run_queue, self._plan_turn, self.texts.serve)
        self._turn_planned = False
        self._calls: list[list[Any]] = []
        self._calls_bytes = 0
        self._messages: list[list[Any]] = []
        self._messages_bytes = 0
        self._lines: list[list[Any]] = []
        self._lines_bytes = 0
        self._asks: dict[int, OnAnswer] = {}
        self._seq = count(1)
        self._stages = count(1)
        self._waiting = IdleHint(self.loop, self.kernel_call, self._flush)
        self._cpu_share = 1.0  # of the last turn's time that was this thread's
        # Faults of ours, the last few; each is logged and has ended one instance.
        self.faults: deque[Exception] = deque(maxlen=8)

    # -- Links ---------------------------------------------------------------------------------
    async def attach_kernel(self, link: Link) -> asyncio.Event:
        """Introduce this worker to a kernel; the event is set when the link has ended.

        The instances live on without a link, as long as the kernel that the next one leads to
        knows them; their calls wait until then.

        Raises:
            LinkLostError: it does not welcome us, or knows nothing of our instances, which have
                ended as failed: the next attempt begins anew.
        """
        return await self._dialer.connect(link)

    async def attach_gateway(self, link: Link) -> asyncio.Event:
        """Introduce this worker to a gateway; the event is set when the link has ended.

        Raises:
            LinkLostError: it closed the link instead of welcoming us.
        """
        self._gateway = link  # before the welcome, behind which a Start may follow at once
        hello = m.Hello(
            m.PROTOCOL_VERSION, "worker", self.name, self._secret, os.getpid(), about=self.about
        )
        try:
            return await meet(link, hello, self._on_gateway, self._lose_gateway)
        except LinkLostError:
            self._gateway = None
            raise

    def session_begun(self, session: SessionLink, welcome: m.Welcome) -> None:
        """A kernel that knows nothing of us yet."""
        self.text = ModelTokenizer(welcome.about)
        self._kernel = session

    def session_cut(self) -> None:
        """The kernel is away: whoever waits for it waits on."""

    def session_resumed(self, welcome: m.Welcome) -> None:
        """The kernel is back, with everything that it knew."""

    def session_ended(self) -> None:
        """The kernel has forgotten us."""
        self._kernel = None
        self._calls.clear()
        self.end_all("the kernel died")

    def _lose_gateway(self) -> None:
        """Nobody knows of the instances any more, nor which programs are here."""
        self._gateway = None
        self._asks.clear()
        self.end_all("the gateway died")
        self._programs.unload_all()

    def end_all(self, reason: str) -> None:
        """End every run as failed."""
        for instance in [
            instance for instance in self.instances.values() if instance.parent is None
        ]:
            self._end(instance, FAILED, FAILED_CODE, reason)
        self._flush()

    async def stop(self) -> None:
        """End everything, let the gateway hear of it if it listens, and stop."""
        self.end_all("the worker was stopped")
        until = self.loop.time() + _STOP_SECONDS_MAX
        gateway = self._gateway
        while gateway and gateway.backlog and self.loop.time() < until:  # noqa: ASYNC110 - silent
            await asyncio.sleep(_STOP_SECONDS_MAX / 100)
        self.close()
        await asyncio.sleep(0)

    def close(self) -> None:
        """End everything and stop."""
        self.end_all("the worker was stopped")
        for link in (self._kernel, self._gateway):
            if link is not None:
                link.close()
        self._waiting.stop()
        self._cpu_reporter.close()
        self.texts.close()
        self._programs.unload_all()
        self._fibers.close()

    # -- Frames from the kernel and the gateway ------------------------------------------------
    def _on_kernel(self, frame: list[Any]) -> None:
        if frame[0] != m.Replies.KIND:
            self._cpu_reporter.hear(frame)
            return
        instances = self.instances
        # The turn is below, at once: a planned one would be a pass of the event loop for nothing.
        planned, self._turn_planned = self._turn_planned, True
        try:
            for number, seq, result in frame[1]:
                instance = instances.get(number)
                if instance is not None:
                    try:
                        instance.on_reply(seq, result)
                    except Exception as error:  # ours
                        self.fault(instance, error)
        finally:  # whatever happens, turns are planned again
            self._turn_planned = planned
        if self._run_queue.shared:
            self._fair_turn(replies=True)
        else:
            self._turn(self._run_queue.sole.ready)

    def _on_gateway(self, frame: list[Any]) -> None:
        message = m.decode(frame)
        if isinstance(message, m.Start):
            self._start(message)
        elif isinstance(message, m.Module):
            self._programs.load(message.module, message.artefact)
        elif isinstance(message, m.Unload):
            self._unload(message.module)
        elif isinstance(message, m.Retire):
            self.on_retire()
        elif isinstance(message, m.Answer):
            on_answer = self._asks.pop(message.seq, None)
            if on_answer is not None:
                on_answer(message.errno, message.value)
        else:
            self._on_instance_message(message)

    def _on_instance_message(self, message: m.Message) -> None:
        assert isinstance(message, m.Deliver | m.CloseInput | m.Kill | m.Credit), message
        instance = self.instances.get(message.instance)
        if instance is None:
            return  # it ended while the message was under way
        if isinstance(message, m.Credit):
            instance.credit(message.taken)
        elif isinstance(message, m.Deliver):
            instance.deliver(message.data)
        elif isinstance(message, m.CloseInput):
            instance.close_input()
        else:
            began = time.perf_counter_ns()
            self._end(instance, KILLED, KILLED_CODE, message.reason)
            instance.run.share.used_ns += time.perf_counter_ns() - began
            self._flush()

    # -- Services of instances -----------------------------------------------------------------
    def kernel_call(self, call: list[Any], size: int = 0) -> None:
        """Put [instance, op, seq, argument, ...] into this turn's Calls; `size`: of long ones."""
        self._calls.append(call)
        self._calls_bytes += _CALL_BYTES + size
        if self._calls_bytes > _FRAME_BYTES:
            self._flush_calls()

    def ask(self, what: str, args: dict[str, Any], on_answer: OnAnswer) -> int:
        """Ask the gateway; `on_answer` gets errno (0 or negative) and value. Returns the seq."""
        seq = next(self._seq)
        self._asks[seq] = on_answer
        self._send(m.Ask(seq, what, args))
        return seq

    def unask(self, seq: int) -> None:
        """Say that the answer is no longer wanted."""
        if self._asks.pop(seq, None) is not None:
            self._send(m.Unask(seq))

    def links_are_behind(self) -> bool:
        """Whether kernel or gateway have left much of what we said unread."""
        return self.unread_bytes + self._calls_bytes > _BACKLOG_BYTES

    @property
    def unread_bytes(self) -> int:
        """What kernel and gateway have not got yet, or the kernel has not acknowledged."""
        return sum(link.backlog for link in (self._kernel, self._gateway) if link is not None)

    def output(self, instance: int, data: bytes) -> None:
        """Put a message into this turn's Output."""
        self._messages.append([instance, data])
        self._messages_bytes += len(data) + 16
        if self._messages_bytes > _FRAME_BYTES:
            self._flush_output()

    def log(self, instance: int, level: int, data: bytes) -> None:
        """Put a line into this turn's Logs."""
        self._lines.append([instance, level, data])
        self._lines_bytes += len(data) + 16
        if self._lines_bytes > _FRAME_BYTES:
            self._flush_lines()

    def received(self, instance: int, size: int) -> None:
        """Tell the gateway that the program has received a message of `size` bytes."""
        self._send(m.Received(instance, 1, size))

    def runnable(self, instance: Instance) -> None:
        """Let an instance run that was suspended."""
        if not instance.queued and not instance.ended:
            instance.queued = True
            share = instance.run.share
            share.ready.append(instance)
            if not share.listed:
                self._run_queue.enlist(share)
            if not self._turn_planned:
                self._plan_turn()

    def waits_outside(self, instance: Instance) -> None:
        """The kernel hears of it when it takes long."""
        self._waiting.begin(instance)

    def next_stage(self) -> int:
        """Return a number for a STAGE that no other has."""
        return next(self._stages)

    def unix_ms(self) -> int:
        """Milliseconds since 1970."""
        return int(self._unix_time() * 1000)

    def fault(self, instance: Instance, error: Exception) -> None:
        """End an instance whose call met a fault of ours."""
        _log.error("instance %d met a fault of the worker", instance.id, exc_info=error)
        self.faults.append(error)
        self._end(instance, FAILED, FAILED_CODE, f"a fault of the server: {type(error).__name__}")

    # -- Beginnings ----------------------------------------------------------------------------
    def _unload(self, module: str) -> None:
        program = self._programs.take_out(module)
        if program is None:
            return  # it did not load
        for instance in [
            instance for instance in self.instances.values() if instance.fiber.program is program
        ]:
            if not instance.ended:  # the gateway has given it up already
                self._end(instance, FAILED, FAILED_CODE, "its program was unloaded")
        self._fibers.unload(program)

    def _start(self, message: m.Start) -> None:
        run = Run(message.instance, message.limits, self._run_queue.of(message.tenant))
        trace = self._new_trace(message) if message.trace else None
        instance = new_instance(trace, self, run, message.instance, message.input)
        if not self._begin(instance, message.module, message.entry):
            return
        wall_s = run.wall_limit_ms / 1000
        instance.wall_timer = self.loop.call_later(wall_s, self._overstay, instance)

    def _new_trace(self, message: m.Start) -> Trace:
        return Trace(lambda events: self._send(m.Traced(message.instance, events)))

    def start_child(self, parent: Instance, pid: int, made: dict[str, Any], data: bytes) -> None:
        """Start the child that the gateway registered."""
        trace = parent.trace if isinstance(parent, TracedInstance) else None
        instance = new_instance(trace, self, parent.run, made["instance"], data, parent, pid)
        parent.children[pid] = instance
        if parent.ended:
            self._report(instance, KILLED, KILLED_CODE, "its parent has ended")
        else:
            self._begin(instance, made["module"], made["entry"])

    def end_unwanted(self, instance: Instance) -> None:
        """End a child whose parent cancelled its spawn."""
        if not instance.ended:  # it may have failed to start
            self._end(instance, KILLED, KILLED_CODE, "its parent cancelled it")
        if instance.parent is not None:
            family.reap(instance.parent, instance)

    def _begin(self, instance: Instance, module: str, entry: str) -> bool:
        try:
            if self._kernel is None:
                raise Ending(FAILED, FAILED_CODE, "the kernel is not there")
            give_fiber(
                self._fibers, instance, self._programs.get(module), entry, len(self.instances)
            )
        except Ending as end:
            instance.ended, instance.end_code = True, end.code
            self._report(instance, end.status, end.code, end.reason)
            return False
        self.instances[instance.id] = instance
        self._run_queue.enter(instance.run.share)
        self._run_queue.begin(instance)
        self._plan_turn()
        return True

    def _overstay(self, instance: Instance) -> None:
        reason = f"wall time limit: it ran longer than {instance.run.wall_limit_ms} ms"
        self._end(instance, KILLED, KILLED_CODE, reason)
        self._flush()

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
        # One slice of one that computes, behind the others' and with their calls on their way: who
        # makes calls all the time waits for one slice at most, however many compute.
        self._turn(self._run_queue.sole.computing, 0.0)

    def _turn(self, queue: deque[Instance], seconds: float = _TURN_S) -> None:
        """Let instances run: for about so many seconds, and at least one."""
        if not queue:
            self._flush()
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
            self._slice(instance)
            ended = now()
            # The clock is read for each slice, the processor's time (a system call) for each turn:
            # a slice is charged the share that this thread had of the processor lately.
            self._charge(instance, int((ended - at) * share))
            at = ended
            if at >= until:
                break
        self._end_turn(began, at, cpu_began)
        if queue:
            self._plan_turn()

    def _fair_turn(self, *, replies: bool) -> None:
        """The same where several tenants have instances; with `replies` for none that computes."""
        cpu_began, began = time.thread_time(), time.perf_counter()
        self._run_queue.play(self._timed_slice, self._flush, replies=replies)
        self._cpu_reporter.tell(self._kernel)  # in front of the turn's calls
        self._end_turn(began, time.perf_counter(), cpu_began)
        if self._run_queue.waiting():
            self._plan_turn()

    def _timed_slice(self, instance: Instance) -> int:
        """Run one instance for a slice, charge it, and return the nanoseconds that it took."""
        began = time.perf_counter()
        self._slice(instance)
        took = int((time.perf_counter() - began) * 1e9)
        self._charge(instance, int(took * self._cpu_share))
        return took

    def _charge(self, instance: Instance, used: int) -> None:
        """Charge an instance for nanoseconds of a processor, and its tenant if that has company."""
        run = instance.run
        instance.cpu_ns += used
        run.cpu_ns += used
        if self._run_queue.shared:
            self._cpu_reporter.note(run, used)
        if run.cpu_ns > run.cpu_limit_ns:
            self._stop_computing(run)

    def _charge_text(self, instance: Instance, used: int) -> None:
        instance.run.share.used_ns += used
        self._charge(instance, used)
        self._cpu_reporter.tell(self._kernel)  # no turn may come for a while

    def _end_turn(self, began: float, ended: float, cpu_began: float) -> None:
        self._fibers.ticker.rest(ended)
        if ended - began > _SPURIOUS_S:
            self._cpu_share = min((time.thread_time() - cpu_began) / (ended - began), 1.0)
        self._flush()

    def _slice(self, instance: Instance) -> None:
        """Run one instance until it suspends, ends, or has had its time."""
        try:
            if self._run(instance) and not instance.queued and not instance.ended:
                instance.queued = True
                instance.run.share.computing.append(instance)
                self._plan_turn()
        except Ending as end:
            who = self.instances[instance.run.id] if end.whole_run else instance
            self._end(who, end.status, end.code, end.reason)
        except Exception as error:  # ours: what a guest can do wrong is a SyscallError
            self.fault(instance, error)

    def _run(self, instance: Instance) -> bool:
        """Poll a fiber and make its calls; whether it wants to go on later."""
        fiber, now = instance.fiber, time.perf_counter
        table = self._tracing_handlers if instance.traced else self._handlers
        memory = instance.run.share.memory
        if memory.watched:
            memory.bound(instance)
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
                        instance.refuse(error)
                if result is None:
                    return False
                resume(result, wide)
                if now() > until:
                    return True
            elif state == PREEMPTED:
                if not fiber.base:  # its start function computes: nobody can look at its memory yet
                    instance.assume_memory()
                if now() - began > _SPURIOUS_S:
                    return True
                began = -1.0  # once
            else:
                self._finish(instance)
                return False

    def _stop_computing(self, run: Run) -> None:
        """A run has used up its processor's time, the handlers' included."""
        if run.id in self.instances:
            reason = f"cpu time limit: it computed for more than {run.cpu_limit_ns // 10**6} ms"
            self._end(self.instances[run.id], KILLED, KILLED_CODE, reason)

    # -- Ends ----------------------------------------------------------------------------------
    def _finish(self, instance: Instance) -> None:
        """A guest has ended by itself."""
        end = instance.fiber.end
        assert end is not None
        if end.kind is EndKind.RETURNED:
            self._end(instance, EXITED, end.code, "")
        elif end.kind is EndKind.TRAPPED:
            self._end(instance, TRAPPED, TRAPPED_CODE, end.words + instance.memory_words())
        elif end.kind is EndKind.REFUSED:
            reason = instance.run.share.memory.why_refused(instance, end.words)
            self._end(instance, KILLED, KILLED_CODE, reason)
        else:
            self.fault(instance, HostFault(end.words))

    def _end(self, instance: Instance, status: str, code: int, reason: str) -> None:
        """End an instance, its children first, and give back all it held."""
        for child in [c for c in instance.children.values() if not c.ended]:
            self._end(child, KILLED, KILLED_CODE, "its parent has ended")
        instance.end_code = code
        instance.release()
        check_released(instance)
        del self.instances[instance.id]
        self._run_queue.leave(instance.run.share)
        parent = instance.parent
        if parent is not None:
            parent.cpu_ns += instance.cpu_ns
            parent.syscalls += instance.syscalls
            if instance.joiners and not parent.ended:
                data = family.reap(parent, instance)
                for ticket in instance.joiners:
                    parent.complete(ticket, data)
        self._report(instance, status, code, reason)

    def _report(self, instance: Instance, status: str, code: int, reason: str) -> None:
        """Tell the gateway, after everything that the instance had sent."""
        self._flush()
        hits = instance.run.hits.copy() if instance.parent is None else {}
        self._send(m.Ended(instance.id, status, code, reason, instance.usage(), hits))

    # -- Frames out ----------------------------------------------------------------------------
    def _send(self, message: m.Message) -> None:
        if self._gateway is not None:
            self._gateway.send(m.encode(message))

    def _flush(self) -> None:
        if self._calls:
            self._flush_calls()
        if self._messages:
            self._flush_output()
        if self._lines:
            self._flush_lines()

    def _flush_calls(self) -> None:
        calls, self._calls, self._calls_bytes = self._calls, [], 0
        if self._kernel is not None:
            # The turn's frame: the kernel need not wait for another pass of the loop.
            self._kernel.send([m.Calls.KIND, calls], now=True)

    def _flush_output(self) -> None:
        messages, self._messages, self._messages_bytes = self._messages, [], 0
        if self._gateway is not None:
            self._gateway.send([m.Output.KIND, messages], now=True)

    def _flush_lines(self) -> None:
        lines, self._lines, self._lines_bytes = self._lines, [], 0
        self._send(m.Logs(lines))
