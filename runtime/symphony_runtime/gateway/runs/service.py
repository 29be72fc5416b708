"""The life of a run, from the request to the stored result.

    admit -> register with the kernel -> Module, Start to a worker -> Output, Logs ... -> Ended
          -> End to the kernel -> usage -> stored -> readers get the end

A run is live from its admission until its result is on disk. Readers do not end it, present or
not. Its own end, a cancel, a limit or the death of a role does.
"""

import asyncio
import dataclasses
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.errno import SyscallError
from symphony_kernel.protocol.limit_table import UNKEPT_OUTPUT, limit_of
from symphony_kernel.protocol.limits import RUN_INPUT_KEPT_BYTES_MAX

from symphony_runtime.config.limits import Limits
from symphony_runtime.gateway.admission.admission import Admission
from symphony_runtime.gateway.clock import now_ms
from symphony_runtime.gateway.config import GatewayConfig
from symphony_runtime.gateway.egress.calls import Egress
from symphony_runtime.gateway.errors import Problem, bad_request, not_found
from symphony_runtime.gateway.links.links import KernelAwayError, KernelLink, Worker, WorkerLinks
from symphony_runtime.gateway.links.models import Models, ServedModel
from symphony_runtime.gateway.links.worker_assignment import WorkerAssignment
from symphony_runtime.gateway.metrics.counters import RunMetrics
from symphony_runtime.gateway.programs.store import Program, Programs
from symphony_runtime.gateway.runs.events.feed import RunFeed
from symphony_runtime.gateway.runs.events.inbox import Inbox
from symphony_runtime.gateway.runs.events.reader import Cursor
from symphony_runtime.gateway.runs.events.stream import (
    Reader,
    StoredReader,
    pack_final,
    stored_cursor,
)
from symphony_runtime.gateway.runs.live_run import Run, admit_trace, check_stored, new_record
from symphony_runtime.gateway.runs.record import (
    BOOT_BITS,
    FINAL,
    USAGE_KEYS,
    Record,
    RunFilter,
    RunRequest,
    check_here,
    delete_unstarted_run,
    find_run,
    finish_run,
    insert_run,
    list_runs,
    merge_usage,
)
from symphony_runtime.gateway.runs.retention import Retention
from symphony_runtime.gateway.runs.trace import RunTrace, store_end
from symphony_runtime.gateway.runs.usage import RunUsage
from symphony_runtime.gateway.storage.database import Connection, StorageError
from symphony_runtime.gateway.storage.store import Store
from symphony_runtime.languages.language import WASM

if TYPE_CHECKING:
    from symphony_runtime.gateway.otlp.runs import RunSpans
    from symphony_runtime.gateway.otlp.tracing import Tracing

_log = logging.getLogger(__name__)
_SEQ_END = (1 << 63) - 1
_KILL_GRACE_SECONDS = 5.0  # a worker that has not ended a run so long after the Kill is broken
_WALL_GRACE_SECONDS = 1.0  # the worker ends a run at its wall limit; the gateway does so later
_DEADLINE_SECONDS = 1.0  # between two looks for runs past their wall limit
_REASON_MAX = 4_096  # characters of a worker's reason for an end


class KnownAdapters(Protocol):
    """The adapters of tenants."""

    async def send(self, tenant: str) -> None:
        """Let the kernel know a tenant's adapters; KernelAwayError."""


