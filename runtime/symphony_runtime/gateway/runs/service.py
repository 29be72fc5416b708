"""The life of runs, from the request to the stored result.

    admit -> register with the kernel -> Module, Start to a worker -> Output, Logs ... -> Ended
          -> End to the kernel -> usage -> stored -> told

A run is live from its admission until its result is on disk. Nobody's reading or not reading ends
it; a cancel, a limit, its own end or the death of a role does.
"""

import asyncio
import dataclasses
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.errno import SyscallError

from symphony_runtime.config.limits import Limits
from symphony_runtime.gateway.admission.admission import Admission
from symphony_runtime.gateway.clock import now_ms
from symphony_runtime.gateway.config import GatewayConfig
from symphony_runtime.gateway.egress.calls import Egress
from symphony_runtime.gateway.errors import Problem, bad_request, not_found
from symphony_runtime.gateway.links.kernel_limits import KernelLimits
from symphony_runtime.gateway.links.links import KernelAwayError, KernelLink, Worker, WorkerLinks
from symphony_runtime.gateway.links.worker_assignment import WorkerAssignment
from symphony_runtime.gateway.metrics.counters import RunMetrics
from symphony_runtime.gateway.programs.store import Program, Programs
from symphony_runtime.gateway.runs.channels import Channels
from symphony_runtime.gateway.runs.events.reader import Cursor
from symphony_runtime.gateway.runs.events.stream import (
    Listener,
    LiveReader,
    Reader,
    StoredReader,
    stored_cursor,
)
from symphony_runtime.gateway.runs.live_run import (
    Run,
    TenantRules,
    admit_trace,
    check_stored,
    new_record,
)
from symphony_runtime.gateway.runs.record import (
    BOOT_BITS,
    FINAL,
    USAGE_KEYS,
    Record,
    RunRequest,
    check_here,
    find_run,
    insert_run,
    list_runs,
    merge_usage,
    take_back_run,
)
from symphony_runtime.gateway.runs.retention import Retention
from symphony_runtime.gateway.runs.trace import RunTrace, store_end
from symphony_runtime.gateway.runs.usage import RunUsage
from symphony_runtime.gateway.runs.worker_requests import WorkerRequests
from symphony_runtime.gateway.storage.database import Connection, StorageError
from symphony_runtime.gateway.storage.store import Store

_log = logging.getLogger(__name__)
_SEQ_END = (1 << 63) - 1
_KILL_GRACE_SECONDS = 5.0  # a worker that has not ended a run so long after the Kill is broken
_REASON_MAX = 4_096  # characters of what a worker says about an end


