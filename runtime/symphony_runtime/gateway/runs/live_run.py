"""A live run: its record, its worker and its state so far."""

import asyncio
import math
import secrets
import time
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.limits import CREDIT_BYTES_MIN, LOG_LINE_BYTES, TENANT_TRACED_RUNS_MAX

from symphony_runtime.gateway.admission.retry_estimates import EventInterval, retry_after
from symphony_runtime.gateway.clock import now_ms
from symphony_runtime.gateway.errors import Problem, problem_of_storage
from symphony_runtime.gateway.links.links import Worker
from symphony_runtime.gateway.programs.store import Program
from symphony_runtime.gateway.runs.children import Children
from symphony_runtime.gateway.runs.events.inbox import Inbox
from symphony_runtime.gateway.runs.events.reader import LOG_CHARACTERS
from symphony_runtime.gateway.runs.events.stream import EphemeralStream, EventStream
from symphony_runtime.gateway.runs.record import PRIORITY_DEFAULT, Record, RunRequest
from symphony_runtime.gateway.runs.trace import RunTrace
from symphony_runtime.gateway.storage.database import StorageError
from symphony_runtime.gateway.storage.store import Store

if TYPE_CHECKING:
    from symphony_runtime.gateway.otlp.runs import RunSpans

_WARNING, _ERROR = 2, 3  # log levels
_REASON_CHARACTERS = 300
_OF_KERNEL = ("kv_tokens", "tokens", "children", "child_depth")  # the kernel's


class Run:
    """A live run. `instances` are its own and its children's, all in `worker`."""

    def __init__(
        self,
        record: Record,
        program: Program,
        worker: Worker,
        store: Store,
        listener: Inbox | None = None,
    ) -> None:
        """Admit a run; with a listener it is ephemeral: its messages are not stored.

        Raises Problem: 429, 507: there is no disk space for a run that is stored.
        """
        self.ephemeral = listener is not None
        if not self.ephemeral:
            store.disk.check(record.tenant)
        self.record = record
        self.admitted = time.monotonic()
        self.program = program
        self.worker = worker
        self._disk = store.disk
        credit = _Credit(worker, record.seq).taken
        self.events: EventStream = (
            EphemeralStream(store, record.seq, credit, listener, record.tenant)
            if listener
            else EventStream(store, record.seq, credit, store.crash_log, record.tenant)
        )
        self.instances = {record.seq: program}
        self.children = Children(record.seq)
        self.channels: set[str] = set()  # names that it has used
        self.child_ends: set[asyncio.Task[None]] = set()
        self.kernel_usage: Counter[str] = Counter()
        self.registered = False  # with the kernel
        self.started = False  # at its worker
        self.ending = False
        self.end: Record | None = None  # once known; becomes `record` when it is stored
        self.unstored: Problem | None = None  # why the first attempt to store the end failed
        self.asked: str | None = None  # of a request that is kept, until it is an event
        self.attached = False  # its messages are kept nowhere: only those that wait are bounded
        self.unwanted = False  # its client has gone: a failure need not be stored
        self.trace: RunTrace | None = None  # if the request asked for one
        self.spans: RunSpans | None = None  # if it is sampled for the operator's traces
        self.log_bytes = 0
        self.first_error = ""  # of its log; the reason of an exit with another code than 0
        self.inbox_bytes = 0  # delivered to the worker, not received by the program yet
        self.inbox_messages = 0
        self.receive_interval = EventInterval()  # of messages, by the program
        self.messages = 0
        self.kill_reason: str | None = None
        self.verdict: str | None = None  # why the server failed it; overrides the worker's status
        self.deadline = math.inf  # in the loop's time, set at the start
        self.kill_timer: asyncio.TimerHandle | None = None
        self.stored: asyncio.Future[None] | None = None  # the record at its start; None: ephemeral
        loop = asyncio.get_running_loop()
        self.known: asyncio.Future[None] = loop.create_future()  # the end, maybe unstored
        self.over: asyncio.Future[None] = loop.create_future()  # it has ended and is stored

    async def start_stored(self) -> bool:
        """Return whether the start is stored, once that is known."""
        if self.stored is None:
            return True
        await asyncio.wait([self.stored])
        return self.stored.exception() is None

    def is_kept(self, end: Record) -> bool:
        """Return whether the run is stored that has ended so."""
        succeeded = (end.status, end.exit_code) == ("exited", 0)
        return not (self.ephemeral and (succeeded or self.unwanted))

    def note_unstored(self, error: StorageError) -> None:
        """Note that the end could not be stored: until it is, readers get this answer."""
        assert self.end is not None
        problem = problem_of_storage(error)
        assert problem is not None
        if self.unstored is None and self.ephemeral:
            self.events.finish(self.end.finals())  # its client gets its answer all the same
        self.record.status = "ending"
        self.record.reason = f"it has ended, which is not stored yet: {problem.detail}"
        problem.detail = f"the run has ended, which is not stored yet: {problem.detail}"
        problem.fields["id"] = self.record.id
        problem.headers["Location"] = f"/v1/runs/{self.record.id}"
        self.unstored = problem
        if not self.known.done():
            self.known.set_result(None)

    def mark_over(self) -> None:
        """Note that the run has ended and is stored, unless it is ephemeral."""
        if not self.known.done():
            self.known.set_result(None)
        self.over.set_result(None)

    def kernel_options(self) -> dict[str, Any]:
        limits = self.record.limits
        return {
            "weight": 2.0 ** (self.record.priority - PRIORITY_DEFAULT),
            **{name: limits[name] for name in _OF_KERNEL},
            **({"trace": True} if self.trace else {}),
        }

    def inbox_full(self, size: int) -> str | None:
        """Return the limit that a message of `size` bytes would exceed now, or None."""
        limits = self.record.limits
        if self.inbox_bytes + size > limits["inbox_bytes"]:
            return "inbox_bytes"
        return "messages" if self.inbox_messages >= limits["messages"] else None

    def exceeded_limit(self, size: int) -> str | None:
        """Return why the last message, of `size` bytes, ends the run, or None.

        The worker checks these limits as well; the gateway does not rely on it.
        """
        limits = self.record.limits
        if self.attached:
            assert isinstance(self.events, EphemeralStream)
            flooded = self.events.is_flooded_by(size)
            return "its worker sent more than may wait for its client" if flooded else None
        if self.events.sent + size > (most := limits["output_bytes"]):
            return f"output limit: it sent more than {most} bytes"
        if self.messages > (most := limits["messages"]):
            return f"message limit: it sent more than {most} messages"
        if not self.ephemeral and self._disk.exceeds_limit(self.record.tenant, size):
            return "disk limit: its tenant holds as many bytes on disk as it may"
        return None

    def append_log_line(self, level: object, line: bytes) -> None:
        """Append a log line up to the log limit; a long line becomes several events."""
        if not self._charge_log(len(line)):
            return
        known = level if level in (0, 1, 2, 3) else 1
        text = line.decode("utf-8", "replace")
        if known == _ERROR and not self.first_error:
            self.first_error = text[:_REASON_CHARACTERS]
        for start in range(0, len(text) or 1, LOG_CHARACTERS):
            part = text[start : start + LOG_CHARACTERS]
            self.events.append("log", {"level": known, "text": part})

    def append_notice(self, text: str) -> None:
        """Append a warning of the server to the log, up to the log limit."""
        if self._charge_log(len(text)):
            self.events.append("log", {"level": _WARNING, "text": text, "by": "server"})

    def _charge_log(self, size: int) -> bool:
        most = self.record.limits["log_bytes"] + 2 * LOG_LINE_BYTES
        fits = self.log_bytes + size <= most
        self.log_bytes += size + LOG_LINE_BYTES if fits else 0
        return fits


