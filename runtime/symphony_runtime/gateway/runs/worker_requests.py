"""Requests of workers to the gateway: children, channels, tool and HTTP calls."""

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.errno import Errno, LimitError, SyscallError
from symphony_kernel.protocol.limits import MESSAGE_BYTES_MAX

from symphony_runtime.gateway.egress import calls as egress
from symphony_runtime.gateway.egress.calls import Egress
from symphony_runtime.gateway.egress.metrics import KINDS
from symphony_runtime.gateway.errors import Problem
from symphony_runtime.gateway.links.links import KernelAwayError, Worker
from symphony_runtime.gateway.programs.store import Program, Programs
from symphony_runtime.gateway.runs.channels import Channels, Waiter
from symphony_runtime.gateway.runs.live_run import Run
from symphony_runtime.gateway.runs.service import Runs

_log = logging.getLogger(__name__)


class _Pending(NamedTuple):
    """A channel or egress call that is not answered yet."""

    instance: int
    cancel: Callable[[], object]


class WorkerRequests:
    """Answers each `Ask` of each worker once, unless it is cancelled.

    It stands before the runs, which get all other messages.
    """

    def __init__(self, runs: Runs, programs: Programs, channels: Channels, egress: Egress) -> None:
        self._runs = runs
        self._programs = programs
        self._channels = channels
        self._egress = egress
        self._pending: dict[Worker, dict[int, _Pending]] = {}

    def worker_message(self, worker: Worker, message: m.Message) -> None:
        if isinstance(message, m.Ask):
            self._handle_ask(worker, message)
        elif isinstance(message, m.Unask):
            self._cancel_ask(worker, message.seq)
        else:
            if isinstance(message, m.Ended):
                waiting = self._pending.get(worker, {})
                for seq in [s for s, p in waiting.items() if p.instance == message.instance]:
                    self._cancel_ask(worker, seq)
            self._runs.worker_message(worker, message)

    def worker_lost(self, worker: Worker) -> None:
        for pending in self._pending.pop(worker, {}).values():
            pending.cancel()
        self._runs.worker_lost(worker)

    def _handle_ask(self, worker: Worker, message: m.Ask) -> None:
        """Take a request; the answer may follow much later. MessageError: no such one."""
        try:
            if message.what == "spawn":
                self._runs.spawn(self._spawn_child(worker, message.seq, message.args))
            elif message.what == "send":
                self._ask_for_memory(worker, message)
            elif message.what in ("channel_send", "channel_recv"):
                self._start_channel_call(worker, message)
            elif message.what in KINDS:
                self._start_egress(worker, message)
            else:
                raise m.MessageError(f"a worker does not ask {message.what!r}")
        except SyscallError as error:
            self._count_limit(worker, message.args.get("instance"), error)
            worker.refuse(message.seq, error.errno, error.detail)

    def _cancel_ask(self, worker: Worker, seq: int) -> None:
        pending = self._pending.get(worker, {}).pop(seq, None)
        if pending is not None:
            pending.cancel()

    def _count_limit(self, worker: Worker, instance: Any, error: SyscallError) -> None:
        run = self._runs.run_of(worker, instance)
        if isinstance(error, LimitError) and run is not None:
            self._runs.metrics.count_limit(run.record.tenant, error.limit)

    def _ask_for_memory(self, worker: Worker, message: m.Ask) -> None:
        """Answer once a run may send a large message."""
        instance, size = message.args.get("instance"), message.args.get("bytes")
        run = self._runs.run_of(worker, instance)
        if run is None or instance != run.record.seq:
            raise SyscallError(Errno.EBADF, "no such instance")
        if not isinstance(size, int) or not 0 < size <= MESSAGE_BYTES_MAX:
            raise m.MessageError(f"a message of {size!r} bytes")
        pending = self._pending.setdefault(worker, {})

        def grant() -> None:
            pending.pop(message.seq, None)
            worker.answer(message.seq, 0)

        pending[message.seq] = _Pending(instance, lambda: None)
        cancel = run.events.ask_for_memory(size, grant)
        if message.seq in pending:
            pending[message.seq] = _Pending(instance, cancel)

    # -- Channels ------------------------------------------------------------------------------
    def _start_channel_call(self, worker: Worker, message: m.Ask) -> None:
        args = message.args
        run = self._runs.run_of(worker, args.get("instance"))
        name, item = args.get("name"), args.get("item", b"")
        if run is None:
            raise SyscallError(Errno.EBADF, "no such instance")
        if not isinstance(name, str) or not isinstance(item, bytes):
            raise m.MessageError(f"{message.what} takes a name and bytes")
        tenant = run.record.tenant
        self._count_channel(run, name)
        answered = False

        def done(result: bytes | int) -> None:
            nonlocal answered
            answered = True
            self._pending.get(worker, {}).pop(message.seq, None)
            if isinstance(result, int) and result < 0:
                worker.refuse(message.seq, Errno(-result), "the channel stayed full")
            else:
                worker.answer(message.seq, result)

        if message.what == "channel_send":
            waiter: Waiter = self._channels.send(tenant, name, item, done)
        else:
            waiter = self._channels.receive(tenant, name, done)
        if not answered:
            cancel = partial(self._channels.cancel_call, tenant, name, waiter)
            pending = _Pending(args["instance"], cancel)
            self._pending.setdefault(worker, {})[message.seq] = pending

    def _count_channel(self, run: Run, name: str) -> None:
        """Count a channel name that a run uses; LimitError when it is one too many."""
        if name not in run.channels:
            if len(run.channels) >= (most := run.record.limits["channels"]):
                raise LimitError(Errno.EDQUOT, "channels", f"channels: at most {most}")
            run.channels.add(name)

    # -- Egress --------------------------------------------------------------------------------
    def _start_egress(self, worker: Worker, message: m.Ask) -> None:
        instance, data = message.args.get("instance"), message.args.get("request", b"")
        run = self._runs.run_of(worker, instance)
        if run is None or not isinstance(instance, int):
            raise SyscallError(Errno.EBADF, "no such instance")
        if not isinstance(data, bytes):
            raise m.MessageError(f"{message.what} takes bytes")
        if not run.instances[instance].may_call(message.what):
            detail = f"the program does not declare {message.what}"
            raise SyscallError(Errno.EACCES, detail)
        request = egress.parse(message.what, data)
        # The task answers once, however it ends; a dropped task does not answer.
        work = self._perform_egress(worker, message, run, request)
        task = self._runs.spawn(work)
        pending = _Pending(instance, task.cancel)
        self._pending.setdefault(worker, {})[message.seq] = pending

    async def _perform_egress(self, worker: Worker, message: m.Ask, run: Run, request: Any) -> None:
        began, errno = time.monotonic(), 0
        seq, what = message.seq, message.what
        tenant, instance = run.record.tenant, message.args["instance"]
        name, span = egress.name_of(what, request), None
        if run.spans is not None:
            span = run.spans.start_call(instance, what, name)
        headers = {} if span is None else span.headers()
        try:
            worker.answer(seq, await self._egress.perform(what, tenant, request, headers))
        except SyscallError as error:
            errno = error.errno
            worker.refuse(seq, error.errno, error.detail)
        except asyncio.CancelledError:
            errno = Errno.ECANCELED
            raise
        except Exception:
            errno = Errno.EIO
            worker.refuse(seq, Errno.EIO, "internal error of the server")
            raise
        finally:
            self._pending.get(worker, {}).pop(seq, None)
            if span is not None:
                span.end(errno)
            if run.trace is not None:
                run.trace.add_egress_call([instance, name, began, time.monotonic(), -errno])

    # -- Children ------------------------------------------------------------------------------
    async def _spawn_child(self, worker: Worker, seq: int, args: dict[str, Any]) -> None:
        try:
            worker.answer(seq, await self._start_child(worker, args))
        except SyscallError as error:
            self._count_limit(worker, args.get("parent"), error)
            worker.refuse(seq, error.errno, error.detail)
        except KernelAwayError as error:
            worker.refuse(seq, Errno.EIO, str(error))
        except Problem as error:
            worker.refuse(seq, Errno.ENOENT, str(error))
        except Exception:
            worker.refuse(seq, Errno.EIO, "internal error of the server")
            raise

    async def _start_child(self, worker: Worker, args: dict[str, Any]) -> dict[str, Any]:
        parent, stage = args.get("parent"), args.get("stage", 0)
        run = self._runs.run_of(worker, parent)
        if run is None or not isinstance(parent, int) or not isinstance(stage, int):
            raise SyscallError(Errno.EBADF, "no such parent")
        if len(run.instances) > (most := run.record.limits["children"]):
            raise LimitError(Errno.EDQUOT, "children", f"children: at most {most}")
        program = await self._child_program(run, parent, args.get("program"))
        if (entry := args.get("entry")) and entry not in program.manifest.entries:
            raise SyscallError(Errno.ENOENT, "the program has no such entry")
        modules = await self._runs.modules_for(worker, program)
        instance = self._runs.new_instance()
        if self._runs.run_of(worker, parent) is not run:
            raise SyscallError(Errno.ECANCELED, "the parent has ended")
        # Added before its registration, so that a parent which ends meanwhile ends it, too.
        self._runs.add_child(run, instance, program)
        try:
            await self._runs.register(run, instance, parent, stage)
        except (SyscallError, KernelAwayError):
            self._runs.forget_child(run, instance)
            raise
        if run.spans is not None:
            run.spans.start_child(instance, parent, program.name or program.id, program.id)
        run.children.add(instance, parent, program, entry or None)
        self._runs.send_modules(worker, modules)
        return {
            "instance": instance,
            "module": program.module,
            "entries": list(program.manifest.entries),
        }

    async def _child_program(self, run: Run, parent: int, wanted: Any) -> Program:
        if wanted is None:
            return run.instances.get(parent, run.program)
        found = None
        if isinstance(wanted, str):
            found = await self._programs.find(run.record.tenant, wanted)
        if found is None:
            raise SyscallError(Errno.ENOENT, "no such program")
        return found
