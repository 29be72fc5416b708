"""A live run: its record, its worker, and what it has done so far."""

import asyncio
import math
import secrets
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any, Protocol

from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.limits import CREDIT_BYTES_MIN, LOG_LINE_BYTES, TENANT_TRACED_RUNS_MAX

from symphony_runtime.gateway.admission.pace import Pace, retry_after
from symphony_runtime.gateway.clock import now_ms
from symphony_runtime.gateway.errors import Problem, problem_of_storage
from symphony_runtime.gateway.links.links import Worker
from symphony_runtime.gateway.programs.store import Program
from symphony_runtime.gateway.runs.events.reader import LOG_CHARACTERS
from symphony_runtime.gateway.runs.events.stream import EventStream
from symphony_runtime.gateway.runs.events.unsaved import Listener, UnsavedEvents
from symphony_runtime.gateway.runs.record import PRIORITY_DEFAULT, Record, RunRequest
from symphony_runtime.gateway.runs.trace import RunTrace
from symphony_runtime.gateway.runs.usage import RunUsage
from symphony_runtime.gateway.storage.database import StorageError
from symphony_runtime.gateway.storage.store import Store

_OF_KERNEL = ("kv_tokens", "tokens", "children", "child_depth")  # limits that it counts, too


class Run:
    """A live run. `instances` are its own and its children's, all in `worker`."""

    def __init__(
        self,
        record: Record,
        program: Program,
        worker: Worker,
        store: Store,
        listener: Listener | None = None,
    ) -> None:
        """Admit a run.

        Raises:
            Problem: 429, 507: it would be kept, and there is no room for it on the disk.
        """
        self.passing = listener is not None  # its messages go to its client, and it is not kept
        if not self.passing:
            store.disk.check(record.tenant)
        self.record = record
        self.admitted = time.monotonic()
        self.program = program
        self.worker = worker
        self._disk = store.disk
        credit = _Credit(worker, record.seq).taken
        self.journal: EventStream = (
            UnsavedEvents(store, record.seq, credit, listener)
            if listener
            else EventStream(store, record.seq, credit, store.crash_log, record.tenant)
        )
        self.instances = {record.seq: program}
        self.channels: set[str] = set()  # that it has used
        self.child_ends: set[asyncio.Task[None]] = set()
        self.kernel_usage: Counter[str] = Counter()
        self.registered = False  # with the kernel
        self.started = False  # at its worker
        self.ending = False
        self.end: Record | None = None  # once it is known; `record` has it when it is stored
        self.unstored: Problem | None = None  # why it is not, after the first attempt
        self.unwanted = False  # its client has gone: how it ends matters to nobody
        self.trace: RunTrace | None = None  # where it was asked for
        self.log_bytes = 0
        self.inbox_bytes = 0  # delivered and not received yet
        self.inbox_messages = 0
        self.receiving = Pace()  # of messages by the program
        self.messages = 0
        self.kill_reason: str | None = None
        self.verdict: str | None = None  # why the server failed it, whatever the worker says
        self.deadline = math.inf  # in the loop's time; set once it is started
        self.timers: list[asyncio.TimerHandle] = []
        self.stored: asyncio.Future[None] | None = None  # that it begins; None: it passes
        loop = asyncio.get_running_loop()
        self.known: asyncio.Future[None] = loop.create_future()  # how it has ended, stored or not
        self.over: asyncio.Future[None] = loop.create_future()  # it has ended, and is stored

    def begin(self) -> None:
        """It runs: its readers hear of it."""
        self.journal.append("status", self.record.outcome())

    async def has_begun(self) -> bool:
        """Whether its start was stored, as soon as that is known."""
        if self.stored is None:
            return True
        await asyncio.wait([self.stored])
        return self.stored.exception() is None

    def put_off(self, error: StorageError) -> None:
        """Its end could not be stored: until it is, readers are told so."""
        assert self.end is not None
        problem = problem_of_storage(error)
        assert problem is not None
        if self.unstored is None and self.passing:
            self.journal.finish(self.end.finals())  # its client has its answer all the same
        self.record.status = "ending"
        self.record.reason = f"it has ended, which is not stored yet: {problem.detail}"
        problem.detail = f"the run has ended, which is not stored yet: {problem.detail}"
        problem.fields["id"] = self.record.id
        problem.headers["Location"] = f"/v1/runs/{self.record.id}"
        self.unstored = problem
        if not self.known.done():
            self.known.set_result(None)

    def leave(self) -> None:
        """It has ended, and is stored as far as it is kept."""
        if not self.known.done():
            self.known.set_result(None)
        self.over.set_result(None)

    def kernel_options(self) -> dict[str, Any]:
        """Return the options of `Register`."""
        limits = self.record.limits
        return {
            "weight": 2.0 ** (self.record.priority - PRIORITY_DEFAULT),
            **{name: limits[name] for name in _OF_KERNEL},
            **({"trace": True} if self.trace else {}),
        }

    def inbox_full(self, size: int) -> str | None:
        """Return the limit by which a message of so many bytes is too much for now, if one is."""
        limits = self.record.limits
        if self.inbox_bytes + size > limits["inbox_bytes"]:
            return "inbox_bytes"
        return "messages" if self.inbox_messages >= limits["messages"] else None

    def sent_too_much(self, size: int) -> str | None:
        """Return the reason to end it for its last message, which is counted; None: there is none.

        The worker looks as well; we do not rely on it.
        """
        limits = self.record.limits
        if self.journal.sent + size > (most := limits["output_bytes"]):
            return f"output limit: it sent more than {most} bytes"
        if self.messages > (most := limits["messages"]):
            return f"message limit: it sent more than {most} messages"
        if not self.passing and self._disk.ends_run(self.record.tenant, size):
            return "disk limit: its tenant holds as many bytes on disk as it may"
        return None

    def take_line(self, level: object, line: bytes) -> None:
        """Keep a line of its log, as far as there is room; a long one as several events."""
        most = self.record.limits["log_bytes"] + 2 * LOG_LINE_BYTES
        if self.log_bytes + len(line) > most:
            return
        self.log_bytes += len(line) + LOG_LINE_BYTES
        known = level if level in (0, 1, 2, 3) else 1
        text = line.decode("utf-8", "replace")
        for start in range(0, len(text) or 1, LOG_CHARACTERS):
            part = text[start : start + LOG_CHARACTERS]
            self.journal.append("log", {"level": known, "text": part})