def check_stored(run: Run) -> None:
    """Check that the run's end is not one that could not be stored; Problem 409."""
    if run.unstored is not None:
        raise Problem(409, "run-ended", run.unstored.detail, retry_after=1)


class _Credit:
    """Tells the worker how many message bytes the readers have taken.

    An event stream holds it in place of the run, which holds the stream. A reference cycle would
    keep the events of ended runs until a full garbage collection, tens of thousands of runs later.
    """

    def __init__(self, worker: Worker, instance: int) -> None:
        self._worker = worker
        self._instance = instance
        self._unsent = 0  # bytes

    def taken(self, size: int) -> None:
        # In batches: a message for each token of a stream would wake the worker each time.
        self._unsent += size
        if self._unsent >= CREDIT_BYTES_MIN:
            self._worker.send(m.Credit(self._instance, self._unsent))
            self._unsent = 0


def admit_trace(live: Iterable[Run], tenant: str) -> None:
    """Raise the Problem 429 when a tenant is at its limit of live traced runs."""
    traced = [run for run in live if run.trace and run.record.tenant == tenant]
    if len(traced) >= TENANT_TRACED_RUNS_MAX:
        detail = f"the tenant has {len(traced)} live traced runs, its limit"
        # Estimate: each lasts as long again as it has lasted, and one of them ends first.
        ages = [time.monotonic() - run.admitted for run in traced]
        seconds = retry_after(sum(ages) / len(ages) / len(ages))
        raise Problem(429, "too-many-traces", detail, retry_after=seconds, limit=len(traced))


def new_run_id() -> str:
    return f"run_{secrets.token_hex(12)}"


def new_record(
    seq: int,
    tenant: str,
    program: Program,
    entry: str,
    request: RunRequest,
    run_id: str | None = None,
    model: str = "",
) -> Record:
    """Return the record of a run of a model that is about to start, with `run_id` or a new id."""
    return Record(
        seq=seq,
        id=run_id or new_run_id(),
        tenant=tenant,
        program=program.id,
        program_name=program.name,
        entry=entry,
        status="queued",
        exit_code=None,
        reason="",
        priority=request.priority,
        limits=request.limits,
        usage=None,
        created_ms=now_ms(),
        ended_ms=None,
        model=model,
    )
