"""Recovery: restores the kernel from its journal, and starts a new journal.

    found    snapshot -> replay of the records -> empty device, requests queued again
    then     a new snapshot -> one record a turn -> a snapshot now and then to keep the log short

Afterwards everything that a peer can ask about is as it was. Only pages have no content yet. A pred
that was running is computed again: no peer has seen its result.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from symphony_kernel.journal.hooks import JournalHooks
from symphony_kernel.journal.log import Log
from symphony_kernel.journal.recorder import Recorder
from symphony_kernel.journal.replay import Replay, ReplayedKernel
from symphony_kernel.journal.snapshot import SnapshotClass, Snapshotter
from symphony_kernel.journal.snapshot_classes import CONSTANTS, MANY, SINGLE
from symphony_kernel.journal.store import Found, Store
from symphony_kernel.kvfs.filesystem import KVFS
from symphony_kernel.processes.table import ProcessTable, RequestQueue
from symphony_kernel.protocol.errno import KernelBug
from symphony_kernel.syscalls.pending import CallContext, Pred

LOG_BYTES = 8 << 20  # of records, until the next snapshot: two seconds to replay
LOG_BYTES_MAX = 256 << 20  # until a snapshot that does not wait for `_STALL_SHARE`
_STALL_SHARE = 0.02  # of the time that snapshots may take

_log = logging.getLogger(__name__)


class NoRoomError(Exception):
    """A journal cannot be written."""


@dataclass(slots=True)
class KernelState:
    """The snapshot's part of the kernel itself."""

    peers: list[list[Any]] = field(default_factory=list)  # [name, session, received, sent, kept]
    checks: list[int] = field(default_factory=list)


@dataclass(slots=True)
class JournalStatistics:
    """Counters since the start; times in milliseconds. Their names reach the metrics."""

    records: int = 0
    images: int = 0
    image_bytes: int = 0  # of the last snapshot
    image_ms: float = 0.0  # for which the last snapshot stopped the kernel
    image_ms_max: float = 0.0
    recovered_records: int = 0
    recovery_ms: float = 0.0


class JournaledKernel(ReplayedKernel, Protocol):
    """The part of `kernel.Kernel` that recovery needs."""

    def set_hooks(self, hooks: JournalHooks | None) -> None: ...
    def capture_state(self) -> KernelState: ...
    def restore_state(self, state: KernelState) -> None: ...
    def resume(self) -> None: ...
    def flush(self) -> None: ...


@dataclass(frozen=True, slots=True)
class JournaledParts:
    """The parts that a snapshot contains.

    `others` are further roots by name. `code` are objects that snapshots refer to by name.
    """

    kvfs: KVFS
    processes: ProcessTable
    turns: CallContext
    scheduler: RequestQueue
    frames: int
    now: Callable[[], float]
    others: Mapping[str, object]
    code: Mapping[str, object]