class Runs:
    """All runs. Hears from the kernel and the workers (`KernelEvents`, `WorkerEvents`)."""

    def __init__(
        self,
        store: Store,
        programs: Programs,
        channels: Channels,
        config: GatewayConfig,
        boot: int,
        retention: Retention,
        egress: Egress,
        admission: Admission,
        tenants: TenantRules,
        limits: Limits,
        figures: RunMetrics,
    ) -> None:
        self.admission = admission
        self.limits = limits
        self.kernel_limits: KernelLimits
        self._tenant_rules = tenants
        self._store = store
        self._config = config
        self._programs = programs
        self.egress = egress
        self._worker_requests = WorkerRequests(self, programs, channels, egress)
        self._retention = retention
        self.figures = figures
        self._next_instance = boot << BOOT_BITS
        self._live: dict[str, Run] = {}
        self._deadlines = Deadlines(self._live, self.kill)
        self._tenants: Counter[str] = Counter()  # live runs of each
        self._instances: dict[int, Run] = {}
        self._tasks: set[asyncio.Future[Any]] = set()
        self._links: tuple[KernelLink, WorkerLinks] | None = None

    def attach(self, kernel: KernelLink, workers: WorkerLinks) -> None:
        """Name the links; once, before anything else."""
        self._links = (kernel, workers)
        self.worker_assignment = WorkerAssignment(workers, own=self._config.workers_per_tenant)
        self.kernel_limits = KernelLimits(self.limits, kernel)

    @property
    def kernel(self) -> KernelLink:
        """The link to the kernel."""
        assert self._links is not None
        return self._links[0]

    @property
    def workers(self) -> WorkerLinks:
        """The links to the workers."""
        assert self._links is not None
        return self._links[1]

    @property
    def draining(self) -> bool:
        """Whether no new run is taken."""
        return self.admission.draining

    # -- What requests do ----------------------------------------------------------------------
    async def start(
        self,
        program: Program,
        request: RunRequest,
        *,
        tenant: str | None = None,
        listener: Listener | None = None,
        run_id: str | None = None,
    ) -> Run:
        """Start a run of a program, in the name of its tenant or of the one that is named.

        With a listener the run passes: its client hears its messages and nobody keeps them.

        Raises:
            Problem: 400 no such entry; 429, 503 with Retry-After.
        """
        entry = program.entry(request.entry)
        problem: Exception | None = None
        tenant = tenant or program.tenant
        if request.trace:
            admit_trace(self._live.values(), tenant)
        for worker in self._admit(tenant):
            record = new_record(self.new_instance(), tenant, program, entry, request, run_id)
            run = Run(record, program, worker, self._store, listener)
            if request.trace:
                run.trace = RunTrace(run.admitted, worker.name)
            self._enter(run)
            try:
                if run.passing:  # its handler is never cancelled
                    await self._launch(run, request.input)
                else:
                    # Whoever asked may go away; half a start must not stay behind.
                    await asyncio.shield(self.spawn(self._launch(run, request.input)))
                return run
            except (KernelAwayError, SyscallError) as error:
                problem = error  # a worker that the kernel does not know (yet): perhaps another
        raise self.admission.away("worker", f"the run was not started: {problem}") from problem

    async def find(self, tenant: str, run_id: str) -> Run | Record:
        """Return a live run, or the record of one that has ended.

        Raises:
            Problem: 404.
        """
        run = self._live.get(run_id)
        if run is not None and run.record.tenant == tenant:
            return run
        record = await self._store.read(lambda c: find_run(c, tenant, run_id))
        if record is None:
            raise not_found("run")
        return record

    async def page(self, tenant: str, after: str, limit: int) -> list[Record]:
        """Return a tenant's runs, newest first: those older than run `after`, or from the newest.

        Raises:
            Problem: 400, the tenant has no such run.
        """
        before = _SEQ_END
        if after:
            try:
                found = await self.find(tenant, after)
            except Problem as error:
                raise bad_request("bad-cursor", "`after` must be the id of a run") from error
            before = (found.record if isinstance(found, Run) else found).seq
        records = await self._store.read(lambda c: list_runs(c, tenant, before, limit))
        # What is live is ahead of the database, and may not be in it yet.
        merged = {record.seq: record for record in records}
        merged |= {record.seq: record for record in self.live(tenant) if record.seq < before}
        return [merged[seq] for seq in sorted(merged, reverse=True)[:limit]]

    def live(self, tenant: str) -> list[Record]:
        """Return a tenant's live runs, newest first."""
        return sorted((run.record for run in self.runs_of(tenant)), key=lambda record: -record.seq)

    def runs_of(self, tenant: str) -> list[Run]:
        """Return a tenant's live runs, children not counted."""
        return [run for run in self._live.values() if run.record.tenant == tenant]

    def programs_in_use(self) -> Iterator[Program]:
        """Give the programs of all live instances."""
        for run in self._live.values():
            yield from run.instances.values()

    async def delete(self, tenant: str, run_id: str) -> None:
        """Forget a run that has ended, with its messages and its log.

        Raises:
            Problem: 404; 409, it is live, or its end is not stored yet.
        """
        run = await self.find(tenant, run_id)
        if isinstance(run, Run):
            check_stored(run)
            raise Problem(409, "run-live", "the run has not ended; cancel it first")
        check_here(run)
        if not await self._retention.delete([run.seq]):
            raise not_found("run")  # any more

    def result(self, run: Run | Record) -> tuple[Record, Callable[[], Cursor]]:
        """Return a run's record, and how its events are read."""
        if isinstance(run, Run):
            return run.record, run.journal.so_far()
        return run, lambda: stored_cursor(self._store, run.seq, 0, run.tenant)

    def open(self, run: Run | Record, after: int) -> Reader:
        """Follow a run's events after an id."""
        if isinstance(run, Run):
            reader: LiveReader | StoredReader = run.journal.open(after)
        else:
            check_here(run)
            reader = StoredReader(self._store, run.seq, after, run.tenant)
        return reader

    def deliver(self, run: Run | Record, data: bytes | None) -> None:
        """Hand the program a message, or the end of them (None).

        Raises:
            Problem: 409, the run has ended; 429, it has not received what came before.
        """
        if not isinstance(run, Run):
            check_here(run)
        if not isinstance(run, Run) or run.ending:
            raise Problem(409, "run-ended", "the run has ended")
        if data is None:
            run.worker.send(m.CloseInput(run.record.seq))
            return
        if (limit := run.inbox_full(len(data))) is not None:
            self.figures.hit(run.record.tenant, limit)
            detail = "the program has not received the messages that wait for it"
            raise Problem(429, "inbox-full", detail, retry_after=run.receiving.retry_after())
        run.inbox_bytes += len(data)
        run.inbox_messages += 1
        run.worker.send(m.Deliver(run.record.seq, data))

    def kill(self, run: Run, reason: str, *, verdict: str | None = None) -> None:
        """End a live run; with a `verdict` it counts as failed, for that reason."""
        if run.ending or run.kill_reason is not None:
            return
        run.kill_reason, run.verdict = reason, verdict
        if run.started:
            self._send_kill(run)

    async def drain(self) -> None:
        """Take no new runs; give the live ones their time, then end them."""
        self.admission.drain()
        try:
            async with asyncio.timeout(self._config.drain_seconds):
                await self._wait_until_idle()
        except TimeoutError:
            reason = "the server was shut down"
            for run in list(self._live.values()):
                self.kill(run, reason, verdict=reason)
            await self._wait_until_known()
        for run in list(self._live.values()):
            self._fail(run, "the server was shut down")
        await self._wait_until_known()
        for run in self._live.values():
            if run.unstored is not None:
                _log.error("the end of run %s was not stored: the server ends", run.record.id)

    def statistics(self) -> dict[str, Any]:
        """Return how many runs and instances are live, and what became of the others."""
        live = {"runs": len(self._live), "instances": len(self._instances)}
        egress = {"outside": self.egress.statistics()}
        return {**live, **egress, **self.figures.statistics(), **self._retention.statistics()}

    def live_by_tenant(self) -> dict[str, int]:
        """Return how many live runs each tenant has that has any."""
        return dict(self._tenants)

    # -- Starting ------------------------------------------------------------------------------
    def _admit(self, tenant: str) -> list[Worker]:
        """Return the workers that may take a run, best first; raise Problem if none may."""
        self._tenant_rules.check(tenant)
        most = self.limits.of(tenant).at_most("live_runs")
        if self._tenants[tenant] >= most:
            self.figures.hit(tenant, "live_runs")
        self.admission.check(tenant, self._tenants[tenant], len(self._live), most)
        if not self.kernel.expected:
            raise self.admission.away("kernel", "the kernel is not ready")
        workers = self.worker_assignment.choose(tenant)
        if not workers:
            raise self.admission.away("worker", "no worker is ready")
        self.admission.there()
        return workers

    def new_instance(self) -> int:
        """Return an instance id that was never used."""
        self._next_instance += 1
        return self._next_instance

    async def _launch(self, run: Run, data: bytes) -> None:
        record, worker = run.record, run.worker
        try:
            artefact = await self.module_for(worker, run.program)
            began = time.monotonic()
            await self.register(run, record.seq, parent=0, stage=0)
            self.admission.load.registered(time.monotonic() - began)
            if worker.away or not self.kernel.expected:
                raise KernelAwayError("the worker or the kernel went away")
            await self._begin(run)
        except BaseException:
            self._release(run)
            self._leave(run)
            raise
        if run.ending:
            return  # its worker or the kernel died meanwhile
        self.send_module(worker, run.program, artefact)
        tenant, module, traced = record.tenant, run.program.module, run.trace is not None
        limits = self.limits.of(tenant).of_worker(record.limits)
        worker.send(m.Start(record.seq, module, record.entry, data, limits, traced, tenant))
        run.started = True
        if run.trace is not None:
            run.trace.started = time.monotonic()
        self.figures.started(record.tenant, time.monotonic() - run.admitted)
        self._deadlines.started(run)
        if run.kill_reason is not None:  # it was cancelled before it had begun
            self._send_kill(run)

    async def _begin(self, run: Run) -> None:
        """A run is about to start: what is kept of it is stored before, so that none is lost."""
        run.registered, record = True, run.record
        record.status = "running"
        if not run.passing:
            run.stored = self._store.write(lambda c: insert_run(c, record), record.tenant)
            try:
                await run.stored
            except Exception:
                # What has failed may have taken effect, if a link broke.
                self.spawn(self._store.insist(lambda c: take_back_run(c, record.seq)))
                self.spawn(self._end_in_kernel(run, record.seq))
                raise
        run.begin()

    async def module_for(self, worker: Worker, program: Program) -> bytes | None:
        """Return the artefact that a worker lacks, or None if it has it; the program is used."""
        self._programs.program_usage.note(program.tenant, program.id)
        if worker.modules.use(program.module):
            return None
        return await self._programs.artefact(program)

    def send_module(self, worker: Worker, program: Program, artefact: bytes | None) -> None:
        """Give a worker an artefact, unless it has got it meanwhile."""
        if artefact is None or worker.modules.use(program.module):
            return
        worker.modules.add(program.module, len(artefact))
        worker.send(m.Module(program.module, artefact))
        if worker.modules.too_many:
            runs = (run for run in self._live.values() if run.worker is worker)
            in_use = {each.module for run in runs for each in run.instances.values()}
            for module in worker.modules.evict(in_use):
                worker.send(m.Unload(module))

    async def register(self, run: Run, instance: int, parent: int, stage: int) -> None:
        """Let an instance of a run call the kernel.

        Raises:
            KernelAwayError, SyscallError: as the link does.
        """
        tenant, worker = run.record.tenant, run.worker.name
        await self.kernel_limits.tell(tenant)
        await self.kernel.register(instance, tenant, worker, parent, stage, run.kernel_options())

    def _enter(self, run: Run) -> None:
        self._live[run.record.id] = run
        self._tenants[run.record.tenant] += 1
        self._instances[run.record.seq] = run
        run.worker.live += 1

    def _release(self, run: Run) -> None:
        """Nothing of it runs any more: what it had of its worker is free."""
        for timer in run.timers:
            timer.cancel()
        for instance in run.instances:
            self._instances.pop(instance, None)
        run.worker.live -= 1

    def _leave(self, run: Run) -> None:
        del self._live[run.record.id]
        self._tenants[run.record.tenant] -= 1
        self.admission.ended(run.record.tenant, self._tenants[run.record.tenant])
        if not self._tenants[run.record.tenant]:
            del self._tenants[run.record.tenant]
        run.leave()

    # -- Children ------------------------------------------------------------------------------
    def run_of(self, worker: Worker, instance: Any) -> Run | None:
        """Return the run of a live instance, if it is this worker's."""
        run = self._instances.get(instance) if isinstance(instance, int) else None
        return run if run is not None and run.worker is worker and not run.ending else None

    def add_child(self, run: Run, instance: int, program: Program) -> None:
        """A child of a run has been registered."""
        run.instances[instance] = program
        self._instances[instance] = run

    def forget_child(self, run: Run, instance: int) -> None:
        """A child could not be registered."""
        run.instances.pop(instance, None)
        self._instances.pop(instance, None)

    def _child_ended(self, run: Run, instance: int) -> None:
        self.forget_child(run, instance)
        end = self.spawn(self._end_in_kernel(run, instance))
        run.child_ends.add(end)
        end.add_done_callback(run.child_ends.discard)

    # -- KernelEvents --------------------------------------------------------------------------
    def exceeded(self, instance: int, reason: str) -> None:
        """End the run that has used up a limit which the kernel counts."""
        run = self._instances.get(instance)
        if run is not None:
            self.kill(run, reason)

    def traced(self, instance: int, events: list[Any]) -> None:
        """Keep what the kernel tells of a traced run."""
        run = self._instances.get(instance)
        if run is not None and run.trace is not None:
            run.trace.take_preds(events)

    def kernel_lost(self) -> None:
        """The kernel died and forgot every instance in it."""
        for run in [run for run in self._live.values() if run.registered]:
            self._tell_worker(run, "the kernel died")
            self._fail(run, "the kernel died")

    # -- WorkerEvents --------------------------------------------------------------------------
    def worker_lost(self, worker: Worker) -> None:
        """A worker died, and everything that it ran."""
        self._worker_requests.forget_worker(worker)
        for run in [r for r in self._live.values() if r.worker is worker and r.registered]:
            self._fail(run, "the worker that ran it died")

    def worker_message(self, worker: Worker, message: m.Message) -> None:
        """Take what a worker says; it may speak of its own instances only."""
        if isinstance(message, m.Logs):
            self._take_logs(worker, message)
        elif isinstance(message, m.Received):
            self._take_received(worker, message)
        elif isinstance(message, m.Ended):
            self._take_end(worker, message)
        elif isinstance(message, m.Ask):
            self._worker_requests.ask(worker, message)
        elif isinstance(message, m.Traced):
            run = self.run_of(worker, message.instance)
            if run is not None and run.trace is not None:
                run.trace.take_calls(message.events)
        elif isinstance(message, m.Unask):
            self._worker_requests.unask(worker, message.seq)
        else:
            raise m.MessageError(f"a worker does not send {type(message).__name__}")

    def worker_output(self, worker: Worker, messages: list[Any]) -> None:
        """Hand on what programs have sent."""
        for item in messages:
            if not (isinstance(item, list) and len(item) == 2 and isinstance(item[1], bytes)):
                raise m.MessageError("an item of Output is [instance, bytes]")
            run = self.run_of(worker, item[0])
            if run is None or item[0] != run.record.seq:
                continue  # it has ended meanwhile
            run.messages += 1
            if run.messages == 1:
                self.figures.first_message(time.monotonic() - run.admitted)
            # The worker enforces both; we do not rely on it.
            if (reason := run.sent_too_much(len(item[1]))) is not None:
                self.kill(run, reason)
            else:
                run.journal.append("message", item[1])

    def _take_logs(self, worker: Worker, message: m.Logs) -> None:
        for item in message.lines:
            if not (isinstance(item, list) and len(item) == 3 and isinstance(item[2], bytes)):
                raise m.MessageError("an item of Logs is [instance, level, bytes]")
            run = self.run_of(worker, item[0])
            if run is not None:
                run.take_line(item[1], item[2])

    def _take_received(self, worker: Worker, message: m.Received) -> None:
        run = self.run_of(worker, message.instance)
        if run is not None and message.instance == run.record.seq:
            run.inbox_bytes = max(0, run.inbox_bytes - max(0, message.taken))
            run.inbox_messages = max(0, run.inbox_messages - max(0, message.messages))
            run.receiving.happened()

    def _take_end(self, worker: Worker, message: m.Ended) -> None:
        run = self.run_of(worker, message.instance)
        self._worker_requests.forget_instance(worker, message.instance)
        if run is None:
            return  # ended here already: the kernel died, or the worker was told twice
        if message.instance != run.record.seq:
            self._child_ended(run, message.instance)
            return
        if message.status not in FINAL or not -(1 << 31) <= message.exit_code < 1 << 31:
            raise m.MessageError(f"no run ends as {message.status!r} with {message.exit_code}")
        usage = {key: value for key, value in message.usage.items() if key in USAGE_KEYS}
        if not all(type(value) is int and 0 <= value < 1 << 63 for value in usage.values()):
            raise m.MessageError("a run's usage is counted in integers")
        self.figures.worker_hits(run.record.tenant, message.hits)
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
        self,
        run: Run,
        record: Record,
        outcome: tuple[str, int | None, str],
        usage: dict[str, Any],
    ) -> None:
        if not await run.has_begun():
            return  # `_launch` takes it back
        # Children first: with their parent's end the kernel forgets them and what they used.
        if len(run.instances) == 1 and not run.child_ends:
            await self._end_in_kernel(run, record.seq)
        else:
            ends = (self._end_in_kernel(run, instance) for instance in reversed(run.instances))
            await asyncio.gather(*run.child_ends, *ends)
        status, exit_code, reason = outcome
        # A copy: what readers see changes only when the result is on disk.
        run.end = dataclasses.replace(
            record,
            status=status,
            exit_code=exit_code if status == "exited" else None,
            reason=reason,
            usage=merge_usage(usage, dict(run.kernel_usage)),
            ended_ms=now_ms(),
        )
        self._release(run)
        await self._keep(run, run.end)
        run.record = run.end
        if not run.journal.finished:
            run.journal.finish(run.end.finals())
        self.figures.ended(run.end, time.monotonic() - run.admitted)
        self._leave(run)

    async def _keep(self, run: Run, ended: Record) -> None:
        """Store a run's end, however long the storage fails."""

        def put_off(error: StorageError) -> None:
            if run.unstored is None:
                _log.error("the end of run %s cannot be stored yet: %s", ended.id, error)
            run.put_off(error)

        row = run.journal.seal(ended.finals())
        try:
            size = await keep_end(self._store, run, ended, row, self._tenant_rules.ledger, put_off)
            if size is not None:
                self._retention.ended(ended.tenant, size)
        except Exception:
            # Nobody may believe in a result that is not kept: the next start calls it failed, too.
            _log.exception("the result of run %s could not be stored", ended.id)
            ended.status, ended.exit_code = "failed", None
            ended.reason = "its result could not be stored"

    async def _end_in_kernel(self, run: Run, instance: int) -> None:
        try:
            usage = await self.kernel.end(instance)
        except (KernelAwayError, SyscallError) as error:
            # The kernel has ended it already, with a link or itself; its counts are lost with it.
            _log.info("instance %d: %s", instance, error)
            return
        run.kernel_usage.update(usage)

    def _send_kill(self, run: Run) -> None:
        self._tell_worker(run, run.kill_reason or "")
        self._later(run, _KILL_GRACE_SECONDS, lambda: self._distrust(run))

    def _tell_worker(self, run: Run, reason: str) -> None:
        run.worker.send(m.Kill(run.record.seq, reason))

    def _distrust(self, run: Run) -> None:
        if not run.ending:
            _log.error("%s did not end a run in time; its link is cut", run.worker.name)
            run.worker.drop()

    # -- Helpers -------------------------------------------------------------------------------
    def _later(self, run: Run, seconds: float, action: Any) -> None:
        run.timers.append(asyncio.get_running_loop().call_later(seconds, action))

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run something beside everything else; its failure is logged."""
        task = asyncio.create_task(work)
        self._must(task)
        return task

    def _must(self, future: "asyncio.Future[None]") -> None:
        """Hold on to a future, and tell if it fails."""
        self._tasks.add(future)
        future.add_done_callback(self._done)

    def _done(self, future: "asyncio.Future[Any]") -> None:
        self._tasks.discard(future)
        error = None if future.cancelled() else future.exception()
        # These are answers to a request; anything else is a mistake of ours.
        answers = KernelAwayError, SyscallError, Problem, StorageError
        if error is not None and not isinstance(error, answers):
            _log.error("a run's task failed", exc_info=error)

    async def _wait_until_idle(self) -> None:
        if waiting := [run.over for run in self._live.values()]:
            await asyncio.wait(waiting)

    async def _wait_until_known(self) -> None:
        """Wait until every run has ended, and is stored if that can be; not for long."""
        if waiting := [run.known for run in self._live.values()]:
            await asyncio.wait(waiting, timeout=_KILL_GRACE_SECONDS)


async def keep_end(
    store: Store,
    run: Run,
    ended: Record,
    row: tuple[int, bytes],
    ledger: RunUsage,
    put_off: Callable[[StorageError], None],
) -> int | None:
    """Store a run's end and return its size; None: a run that passes is kept only if it failed.

    What it used is counted in either case. While the storage fails it is tried again; `put_off`
    hears of each failure.
    """
    if run.passing and ((ended.status, ended.exit_code) == ("exited", 0) or run.unwanted):
        ledger.count(ended.tenant, ended.usage or {})
        return None
    begun = run.record if run.passing else None  # the others' are there since they began
    packed = run.trace.pack() if run.trace else None

    def keep(connection: Connection) -> int:
        if begun is not None:
            insert_run(connection, begun)
        return store_end(connection, ended, row, packed)

    size = await store.insist(keep, ended.tenant, put_off)
    if not run.passing:
        run.journal.stored()
    return size


_LOOK_SECONDS = 1.0
_GRACE_SECONDS = 1.0  # the worker ends a run at its wall limit; this much later we do


class Deadlines:
    """Looks after live runs, by their ids; `kill` ends one for a reason."""

    def __init__(self, live: dict[str, Run], kill: Callable[[Run, str], None]) -> None:
        self._live = live
        self._kill = kill
        self._timer: asyncio.TimerHandle | None = None

    def started(self, run: Run) -> None:
        """A run has begun: its time counts from now."""
        loop = asyncio.get_running_loop()
        run.deadline = loop.time() + run.record.limits["wall_ms"] / 1000 + _GRACE_SECONDS
        if self._timer is None:
            self._timer = loop.call_later(_LOOK_SECONDS, self._look)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now, self._timer = loop.time(), None
        for run in [run for run in self._live.values() if run.deadline < now]:
            limit = run.record.limits["wall_ms"]
            self._kill(run, f"the run took longer than its limit of {limit} ms")
        if self._live:
            self._timer = loop.call_later(_LOOK_SECONDS, self._look)
