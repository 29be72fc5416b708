"""The keeper: brings the kernel back from its journal, and sees to it that there is one.

    found    image -> replay of the records -> the device is empty, works are queued again
    then     a new image -> records, one a turn -> images now and then, so that the log stays short

Afterwards everything that a peer can ask about is as it was, and only pages have no content yet. A
pred that was being computed is computed again: nobody had heard of it.
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

LOG_BYTES = 8 << 20  # of records, after which there is a new image: two seconds to replay
LOG_BYTES_MAX = 256 << 20  # even when the last image has only just been made
_STALL_SHARE = 0.02  # of the time may go into images

_log = logging.getLogger(__name__)


class NoRoomError(Exception):
    """A journal cannot be written."""


@dataclass(slots=True)
class Remembered:
    """What of the kernel itself outlives it: [name, session, received, sent, kept] of each peer."""

    peers: list[list[Any]] = field(default_factory=list)
    checks: list[int] = field(default_factory=list)


@dataclass(slots=True)
class JournalStatistics:
    """What has been written since the start; times in milliseconds."""

    records: int = 0
    images: int = 0
    image_bytes: int = 0  # the last one's
    image_ms: float = 0.0  # that the kernel stood still for the last one
    image_ms_max: float = 0.0
    recovered_records: int = 0
    recovery_ms: float = 0.0


class JournaledKernel(ReplayedKernel, Protocol):
    """What the keeper needs of a kernel."""

    def listen_with(self, hooks: JournalHooks | None) -> None:
        """Let a scribe hear all that happens, or nobody."""

    def remember(self) -> Remembered:
        """Return what outlives it."""

    def recall(self, remembered: Remembered) -> None:
        """Be as that says."""

    def resume(self) -> None:
        """Go on with what a replay has left under way; peers without a session are gone."""

    def flush(self) -> None:
        """Commit the turn."""


@dataclass(frozen=True, slots=True)
class JournaledParts:
    """What of a kernel is kept. `others` are roots beside these, by name; `code` is referred to."""

    kvfs: KVFS
    processes: ProcessTable
    turns: CallContext
    scheduler: RequestQueue
    frames: int
    now: Callable[[], float]
    others: Mapping[str, object]
    code: Mapping[str, object]


class JournalRecovery:
    """One kernel's journal. `run` does in a thread what blocks; None: at once."""

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
        self._remembered = Remembered()
        self._imager = self._make_imager()
        self._log: Log | None = None
        self._recorder: Recorder | None = None
        self._writing = False
        self._imaged = 0.0  # when the last image was made
        self._counts = JournalStatistics()

    def _make_imager(self) -> Snapshotter:
        kvfs = self._parts.kvfs
        roots = {
            "remembered": self._remembered,
            "kvfs": kvfs,
            **kvfs.snapshot_roots(),
            "processes": self._parts.processes,
            "turns": self._parts.turns,
            **self._parts.others,
        }
        code = {**CONSTANTS, "limits": kvfs.limits, **self._parts.code}
        return Snapshotter((*SINGLE, *MANY, SnapshotClass(Remembered)), roots, code)

    # -- Coming back -----------------------------------------------------------------------------
    def start(self, found: Found | None) -> None:
        """Be what was found, if anything was, and write down everything from now on.

        Raises:
            NoRoomError: the kernel can go on without a journal, and nothing is left of one.
            Exception: whatever a bad journal leads to; the kernel cannot be used.
        """
        sequence = 1
        if found is not None:
            sequence = self._recover(found)
        image = self.image()
        try:
            self._log = self._store.begin(sequence, image)
            if found is not None:
                self._store.recovered(sequence)
        except OSError as error:
            self._store.remove()
            raise NoRoomError(str(error)) from error
        self._recorder = Recorder(self._parts.now, self._log, self._lost, self._is_full)
        self._kernel.listen_with(self._recorder)

    def _recover(self, found: Found) -> int:
        began = time.monotonic()
        replay = Replay(self._kernel, self._parts.kvfs)
        records = self.replay(found, replay)
        self._go_on(replay)
        counts = self._counts
        counts.recovered_records, counts.recovery_ms = records, 1000 * (time.monotonic() - began)
        instances = self._parts.processes.statistics().instances
        _log.warning(
            "came back with %d instances from %d records in %.0f ms",
            instances, records, counts.recovery_ms,
        )  # fmt: skip
        return found.sequence + records

    def replay(self, found: Found, replay: Replay) -> int:
        """Be what there was after the last record; return how many there were."""
        self._imager.read(found.image)
        self._kernel.recall(self._remembered)
        self._parts.kvfs.detach_device()
        self._kernel.listen_with(replay)
        self._use(replay)
        replay.resume(self._submitted())
        records = 0
        for record in found.records:
            replay.apply(record)
            records += 1
        return records

    def _go_on(self, replay: Replay) -> None:
        """Begin with an empty device, and queue again what it computed."""
        parts = self._parts
        requests = replay.requests()
        self._kernel.flush()  # the last record's answers: what was sent of them is in the record
        self._kernel.listen_with(None)
        parts.kvfs.reset_device(parts.frames)
        self._use(parts.scheduler)
        for root in parts.processes.traced():
            parts.scheduler.trace_run(root)
        for request in requests:
            parts.scheduler.submit(request)
        self._kernel.resume()

    def _use(self, scheduler: RequestQueue) -> None:
        self._parts.processes.use_scheduler(scheduler)
        self._parts.turns.scheduler = scheduler

    def _submitted(self) -> list[Any]:
        """Return the works that the scheduler had, in the order in which they were made."""
        requests = [
            operation.submitted
            for operation in self._parts.processes.operations()
            if isinstance(operation, Pred)
        ]
        return sorted(filter(None, requests), key=lambda request: request.number)

    # -- Images ----------------------------------------------------------------------------------
    def image(self) -> bytes:
        """Return all that is kept, as it is now: after a commit."""
        remembered = self._kernel.remember()
        self._remembered.peers, self._remembered.checks = remembered.peers, remembered.checks
        image = self._imager.write()
        self._remembered.peers = []
        return image

    def _is_full(self) -> None:
        """The turn's record has been written: is it time for an image?"""
        assert self._log is not None
        if self._writing or self._log.size < self._log_bytes:
            return
        stall = self._counts.image_ms / 1000
        early = self._parts.now() - self._imaged < stall / _STALL_SHARE
        if not early or self._log.size > LOG_BYTES_MAX:
            self._writing = True
            asyncio.get_running_loop().call_soon(self.snapshot)

    def snapshot(self) -> None:
        """Make an image, and forget the records before it once it is written."""
        self._kernel.flush()
        if self._recorder is None:
            return  # there is no journal any more
        assert self._log is not None
        self._writing = True
        began = time.monotonic()
        sequence = self._log.sequence
        try:
            image = self.image()
        except KernelBug as error:  # something in it was not declared: runs need not end for that
            self._lost(error)
            return
        counts = self._counts
        counts.image_ms = 1000 * (time.monotonic() - began)
        counts.image_ms_max = max(counts.image_ms_max, counts.image_ms)
        counts.images += 1
        counts.image_bytes = len(image)
        self._imaged = self._parts.now()
        try:
            self._log.rotate()
            if not self._threads:
                self._store.write_image(sequence, image)
        except OSError as error:
            self._lost(error)
            return
        if not self._threads:
            self._written(sequence)
            return
        loop = asyncio.get_running_loop()
        writing = loop.run_in_executor(None, self._store.write_image, sequence, image)
        writing.add_done_callback(lambda done: self._ended(done, sequence))

    def _ended(self, writing: "asyncio.Future[None]", sequence: int) -> None:
        error = None if writing.cancelled() else writing.exception()
        if isinstance(error, OSError):
            self._lost(error)
        elif error is not None:
            raise error
        elif not writing.cancelled():
            self._written(sequence)

    def _written(self, sequence: int) -> None:
        self._writing = False
        if self._recorder is not None and self._log is not None:
            self._log.forget(sequence)

    # -- Without ---------------------------------------------------------------------------------
    def _lost(self, error: Exception) -> None:
        """Something cannot be written: a journal that lacks it is worth nothing."""
        if self._recorder is None:
            return
        _log.error(
            "THE JOURNAL IS GIVEN UP: %s; a kernel that dies now takes all runs along", error
        )
        self._recorder = None
        self._kernel.listen_with(None)
        self._store.remove()

    def statistics(self) -> dict[str, Any]:
        """Return what has been written."""
        self._counts.records = self._recorder.records if self._recorder else self._counts.records
        counts = asdict(self._counts)
        return {
            "journal": self._recorder is not None,
            "journal_log_bytes": self._log.size if self._recorder and self._log else 0,
            **{f"journal_{key}": value for key, value in counts.items()},
        }
