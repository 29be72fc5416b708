"""Replay: does again what a record says, with what happened then in the place of what might now.

It stands where the recorder and the scheduler stand while a kernel runs. The kernel is given the
same frames and executes them as it did; preds end when the record says that they ended, and with
that; allocations end as they ended. Nothing is computed and nothing is sent. So afterwards files,
handles, quotas and waiting calls are what they were when the record was written, to the page.
"""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import msgpack
import numpy as np

from symphony_kernel.executor.base import Int32
from symphony_kernel.journal import recorder as r
from symphony_kernel.journal.hooks import HeldSession
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.filesystem import KVFS
from symphony_kernel.protocol.errno import Errno, KernelBug, SyscallError
from symphony_kernel.request import Request


class ReplayedKernel(Protocol):
    """The part of the kernel that a replay drives."""

    def replay_frame(self, peer: str, body: bytes) -> None:
        """Take a peer's frame."""

    def replay_sent(self, peer: str, body: bytes) -> None:
        """A frame was sent: a peer that has not acknowledged it will be sent it again."""

    def happen(self, what: str, arguments: list[object]) -> None:
        """Do what no peer said."""


class _Event(NamedTuple):
    kind: int
    inside: bool
    numbers: list[int]


class ReplayError(Exception):
    """The records do not fit the state that they begin from."""