def check_stored(run: Run) -> None:
    """Check that a run is not one whose end is not stored yet.

    Raises:
        Problem: 409.
    """
    if run.unstored is not None:
        raise Problem(409, "run-ended", run.unstored.detail, retry_after=1)


class _Credit:
    """Tells the worker how much of a run's messages its readers have taken.

    A journal holds it in place of the run, which holds the journal: in a circle the events of
    ended runs would stay until the collector looks at what is old, tens of thousands of runs later.
    """

    def __init__(self, worker: Worker, instance: int) -> None:
        self._worker = worker
        self._instance = instance
        self._untold = 0  # bytes

    def taken(self, size: int) -> None:
        """Readers have taken so many bytes more."""
        # Not for each token of a stream: the worker would wake up once more for each.
        self._untold += size
        if self._untold >= CREDIT_BYTES_MIN:
            self._worker.send(m.Credit(self._instance, self._untold))
            self._untold = 0


class TenantRules(Protocol):
    """What is said of tenants, as far as runs are concerned."""

    ledger: RunUsage  # what they use

    def check(self, tenant: str) -> None:
        """Check that a tenant may begin something; Problem 403 when it is suspended."""


def admit_trace(live: Iterable[Run], tenant: str) -> None:
    """Raise the Problem 429 when a tenant has as many live traced runs as it may have."""
    traced = [run for run in live if run.trace and run.record.tenant == tenant]
    if len(traced) >= TENANT_TRACED_RUNS_MAX:
        detail = f"the tenant has {len(traced)} live traced runs, its limit"
        # About as long as they have lasted, one of them by itself will last yet.
        ages = [time.monotonic() - run.admitted for run in traced]
        seconds = retry_after(sum(ages) / len(ages) / len(ages))
        raise Problem(429, "too-many-traces", detail, retry_after=seconds, limit=len(traced))


def new_run_id() -> str:
    """Return an id that no run has."""
    return f"run_{secrets.token_hex(12)}"


def new_record(
    seq: int,
    tenant: str,
    program: Program,
    entry: str,
    request: RunRequest,
    run_id: str | None = None,
) -> Record:
    """Return the record of a run that is about to begin; `run_id`: if it has an id already."""
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
    )
