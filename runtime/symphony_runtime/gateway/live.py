"""A live run: its record, its worker, and what it has done so far."""

import asyncio
import secrets
import time
from collections import Counter

from symphony_kernel.protocol import messages as m

from symphony_runtime.gateway.journal import Journal
from symphony_runtime.gateway.links import Worker
from symphony_runtime.gateway.programs import Program
from symphony_runtime.gateway.run import Record, RunRequest, now_ms
from symphony_runtime.gateway.store import Store
from symphony_runtime.gateway.tape import Listener, Tape


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
        self.record = record
        self.admitted = time.monotonic()
        self.program = program
        self.worker = worker
        self.passing = listener is not None  # its messages go to its client, and it is not kept
        self.journal: Journal = (
            Tape(store, record.seq, self._credit, listener)
            if listener
            else Journal(store, record.seq, self._credit)
        )
        self.instances = {record.seq: program}
        self.child_ends: set[asyncio.Task[None]] = set()
        self.kernel_usage: Counter[str] = Counter()
        self.started = False
        self.ending = False
        self.unwanted = False  # its client has gone: how it ends matters to nobody
        self.log_bytes = 0
        self.inbox_bytes = 0  # delivered and not received yet
        self.inbox_messages = 0
        self.messages = 0
        self.kill_reason: str | None = None
        self.verdict: str | None = None  # why the server failed it, whatever the worker says
        self.timers: list[asyncio.TimerHandle] = []
        self.stored: asyncio.Future[None]  # that it has begun; there once it is started
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def _credit(self, taken: int) -> None:
        self.worker.send(m.Credit(self.record.seq, taken))


def new_record(seq: int, tenant: str, program: Program, entry: str, request: RunRequest) -> Record:
    """Return the record of a run that is about to begin."""
    return Record(
        seq=seq,
        id=f"run_{secrets.token_hex(12)}",
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