class Replay:
    """Applies records, one after the other. It is the kernel's witness and work queue meanwhile."""

    def __init__(self, kernel: ReplayedKernel, kvfs: KVFS) -> None:
        self._kernel = kernel
        self._kvfs = kvfs
        self._time = 0.0
        self._allocations = 0  # for calls, in this record
        self._events: deque[_Event] = deque()
        self._holds: deque[list[int]] = deque()  # of them where calls began to wait
        self._requests: dict[int, Request] = {}  # by number: submitted, and not done
        self._files: dict[int, KVFile] = {}  # by number, of these works and of others that were met
        self._applying = False  # an event, so that nothing is heard of it again
        self.inside = 0
        self.replaying = True

    def requests(self) -> list[Request]:
        """Return what was submitted and is not done, in order."""
        return list(self._requests.values())

    def resume(self, requests: list[Request]) -> None:
        """Begin with works that were submitted before the first record."""
        for request in requests:
            self.submit(request)

    def apply(self, record: bytes) -> None:
        """Do what a record says.

        Raises:
            ReplayError: it cannot have happened.
        """
        (self._time,) = r.TIME.unpack_from(record)
        self._allocations = 0
        entries = list(_entries(record))
        self._gather(entries, 0)
        self._run_events()
        for index, (kind, name, body) in enumerate(entries):
            if kind == r.SENT:
                self._kernel.replay_sent(name, body)
            elif kind != r.EVENTS:
                self._gather(entries, index + 1)
                self._do(kind, name, body)
                self._run_events()

    def _gather(self, entries: list[tuple[int, str, bytes]], start: int) -> None:
        """Take the events up to the next frame: they may have happened while one was executed."""
        for kind, _, body in entries[start:]:
            if kind == r.EVENTS:
                for event in _parse(np.frombuffer(body, np.int64).tolist()):
                    if event.kind == r.HELD:
                        self._holds.append(event.numbers)
                    else:
                        self._events.append(event)
            elif kind != r.SENT:
                return

    def _do(self, kind: int, name: str, body: bytes) -> None:
        if kind == r.FRAME:
            self._kernel.replay_frame(name, body)
        elif kind == r.HAPPENED:
            self._kernel.happen(name, msgpack.unpackb(body))
        else:
            raise ReplayError(f"an entry of kind {kind}")

    # -- Events ----------------------------------------------------------------------------------
    def _run_events(self) -> None:
        while self._events:
            self._run()
        if self._holds:
            raise ReplayError(f"calls did not wait that waited: {self._holds}")

    def _run_inside(self, kind: int, *files: KVFile) -> None:
        """Do what the scheduler did with these files within what the kernel does now.

        What the prefix cache gave up for it comes before it.
        """
        events, numbers = self._events, {file.number for file in files}
        while events and events[0].inside:
            first = next((each for each in events if each.kind != r.EVICTED), None)
            if first is None or first.kind != kind or first.numbers[0] not in numbers:
                return
            while events[0] is not first:
                self._run()
            self._run()

    def _run(self) -> None:
        kind, _, numbers = self._events.popleft()
        if kind == r.DONE:
            self._done(*numbers)
        elif kind == r.REFUSED:
            raise SyscallError(Errno(numbers[0]))
        elif kind == r.EVICTED:
            self._kvfs.prefix_cache.evict_pages(np.array(numbers[1:], np.int32))
        elif kind == r.LOST:
            self._kvfs.lose_pages(np.array(numbers, np.int32))
        else:
            self._applying = True
            if kind == r.RESERVED:
                self._file(numbers[0]).reserve(numbers[1])
            else:
                self._file(numbers[0]).unreserve()
            self._applying = False

    def _file(self, number: int) -> KVFile:
        file = self._files.get(number)
        if file is None:
            file = self._files[number] = self._kvfs.file(number)
        return file

    def _heard(self, kind: int, file: int) -> None:
        """A call has reserved or unreserved by itself: that is the next event, if there is one."""
        events = self._events
        if self._applying or not events or not events[0].inside:
            return
        if (events[0].kind, events[0].numbers[0]) == (kind, file):
            events.popleft()

    def _done(self, number: int, value: int) -> None:
        request = self._requests.get(number)
        if request is None:
            raise ReplayError(f"pred {number} has ended already, or was never made")
        self._forget(request)
        if value < 0:
            request.done(value)
            return
        if request.options.keep:
            request.commit()
        request.done(value.to_bytes(4, "little"))

    # -- As the work queue -------------------------------------------------------------------------
    def submit(self, request: Request) -> None:
        """Note a pred."""
        assert isinstance(request.file, KVFile)
        request.finished = False
        self._requests[request.number] = request
        self._files[request.file.number] = request.file
        self._run_inside(r.RESERVED, request.file)

    def cancel(self, request: Request) -> None:
        """End a pred as it was ended."""
        if not request.finished:
            assert isinstance(request.file, KVFile)
            self._forget(request)
            self._run_inside(r.UNRESERVED, request.file)
            request.done(-Errno.ECANCELED)

    def drop_requests(self, root: int, instance: int | None = None) -> None:
        """Drop the works of an instance or of a LIP."""
        gone = [
            request
            for request in self._requests.values()
            if request.root == root and instance in (None, request.instance)
        ]
        for request in gone:
            self._forget(request)
        self._run_inside(r.UNRESERVED, *(f for w in gone if isinstance(f := w.file, KVFile)))

    def charge_run(self, root: int, tenant: str, weight: float, cost: float) -> None:
        """Nobody waits now: fairness begins anew."""

    def trace_run(self, root: int) -> None:
        """Nothing is traced now; the kernel asks again."""

    def _forget(self, request: Request) -> None:
        assert isinstance(request.file, KVFile)
        request.finished = True
        del self._requests[request.number]
        del self._files[request.file.number]

    # -- As the witness ----------------------------------------------------------------------------
    def now(self) -> float:
        """Return the time of the record."""
        return self._time

    def allocating(self, step: bool) -> bool:
        """Let the allocation end as it did; SyscallError when it found no room."""
        if step:
            return True
        self._allocations += 1
        events, mine = self._events, self._allocations
        while events and events[0].inside:
            kind, _, numbers = events[0]
            if not (kind == r.EVICTED and numbers[0] == mine) and not (
                kind == r.REFUSED and numbers[1] == mine
            ):
                break
            self._run()
        return True

    def commit(self) -> None:
        """Nothing: it is written down already."""

    def abandon(self) -> None:
        """Nothing: the kernel has gone wrong, and `apply` finds out."""

    def frame(self, peer: bytes, body: bytes | memoryview) -> None:
        """It is a frame of the record."""

    def happened(self, what: bytes, arguments: bytes) -> None:
        """It is in the record."""

    def sent(self, session: HeldSession, body: bytes, now: bool) -> None:
        """What was sent then is in the record."""

    def done(self, request: int, value: int) -> None:
        """It is in the record, as all that follows."""

    def held(self, position: int, instance: int) -> None:
        """It is in the record."""

    def holding(self, position: int) -> int:
        """Return with which instance calls began to wait after so many; 0: with none."""
        if not self._holds or self._holds[0][0] != position:
            return 0
        return self._holds.popleft()[1]

    def refused(self, errno: Errno) -> None:
        """It is in the record."""

    def evicted(self, pages: Int32) -> None:
        """It is in the record."""

    def reserved(self, file: int, n: int) -> None:  # noqa: ARG002
        """It is in the record."""
        self._heard(r.RESERVED, file)

    def unreserved(self, file: int) -> None:
        """It is in the record."""
        self._heard(r.UNRESERVED, file)

    def lost(self, pages: Int32) -> None:
        """It is in the record."""


def _parse(numbers: list[int]) -> Iterator[_Event]:
    """Yield the events that an entry has."""
    at = 0
    while at < len(numbers):
        kind, inside = numbers[at] & ~r.INSIDE, bool(numbers[at] & r.INSIDE)
        size = r.SIZES.get(kind)
        if size is None:
            at += 1
            size = numbers[at]
        at += 1
        yield _Event(kind, inside, numbers[at : at + size])
        at += size


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