class JournalRecovery:
    """One kernel's journal. With `threads` snapshots are written in a thread."""

    def __init__(
        self,
        kernel: JournaledKernel,
        parts: JournaledParts,
        store: Store,
        log_bytes: int = LOG_BYTES,
        threads: bool = True,
    ) -> None:
        self._kernel, self._parts, self._store = kernel, parts, store
        self._log_bytes = log_bytes
        self._threads = threads
        self._kernel_state = KernelState()
        self._snapshotter = self._make_snapshotter()
        self._log: Log | None = None
        self._recorder: Recorder | None = None
        self._writing = False  # a snapshot
        self._snapshot_time = 0.0  # of the last one
        self._counts = JournalStatistics()

    def _make_snapshotter(self) -> Snapshotter:
        kvfs = self._parts.kvfs
        roots = {
            "remembered": self._kernel_state,  # a name in the file format
            "kvfs": kvfs,
            **kvfs.snapshot_roots(),
            "processes": self._parts.processes,
            "turns": self._parts.turns,
            **self._parts.others,
        }
        code = {**CONSTANTS, "limits": kvfs.limits, **self._parts.code}
        return Snapshotter((*SINGLE, *MANY, SnapshotClass(KernelState)), roots, code)

    # -- Recovery --------------------------------------------------------------------------------
    def start(self, found: Found | None) -> None:
        """Restore what was found, if anything, and record everything from now on.

        Raises:
            NoRoomError: the kernel can run without a journal, and none is left on disk.
            Exception: the journal is bad in any way; the kernel cannot be used.
        """
        sequence = 1
        if found is not None:
            sequence = self._recover(found)
        snapshot = self.take_snapshot()
        try:
            self._log = self._store.begin(sequence, snapshot)
            if found is not None:
                self._store.recovered(sequence)
        except OSError as error:
            self._store.remove()
            raise NoRoomError(str(error)) from error
        self._recorder = Recorder(self._parts.now, self._log, self._give_up, self._check_size)
        self._kernel.set_hooks(self._recorder)

    def _recover(self, found: Found) -> int:
        began = time.monotonic()
        replay = Replay(self._kernel, self._parts.kvfs)
        records = self.replay(found, replay)
        self._requeue(replay)
        counts = self._counts
        counts.recovered_records, counts.recovery_ms = records, 1000 * (time.monotonic() - began)
        instances = len(self._parts.processes.live)
        _log.warning(
            "recovered %d instances from %d records in %.0f ms",
            instances, records, counts.recovery_ms,
        )  # fmt: skip
        return found.sequence + records

    def replay(self, found: Found, replay: Replay) -> int:
        """Restore the state after the last record; return the number of records."""
        self._snapshotter.read(found.snapshot)
        self._kernel.restore_state(self._kernel_state)
        self._parts.kvfs.detach_device()
        self._kernel.set_hooks(replay)
        self._use(replay)
        replay.resume(self._submitted())
        records = 0
        for record in found.records:
            replay.apply(record)
            records += 1
        return records

    def _requeue(self, replay: Replay) -> None:
        """Start with an empty device, and queue all unfinished requests again."""
        parts = self._parts
        requests = replay.requests()
        self._kernel.flush()  # the last record's replies; it contains those that were sent
        self._kernel.set_hooks(None)
        parts.kvfs.reset_device(parts.frames)
        self._use(parts.scheduler)
        for root in parts.processes.traced():
            parts.scheduler.trace_run(root)
        for request in requests:
            request.shared = 0  # the pages that it shared were reserved ones, which are gone
            parts.scheduler.submit(request)
        self._kernel.resume()

    def _use(self, scheduler: RequestQueue) -> None:
        self._parts.processes.use_scheduler(scheduler)
        self._parts.turns.scheduler = scheduler

    def _submitted(self) -> list[Any]:
        """Return the scheduler's requests, in the order in which they were made."""
        requests = [
            operation.submitted
            for operation in self._parts.processes.operations()
            if isinstance(operation, Pred)
        ]
        return sorted(filter(None, requests), key=lambda request: request.number)

    # -- Snapshots -------------------------------------------------------------------------------
    def take_snapshot(self) -> bytes:
        """Return a snapshot of the current state. Call it after a commit."""
        state = self._kernel.capture_state()
        self._kernel_state.peers, self._kernel_state.checks = state.peers, state.checks
        snapshot = self._snapshotter.write()
        self._kernel_state.peers = []
        return snapshot

    def _check_size(self) -> None:
        """Schedule a snapshot when the log is long."""
        assert self._log is not None
        if self._writing or self._log.size < self._log_bytes:
            return
        stall = self._counts.image_ms / 1000
        early = self._parts.now() - self._snapshot_time < stall / _STALL_SHARE
        if not early or self._log.size > LOG_BYTES_MAX:
            self._writing = True
            asyncio.get_running_loop().call_soon(self.write_snapshot)

    def write_snapshot(self) -> None:
        """Write a snapshot, then drop the records before it."""
        self._kernel.flush()
        if self._recorder is None:
            return  # the journal has been given up
        assert self._log is not None
        self._writing = True
        began = time.monotonic()
        sequence = self._log.sequence
        try:
            snapshot = self.take_snapshot()
        except KernelBug as error:  # a class was not declared: runs need not end for that
            self._give_up(error)
            return
        counts = self._counts
        counts.image_ms = 1000 * (time.monotonic() - began)
        counts.image_ms_max = max(counts.image_ms_max, counts.image_ms)
        counts.images += 1
        counts.image_bytes = len(snapshot)
        self._snapshot_time = self._parts.now()
        try:
            self._log.rotate()
            if not self._threads:
                self._store.write_snapshot(sequence, snapshot)
        except OSError as error:
            self._give_up(error)
            return
        if not self._threads:
            self._snapshot_written(sequence)
            return
        loop = asyncio.get_running_loop()
        writing = loop.run_in_executor(None, self._store.write_snapshot, sequence, snapshot)
        writing.add_done_callback(lambda done: self._snapshot_ended(done, sequence))

    def _snapshot_ended(self, writing: "asyncio.Future[None]", sequence: int) -> None:
        error = None if writing.cancelled() else writing.exception()
        if isinstance(error, OSError):
            self._give_up(error)
        elif error is not None:
            raise error
        elif not writing.cancelled():
            self._snapshot_written(sequence)

    def _snapshot_written(self, sequence: int) -> None:
        self._writing = False
        if self._recorder is not None and self._log is not None:
            self._log.drop_before(sequence)

    def _give_up(self, error: Exception) -> None:
        """Remove the journal: a journal with a gap is useless."""
        if self._recorder is None:
            return
        _log.error("THE JOURNAL IS GIVEN UP: %s; if the kernel dies now, all runs are lost", error)
        self._recorder = None
        self._kernel.set_hooks(None)
        self._store.remove()

    def statistics(self) -> dict[str, Any]:
        self._counts.records = self._recorder.records if self._recorder else self._counts.records
        counts = asdict(self._counts)
        return {
            "journal": self._recorder is not None,
            "journal_log_bytes": self._log.size if self._recorder and self._log else 0,
            **{f"journal_{key}": value for key, value in counts.items()},
        }
