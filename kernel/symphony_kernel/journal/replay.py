"""Replay: does again what a record says, with what happened then in the place of what might now.

It stands where the recorder and the scheduler stand while a kernel runs. The kernel is given the
same frames and executes them as it did; preds end when the record says that they ended, and with
that; allocations end as they ended. Nothing is computed and nothing is sent. So afterwards files,
handles, quotas and waiting calls are what they were when the record was written, to the page.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

import msgpack
import numpy as np

from symphony_kernel.executor.base import Int32
from symphony_kernel.journal import recorder as r
from symphony_kernel.kvfs import KVFS, KVFile
from symphony_kernel.protocol.errno import Errno, KernelBug, SyscallError
from symphony_kernel.scheduler.work import Work


class ReplayedKernel(Protocol):
    """The part of the kernel that a replay drives."""

    def replay_frame(self, peer: str, body: bytes) -> None:
        """Take a peer's frame."""

    def replay_sent(self, peer: str, body: bytes) -> None:
        """A frame was sent: a peer that has not acknowledged it will be sent it again."""

    def happen(self, what: str, arguments: list[object]) -> None:
        """Do what no peer said."""


class ReplayError(Exception):
    """The records do not fit the state that they begin from."""


class Replay:
    """Applies records, one after the other. It is the kernel's witness and work queue meanwhile."""

    def __init__(self, kernel: ReplayedKernel, kvfs: KVFS) -> None:
        self._kernel = kernel
        self._kvfs = kvfs
        self._time = 0.0
        self._events: deque[int] = deque()
        self._works: dict[int, Work] = {}  # by number: submitted, and not done
        self._files: dict[int, KVFile] = {}  # by number, of these works
        self.inside = 0
        self.replaying = True

    def works(self) -> list[Work]:
        """Return what was submitted and is not done, in order."""
        return list(self._works.values())

    def resume(self, works: list[Work]) -> None:
        """Begin with works that were submitted before the first record."""
        for work in works:
            self.submit(work)

    def apply(self, record: bytes) -> None:
        """Do what a record says.

        Raises:
            ReplayError: it cannot have happened.
        """
        (self._time,) = r.TIME.unpack_from(record)
        entries = list(_entries(record))
        for index, (kind, name, body) in enumerate(entries):
            if kind == r.EVENTS:
                self._events.extend(np.frombuffer(body, np.int64).tolist())
                self._run_events()
                continue
            # What followed may have happened while it was done.
            following = entries[index + 1] if index + 1 < len(entries) else None
            if following is not None and following[0] == r.EVENTS:
                self._events.extend(np.frombuffer(following[2], np.int64).tolist())
                entries[index + 1] = (r.EVENTS, "", b"")
            self._do(kind, name, body)
            self._run_events()

    def _do(self, kind: int, name: str, body: bytes) -> None:
        if kind == r.SENT:
            self._kernel.replay_sent(name, body)
        elif kind == r.FRAME:
            self._kernel.replay_frame(name, body)
        elif kind == r.HAPPENED:
            self._kernel.happen(name, msgpack.unpackb(body))
        else:
            raise ReplayError(f"an entry of kind {kind}")

    # -- Events ----------------------------------------------------------------------------------
    def _run_events(self) -> None:
        events = self._events
        while events:
            kind = events[0]
            if kind & r.INSIDE:
                raise ReplayError(f"an event of kind {kind & ~r.INSIDE} that nothing led to")
            self._run(kind)

    def _run_inside(self, *kinds: int) -> None:
        """Do what happened within what the kernel does now."""
        events = self._events
        while events and events[0] & r.INSIDE and events[0] & ~r.INSIDE in kinds:
            self._run(events[0] & ~r.INSIDE)

    def _run(self, kind: int) -> None:
        events = self._events
        events.popleft()
        if kind in (r.EVICTED, r.LOST):
            pages = np.array([events.popleft() for _ in range(events.popleft())], np.int32)
            if kind == r.EVICTED:
                self._kvfs.prefix_cache.give_up(pages)
            else:
                self._kvfs.lose_pages(pages)
            return
        numbers = [events.popleft() for _ in range(r.SIZES[kind])]
        if kind == r.RESERVED:
            self._file(numbers[0]).reserve(numbers[1])
        elif kind == r.UNRESERVED:
            self._file(numbers[0]).unreserve()
        elif kind == r.DONE:
            self._done(*numbers)
        else:
            raise SyscallError(Errno(numbers[0]))

    def _file(self, number: int) -> KVFile:
        file = self._files.get(number)
        if file is None:
            raise ReplayError(f"file {number} has no pred")
        return file

    def _done(self, number: int, value: int) -> None:
        work = self._works.get(number)
        if work is None:
            raise ReplayError(f"pred {number} has ended already, or was never made")
        self._forget(work)
        if value < 0:
            work.done(value)
            return
        if work.options.keep:
            work.file.commit(work.tokens, work.positions, work.options.parents)
        work.done(value.to_bytes(4, "little"))

    # -- As the work queue -------------------------------------------------------------------------
    def submit(self, work: Work) -> None:
        """Note a pred."""
        assert isinstance(work.file, KVFile)
        work.finished = False
        self._works[work.number] = work
        self._files[work.file.number] = work.file
        self._run_inside(r.RESERVED, r.EVICTED)

    def cancel(self, work: Work) -> None:
        """End a pred as it was ended."""
        if not work.finished:
            self._forget(work)
            self._run_inside(r.UNRESERVED)
            work.done(-Errno.ECANCELED)

    def forget(self, root: int, instance: int | None = None) -> None:
        """Drop the works of an instance or of a LIP."""
        gone = [
            work
            for work in self._works.values()
            if work.root == root and instance in (None, work.instance)
        ]
        self._run_inside(r.UNRESERVED)
        for work in gone:
            self._forget(work)

    def trace(self, root: int) -> None:
        """Nothing is traced now; the kernel asks again."""

    def _forget(self, work: Work) -> None:
        assert isinstance(work.file, KVFile)
        work.finished = True
        del self._works[work.number]
        del self._files[work.file.number]

    # -- As the witness ----------------------------------------------------------------------------
    def now(self) -> float:
        """Return the time of the record."""
        return self._time

    def allocating(self, step: bool) -> bool:
        """Let the allocation end as it did; SyscallError when it found no room."""
        if not step:
            self._run_inside(r.EVICTED, r.REFUSED)
        return True

    def commit(self) -> None:
        """Nothing: it is written down already."""

    def abandon(self) -> None:
        """Nothing: the kernel has gone wrong, and `apply` finds out."""

    def frame(self, peer: bytes, body: bytes) -> None:
        """It is a frame of the record."""

    def happened(self, what: bytes, arguments: bytes) -> None:
        """It is in the record."""

    def sent(self, peer: bytes, body: bytes, leave: Callable[[], None]) -> None:
        """What was sent then is in the record."""

    def done(self, work: int, value: int) -> None:
        """It is in the record, as all that follows."""

    def refused(self, errno: Errno) -> None:
        """It is in the record."""

    def evicted(self, pages: Int32) -> None:
        """It is in the record."""

    def reserved(self, file: KVFile, n: int) -> None:
        """It is in the record."""

    def unreserved(self, file: KVFile) -> None:
        """It is in the record."""

    def lost(self, pages: Int32) -> None:
        """It is in the record."""


def _entries(record: bytes) -> Iterator[tuple[int, str, bytes]]:
    at = r.TIME.size
    while at < len(record):
        kind, name_size, size = r.HEADER.unpack_from(record, at)
        at += r.HEADER.size
        name = record[at : at + name_size].decode()
        at += name_size
        yield kind, name, record[at : at + size]
        at += size
    if at != len(record):
        raise KernelBug("a record has half an entry")