class Runs:
    """All runs. Implements `KernelEvents` and `WorkerEvents`."""

    def __init__(
        self,
        store: Store,
        programs: Programs,
        config: GatewayConfig,
        boot: int,
        retention: Retention,
        egress: Egress,
        admission: Admission,
        check_tenant: Callable[[str], None],
        ledger: RunUsage,
        limits: Limits,
        metrics: RunMetrics,
    ) -> None:
        """`check_tenant` raises Problem 403 if a tenant may not start something."""
        self.admission = admission
        self.limits = limits
        self._check_tenant, self._ledger = check_tenant, ledger
        self._store = store
        self._config = config
        self._programs = programs
        self.egress = egress
        self._retention = retention
        self.metrics = metrics
        self.feed = RunFeed()
        self._next_instance = boot << BOOT_BITS
        self._live: dict[str, Run] = {}
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._tenants: Counter[str] = Counter()  # live runs by tenant
        self.held_up: Counter[str] = Counter()  # of them by a rate limit, set by `RateStalls`
        self._instances: dict[int, Run] = {}
        self._tasks: set[asyncio.Future[Any]] = set()
        self.adapters: KnownAdapters | None = None  # set by the gateway

    def attach(
        self, models: Models, workers: WorkerLinks, tracing: "Tracing | None" = None
    ) -> None:
        """Set the links, and the tracing if there is one; once, before anything else."""
        self.models, self.workers, self.tracing = models, workers, tracing
        self.kernel = models.default.kernel
        self.worker_assignment = WorkerAssignment(workers, own=self._config.workers_per_tenant)
        workers.on_linked, self._programs.shipped.on_ready = self._preload, self._preload_all

    # -- Requests of clients -------------------------------------------------------------------
    async def start(
        self,
        program: Program,
        request: RunRequest,
        *,
        tenant: str | None = None,
        listener: Inbox | None = None,
        run_id: str | None = None,
        detached: bool = False,
    ) -> Run:
        """Start a run of a program for `tenant`, by default the program's.

        With a listener the run is ephemeral: messages go to the listener and are not stored.
        `detached`: the request does not wait for it.

        Raises Problem: 400 no such entry; 404 no such model; 429, 503 with Retry-After.
        """
        entry, model = program.entry(request.entry), self._model(request.model)
        problem: Exception | None = None
        tenant = tenant or program.tenant
        if request.trace:
            admit_trace(self._live.values(), tenant)
        for worker in self._admit(tenant, model):
            record = new_record(
                self.new_instance(), tenant, program, entry, request, run_id, model.name
            )
            run = Run(record, program, worker, self._store, listener)
            run.asked, run.attached = request.asked, request.attached
            if request.trace:
                run.trace = RunTrace(run.admitted, worker.name)
            self._add_run(run)
            if self.tracing is not None:
                run.spans = self.tracing.start_run(record, record.model, detached=detached)
            try:
                if run.ephemeral:  # the handler of such a run is never cancelled
                    await self._launch(run, request.input)
                else:
                    # The client may disconnect; half a start must not stay behind.
                    await asyncio.shield(self.spawn(self._launch(run, request.input)))
                return run
            except (KernelAwayError, SyscallError) as error:
                problem = error  # the kernel may not know this worker (yet): try another
        detail = f"the run was not started: {problem}"
        raise self.admission.unavailable("worker", detail) from problem

    async def find(self, tenant: str, run_id: str) -> Run | Record:
        """Return a live run, or the record of one that has ended; Problem 404."""
        run = self._live.get(run_id)
        if run is not None and run.record.tenant == tenant:
            return run
        record = await self._store.read(lambda c: find_run(c, tenant, run_id))
        if record is None:
            raise not_found("run", run_id)
        return record

    async def page(
        self, tenant: str, after: str, limit: int, wanted: RunFilter | None = None
    ) -> list[Record]:
        """Return a tenant's runs, newest first: those older than `after`, if given.

        Raises Problem: 400, the tenant has no such run.
        """
        wanted, before = wanted or RunFilter(), await self._before(tenant, after)
        records = await self._store.read(lambda c: list_runs(c, tenant, before, limit, wanted))
        # Live records are newer than the database's, and may not be in it yet.
        live = {run.record.seq: run.record for run in self.runs_of(tenant)}
        merged = {record.seq: record for record in records if record.seq not in live}
        merged |= {seq: r for seq, r in live.items() if seq < before and wanted.fits(r)}
        return [merged[seq] for seq in sorted(merged, reverse=True)[:limit]]

    async def live_page(
        self, tenant: str, after: str, limit: int, wanted: RunFilter
    ) -> list[Record]:
        """Return a tenant's live runs as `page` does; raise as it does."""
        before = await self._before(tenant, after)
        return [r for r in self.live(tenant) if r.seq < before and wanted.fits(r)][:limit]

    async def _before(self, tenant: str, after: str) -> int:
        """Return the place of a run in listings; the first if none is given. Problem 400."""
        if not after:
            return _SEQ_END
        try:
            found = await self.find(tenant, after)
        except Problem as error:
            raise bad_request("bad-cursor", "`after` must be the id of a run") from error
        return (found.record if isinstance(found, Run) else found).seq

    def live(self, tenant: str) -> list[Record]:
        return sorted((run.record for run in self.runs_of(tenant)), key=lambda record: -record.seq)

    def runs_of(self, tenant: str) -> list[Run]:
        """Return a tenant's live runs, without children."""
        return [run for run in self._live.values() if run.record.tenant == tenant]

    def programs_in_use(self) -> Iterator[Program]:
        for run in self._live.values():
            yield from run.instances.values()

    async def delete(self, tenant: str, run_id: str) -> None:
        """Delete a run that has ended, with its messages and its log.

        Raises Problem: 404; 409, it is live, or its end is not stored yet.
        """
        run = await self.find(tenant, run_id)
        if isinstance(run, Run):
            check_stored(run)
            raise Problem(409, "run-live", "the run has not ended; cancel it first")
        check_here(run)
        if not await self._retention.delete_runs([run.seq]):
            raise not_found("run", run_id)  # deleted meanwhile

    def record_and_cursor(self, run: Run | Record) -> tuple[Record, Callable[[], Cursor]]:
        if isinstance(run, Run):
            return run.record, run.events.cursor_factory()
        return run, lambda: stored_cursor(self._store, run.seq, 0, run.tenant)

    def open_reader(self, run: Run | Record, after: int) -> Reader:
        if isinstance(run, Run):
            return run.events.open_reader(after)
        check_here(run)
        return StoredReader(self._store, run.seq, after, run.tenant)

    def deliver(self, run: Run | Record, data: bytes | None) -> None:
        """Give the program a message, or the end of them (None).

        Raises Problem: 409, the run has ended; 429, earlier messages are not received yet.
        """
        if not isinstance(run, Run):
            check_here(run)
        if not isinstance(run, Run) or run.ending:
            raise Problem(409, "run-ended", "the run has ended")
        if data is None:
            run.worker.send(m.CloseInput(run.record.seq))
            return
        if (limit := run.inbox_full(len(data))) is not None:
            self.metrics.count_limit(run.record.tenant, limit)
            detail = "the program has not received its earlier messages yet"
            raise Problem(429, "inbox-full", detail, retry_after=run.receive_interval.retry_after())
        run.inbox_bytes += len(data)
        run.inbox_messages += 1
        run.worker.send(m.Deliver(run.record.seq, data))

    def kill(self, run: Run, reason: str, *, verdict: str | None = None) -> None:
        """End a live run. With a `verdict` its status is failed, for that reason."""
        if run.ending or run.kill_reason is not None:
            return
        run.kill_reason, run.verdict = reason, verdict
        if run.started:
            self._send_kill(run)

    async def drain(self) -> None:
        """Refuse new runs; wait for the live ones up to the drain time, then end them."""
        self.admission.drain()
        try:
            async with asyncio.timeout(self._config.drain_seconds):
                if waiting := [run.over for run in self._live.values()]:
                    await asyncio.wait(waiting)
        except TimeoutError:
            reason = "the server was shut down"
            for run in list(self._live.values()):
                self.kill(run, reason, verdict=reason)
            await self._wait_until_known()
        for run in list(self._live.values()):
            self._fail(run, "the server was shut down")
        await self._wait_until_known()
        self.feed.close()
        for run in self._live.values():
            if run.unstored is not None:
                _log.error("the end of run %s was not stored: the server ends", run.record.id)

    def statistics(self) -> dict[str, Any]:
        live = {"runs": len(self._live), "instances": len(self._instances)}
        egress = {"outside": self.egress.statistics()}
        return {**live, **egress, **self.metrics.statistics(), **self._retention.statistics()}

    def live_by_tenant(self) -> dict[str, int]:
        return dict(self._tenants)

    def all_live(self) -> Iterable[Run]:
        return self._live.values()

    # -- Starting ------------------------------------------------------------------------------
    def _model(self, name: str) -> ServedModel:
        """Return the model of a name, the default for none; Problem 404, 503 if it is not known."""
        model = self.models.find(name) if name else self.models.default
        if model is None:
            if not self.models.named:
                raise self.admission.unavailable("kernel", "the kernel is not ready")
            raise not_found("model", name)
        return model

    def model_of(self, run: Run) -> ServedModel:
        """Return the model that a live run is of."""
        return self.models.of_worker(run.worker.name)

    def _admit(self, tenant: str, model: ServedModel) -> list[Worker]:
        """Return the workers that may take a run, best first; raise Problem if none may."""
        self._check_tenant(tenant)
        most = self.limits.of(tenant).at_most("live_runs")
        if self._tenants[tenant] >= most:
            self.metrics.count_limit(tenant, "live_runs")
        self.admission.check_run(tenant, self._tenants[tenant], len(self._live), most)
        if not model.kernel.expected:
            raise self.admission.unavailable("kernel", "the kernel is not ready")
        workers = self.worker_assignment.choose_workers(
            tenant, model.workers if len(self.models) > 1 else None
        )
        if not workers:
            raise self.admission.unavailable("worker", "no worker is ready")
        self.admission.note_available()
        return workers

    def new_instance(self) -> int:
        self._next_instance += 1
        return self._next_instance

    async def _launch(self, run: Run, data: bytes) -> None:
        record, worker = run.record, run.worker
        try:
            modules = await self.modules_for(worker, run.program)
            began = time.monotonic()
            await self.register(run, record.seq, parent=0, stage=0)
            self.admission.load.note_registration(time.monotonic() - began)
            if worker.away or not self.model_of(run).kernel.expected:
                raise KernelAwayError("the worker or the kernel went away")
            await self._store_start(run, data)
        except BaseException:
            self._release(run)
            self._remove_run(run)
            raise
        if run.ending:
            return  # its worker or the kernel died meanwhile
        self.send_modules(worker, modules)
        tenant, module, traced = record.tenant, run.program.module, run.trace is not None
        limits = self.limits.of(tenant).of_worker(record.limits)
        if run.attached:
            limits[UNKEPT_OUTPUT] = 1
        worker.send(m.Start(record.seq, module, record.entry, data, limits, traced, tenant))
        run.started = True
        if run.trace is not None:
            run.trace.started = time.monotonic()
        if run.spans is not None:
            run.spans.note_start()
        self.metrics.count_start(tenant, time.monotonic() - run.admitted)
        self._start_deadline(run)
        if run.kill_reason is not None:  # it was cancelled before its start
            self._send_kill(run)

    async def _store_start(self, run: Run, data: bytes) -> None:
        """Store a run that is about to start, so that a crash does not lose it."""
        run.registered, record = True, run.record
        record.status = "running"
        if not run.ephemeral:
            kept = data if len(data) <= RUN_INPUT_KEPT_BYTES_MAX else None
            run.stored = self._store.write(lambda c: insert_run(c, record, kept), record.tenant)
            try:
                await run.stored
            except Exception:
                # A failed write may have taken effect if the connection broke.
                self.spawn(
                    self._store.write_until_stored(lambda c: delete_unstarted_run(c, record.seq))
                )
                self.spawn(self._end_in_kernel(run, record.seq))
                raise
            run.events.charge(len(kept or b""))
        if run.asked is not None:
            run.events.append("request", {"text": run.asked})
            run.asked = None
        run.events.append("status", record.outcome())
        self.feed.note(record, kept=not run.ephemeral)

    async def modules_for(self, worker: Worker, program: Program) -> list[m.Module]:
        """Return what a worker lacks to run a program; notes the use of the program."""
        self._programs.program_usage.note(program.tenant, program.id)
        missing, language = [], ""
        if program.language != WASM:
            module = self._programs.languages.module(program.language)
            language = (await module.program()).module
            if not worker.modules.note_use(language):
                missing.append(m.Module(language, await module.artefact()))
        if not worker.modules.note_use(program.module):
            artefact = await self._programs.artefact(program)
            missing.append(m.Module(program.module, artefact, language))
        return missing

    def send_modules(self, worker: Worker, modules: list[m.Module]) -> None:
        """Send a worker what it lacked, unless it got it meanwhile."""
        for message in modules:
            if worker.modules.note_use(message.module):
                continue
            worker.modules.add(message.module, len(message.artefact))
            worker.send(message)
        if modules and worker.modules.too_many:
            runs = (run for run in self._live.values() if run.worker is worker)
            programs = [each for run in runs for each in run.instances.values()]
            in_use = {each.module for each in programs}
            # Those that ship with the server stay: the next run must not wait for them.
            in_use |= {each.module for each, _ in self._programs.shipped.ready()}
            for module in worker.modules.evict(in_use):
                worker.send(m.Unload(module))

    def _preload(self, worker: Worker) -> None:
        """Send a worker the programs that ship with the server, so that no first run waits."""
        ready = self._programs.shipped.ready()
        self.send_modules(worker, [m.Module(each.module, code) for each, code in ready])

    def _preload_all(self, program: Program, artefact: bytes) -> None:
        for worker in self.workers.workers.values():
            self.send_modules(worker, [m.Module(program.module, artefact)])

    async def register(self, run: Run, instance: int, parent: int, stage: int) -> None:
        """Let an instance of a run call the kernel; KernelAwayError, SyscallError."""
        tenant, worker, model = run.record.tenant, run.worker.name, self.model_of(run)
        await model.limits.send_limits(tenant)
        if self.adapters is not None and model is self.models.default:
            await self.adapters.send(tenant)
        await model.kernel.register(instance, tenant, worker, parent, stage, run.kernel_options())

    def _add_run(self, run: Run) -> None:
        self._live[run.record.id] = run
        self._tenants[run.record.tenant] += 1
        self._instances[run.record.seq] = run
        run.worker.live += 1

    def _release(self, run: Run) -> None:
        """Free what a run used of its worker."""
        if run.kill_timer is not None:
            run.kill_timer.cancel()
        for instance in run.instances:
            self._instances.pop(instance, None)
        run.worker.live -= 1

    def _remove_run(self, run: Run) -> None:
        del self._live[run.record.id]
        self._tenants[run.record.tenant] -= 1
        self.admission.count_end(run.record.tenant, self._tenants[run.record.tenant])
        if not self._tenants[run.record.tenant]:
            del self._tenants[run.record.tenant]
        run.mark_over()
        if run.spans is not None:
            self._end_spans(run, run.spans)

    def _end_spans(self, run: Run, spans: "RunSpans") -> None:
        end = run.record
        limit = limit_of(end.status, end.reason)
        spans.finish(end.status, end.exit_code, limit, end.usage or {})
        if run.trace is not None:
            self.spawn(spans.add_preds(run.trace.last_preds()))

    # -- Children ------------------------------------------------------------------------------
    def run_of(self, worker: Worker, instance: Any) -> Run | None:
        """Return the run of a live instance if this worker has it, else None."""
        run = self._instances.get(instance) if isinstance(instance, int) else None
        return run if run is not None and run.worker is worker and not run.ending else None

    def find_instance(self, instance: int) -> Run | None:
        """Return the live run that has an instance."""
        return self._instances.get(instance)

    def add_child(self, run: Run, instance: int, program: Program) -> None:
        run.instances[instance] = program
        self._instances[instance] = run

    def forget_child(self, run: Run, instance: int) -> None:
        run.instances.pop(instance, None)
        self._instances.pop(instance, None)

    # -- KernelEvents --------------------------------------------------------------------------
    def exceeded(self, instance: int, reason: str) -> None:
        """End the run that reached a limit which the kernel counts."""
        run = self._instances.get(instance)
        if run is not None:
            self.kill(run, reason)

    def traced(self, instance: int, events: list[Any]) -> None:
        run = self._instances.get(instance)
        if run is not None and run.trace is not None:
            run.trace.add_preds(events)

    def kernel_lost(self, kernel: KernelLink) -> None:
        """Fail the registered runs of a kernel that died without a journal."""
        lost = [run for run in self._live.values() if self.model_of(run).kernel is kernel]
        for run in [run for run in lost if run.registered]:
            run.worker.send(m.Kill(run.record.seq, "the kernel died"))
            self._fail(run, "the kernel died")

    # -- WorkerEvents --------------------------------------------------------------------------
    def worker_lost(self, worker: Worker) -> None:
        for run in [r for r in self._live.values() if r.worker is worker and r.registered]:
            self._fail(run, "the worker that ran it died")

    def worker_message(self, worker: Worker, message: m.Message) -> None:
        """Handle a worker's message, which may concern its own instances only."""
        if isinstance(message, m.Logs):
            self._handle_logs(worker, message)
        elif isinstance(message, m.Received):
            self._handle_received(worker, message)
        elif isinstance(message, m.Ended):
            self._handle_end(worker, message)
        elif isinstance(message, m.Traced):
            run = self.run_of(worker, message.instance)
            if run is not None and run.trace is not None:
                run.trace.add_calls(message.events)
        else:
            raise m.MessageError(f"a worker does not send {type(message).__name__}")

    def worker_output(self, worker: Worker, messages: list[Any]) -> None:
        for item in messages:
            if not (isinstance(item, list) and len(item) == 2 and isinstance(item[1], bytes)):
                raise m.MessageError("an item of Output is [instance, bytes]")
            run = self.run_of(worker, item[0])
            if run is None or item[0] != run.record.seq:
                continue  # the run has ended meanwhile
            run.messages += 1
            if run.messages == 1:
                seconds = time.monotonic() - run.admitted
                self.metrics.first_message_seconds.add(seconds)
                if run.spans is not None:
                    run.spans.note_first_message(seconds)
            if (reason := run.exceeded_limit(len(item[1]))) is not None:
                self.kill(run, reason)
            else:
                run.events.append("message", item[1])

    def _handle_logs(self, worker: Worker, message: m.Logs) -> None:
        for item in message.lines:
            if not (isinstance(item, list) and len(item) == 3 and isinstance(item[2], bytes)):
                raise m.MessageError("an item of Logs is [instance, level, bytes]")
            run = self.run_of(worker, item[0])
            if run is not None:
                run.append_log_line(item[1], item[2])

    def _handle_received(self, worker: Worker, message: m.Received) -> None:
        run = self.run_of(worker, message.instance)
        if run is not None and message.instance == run.record.seq:
            run.inbox_bytes = max(0, run.inbox_bytes - max(0, message.taken))
            run.inbox_messages = max(0, run.inbox_messages - max(0, message.messages))
            run.receive_interval.record()

    def _handle_end(self, worker: Worker, message: m.Ended) -> None:
        run = self.run_of(worker, message.instance)
        if run is None:
            return  # ended already: the kernel died, or the worker got two Kills
        if message.instance != run.record.seq:
            self.forget_child(run, message.instance)
            if run.spans is not None:
                run.spans.note_child_end(message.instance, message.status, message.exit_code)
            run.children.end(
                message.instance, message.status, message.exit_code, message.reason, message.usage
            )
            end = self.spawn(self._end_in_kernel(run, message.instance))
            run.child_ends.add(end)
            end.add_done_callback(run.child_ends.discard)
            return
        if message.status not in FINAL or not -(1 << 31) <= message.exit_code < 1 << 31:
            raise m.MessageError(f"no run ends as {message.status!r} with code {message.exit_code}")
        usage = {key: value for key, value in message.usage.items() if key in USAGE_KEYS}
        if not all(type(value) is int and 0 <= value < 1 << 63 for value in usage.values()):
            raise m.MessageError("a run's usage must be integers from 0 to 2**63 - 1")
        self.metrics.count_worker_limits(run.record.tenant, message.hits)
        reason = message.reason[:_REASON_MAX]
        self._finish_soon(run, message.status, message.exit_code, reason, usage)

    # -- Ending --------------------------------------------------------------------------------
    def _fail(self, run: Run, reason: str) -> None:
        if run.registered and not run.ending:
            usage = {"wall_ms": now_ms() - run.record.created_ms}
            self._finish_soon(run, "failed", None, reason, usage)

    def _finish_soon(
        self, run: Run, status: str, code: int | None, reason: str, usage: dict[str, Any]
    ) -> None:
        run.ending = True
        outcome = ("failed", None, run.verdict) if run.verdict else (status, code, reason)
        self.spawn(self._finish(run, run.record, outcome, usage))

    async def _finish(
        self, run: Run, record: Record, outcome: tuple[str, int | None, str], usage: dict[str, Any]
    ) -> None:
        if not await run.start_stored():
            return  # `_launch` deletes it
        # Children first: the end of a parent drops them and their usage in the kernel.
        if len(run.instances) == 1 and not run.child_ends:
            await self._end_in_kernel(run, record.seq)
        else:
            ends = (self._end_in_kernel(run, instance) for instance in reversed(run.instances))
            await asyncio.gather(*run.child_ends, *ends)
        status, exit_code, reason = outcome
        if status == "exited" and exit_code:
            reason = reason or run.first_error
        # A copy: what readers see changes only when the result is on disk.
        end = run.end = dataclasses.replace(
            record,
            status=status,
            exit_code=exit_code if status == "exited" else None,
            reason=reason,
            usage=merge_usage(usage, dict(run.kernel_usage)),
            ended_ms=now_ms(),
            waits_for=None,
        )
        self._release(run)
        await self._store_end(run, end)
        run.record = end
        self.feed.note(end, kept=run.is_kept(end))
        if not run.events.finished:
            run.events.finish(end.finals())
        self.metrics.count_end(end.tenant, end.status, end.reason, end.usage or {})
        program = run.program
        self._programs.program_usage.count_end(program.tenant, program.id, error=end.erred)
        self.metrics.run_seconds.add(time.monotonic() - run.admitted)
        self._remove_run(run)

    async def _store_end(self, run: Run, ended: Record) -> None:
        """Store a run's end; retry while the storage fails.

        An ephemeral run is stored only if it failed. Its usage counts in either case.
        """
        row, started = run.events.seal(ended.finals()), run.record
        packed = run.trace.pack() if run.trace else None
        run.children.end_all()
        children = run.children.pack()

        def store(connection: Connection) -> int:
            if run.ephemeral:  # other runs are stored since their start
                insert_run(connection, started)
            return store_end(connection, ended, row, packed, children)

        def note_failure(error: StorageError) -> None:
            if run.unstored is None:
                _log.error("the end of run %s cannot be stored yet: %s", ended.id, error)
            run.note_unstored(error)
            self.feed.note(run.record, kept=run.is_kept(ended))

        try:
            if not run.is_kept(ended):
                self._ledger.count(ended.tenant, ended.usage or {})
                return
            size = await self._store.write_until_stored(store, ended.tenant, note_failure)
            if not run.ephemeral:
                run.events.mark_stored()
            self._retention.count_run(ended.tenant, size)
        except Exception:
            # A result that is not stored must not count: the next start calls it failed, too.
            _log.exception("the result of run %s could not be stored", ended.id)
            ended.status, ended.exit_code = "failed", None
            ended.reason = "its result could not be stored"

    async def keep(self, run: Run, events: list[tuple[str, Any]]) -> None:
        """Store an ephemeral run with these events once it has ended well.

        Its usage is counted already. While the storage fails it is tried again, and the caller does
        not wait for that.
        """
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def note_failure(error: StorageError) -> None:
            if not failed.done():
                _log.error("run %s cannot be stored yet: %s", run.record.id, error)
                failed.set_result(None)

        stored = self.spawn(self._keep(run, events, note_failure))
        await asyncio.wait([stored, failed], return_when=asyncio.FIRST_COMPLETED)

    async def _keep(
        self,
        run: Run,
        events: list[tuple[str, Any]],
        note_failure: Callable[[StorageError], None],
    ) -> None:
        await asyncio.wait([run.over])
        ended = run.record
        if (ended.status, ended.exit_code) != ("exited", 0):
            return  # it is stored as it is
        row = pack_final(1, 0, events + ended.finals())

        def store(connection: Connection) -> int:
            insert_run(connection, ended)
            return finish_run(connection, ended, row, counted=True)

        size = await self._store.write_until_stored(store, ended.tenant, note_failure)
        self._retention.count_run(ended.tenant, size)

    async def _end_in_kernel(self, run: Run, instance: int) -> None:
        try:
            usage = await self.model_of(run).kernel.end(instance)
        except (KernelAwayError, SyscallError) as error:
            # The kernel ended it with the link or with itself; its usage is lost.
            _log.info("instance %d: %s", instance, error)
            return
        run.kernel_usage.update(usage)
        if run.spans is not None:
            run.spans.end_child(instance, usage)
        run.children.add_usage(instance, usage)

    def _send_kill(self, run: Run) -> None:
        run.worker.send(m.Kill(run.record.seq, run.kill_reason or ""))
        loop = asyncio.get_running_loop()
        run.kill_timer = loop.call_later(_KILL_GRACE_SECONDS, self._drop_worker, run)

    def _drop_worker(self, run: Run) -> None:
        if not run.ending:
            _log.error("%s did not end a run in time; its link is cut", run.worker.name)
            run.worker.drop()

    # -- Wall limits ---------------------------------------------------------------------------
    def _start_deadline(self, run: Run) -> None:
        # One timer for all runs: a timer for each, an hour away, costs a request of a millisecond
        # more than the limit is worth.
        loop = asyncio.get_running_loop()
        run.deadline = loop.time() + run.record.limits["wall_ms"] / 1000 + _WALL_GRACE_SECONDS
        if self._deadline_timer is None:
            self._deadline_timer = loop.call_later(_DEADLINE_SECONDS, self._kill_late_runs)

    def _kill_late_runs(self) -> None:
        loop = asyncio.get_running_loop()
        now, self._deadline_timer = loop.time(), None
        for run in [run for run in self._live.values() if run.deadline < now]:
            limit = run.record.limits["wall_ms"]
            self.kill(run, f"the run took longer than its limit of {limit} ms")
        if self._live:
            self._deadline_timer = loop.call_later(_DEADLINE_SECONDS, self._kill_late_runs)

    # -- Helpers -------------------------------------------------------------------------------
    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run a coroutine as a task; its failure is logged."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, future: "asyncio.Future[Any]") -> None:
        self._tasks.discard(future)
        error = None if future.cancelled() else future.exception()
        # These errors are answers to a request; anything else is a bug.
        answers = KernelAwayError, SyscallError, Problem, StorageError
        if error is not None and not isinstance(error, answers):
            _log.error("a run's task failed", exc_info=error)

    async def _wait_until_known(self) -> None:
        """Wait, up to the grace time, until the first attempt to store each end is over."""
        if waiting := [run.known for run in self._live.values()]:
            await asyncio.wait(waiting, timeout=_KILL_GRACE_SECONDS)
