"""Replay: executes records again, with the recorded outcome of each nondeterministic event.

It takes the places of the recorder and the scheduler. The kernel handles the same frames as before.
Preds end when and as the record says, and so do allocations. Nothing is computed and nothing is
sent. Afterwards files, handles, quotas and waiting calls are as they were when the record was
written, to the page.
"""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import msgpack
import numpy as np

from symphony_kernel.journal import recorder as r
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.filesystem import KVFS
from symphony_kernel.protocol.errno import Errno, KernelBug, SyscallError
from symphony_kernel.protocol.limits import PAGE_TOKENS
from symphony_kernel.request import Request
from symphony_kernel.scheduler.prefix_sharing import prompt_tokens


class ReplayedKernel(Protocol):
    """The part of `kernel.Kernel` that a replay drives."""

    def replay_frame(self, peer: str, body: bytes) -> None: ...
    def replay_sent(self, peer: str, body: bytes) -> None: ...
    def handle_event(self, what: str, arguments: list[object]) -> None: ...


class _Event(NamedTuple):
    kind: int
    inside: bool  # it happened while the kernel handled a frame or an event
    numbers: list[int]


class ReplayError(Exception):
    """The records do not fit the state."""


class Replay:
    """Applies records. Meanwhile it is the kernel's observer and request queue."""

    def __init__(self, kernel: ReplayedKernel, kvfs: KVFS) -> None:
        self._kernel = kernel
        self._kvfs = kvfs
        self._time = 0.0
        self._allocations = 0  # for calls, in this record
        self._events: deque[_Event] = deque()
        self._holds: deque[list[int]] = deque()  # HELD events: position, instance
        self._requests: dict[int, Request] = {}  # submitted and not done, by number
        self._files: dict[int, KVFile] = {}  # by number: of these requests, and others met so far
        self._applying = False  # an event: what its file then reports is ignored
        self.depth = 0
        self.replaying, self.over = True, False

    def requests(self) -> list[Request]:
        """Return the requests that are not done, in order of submission."""
        return list(self._requests.values())

    def resume(self, requests: list[Request]) -> None:
        """Submit the requests that the snapshot holds, before the first record."""
        for request in requests:
            self.submit(request)

    def apply(self, record: bytes) -> None:
        """Execute one record; ReplayError if it does not fit the state."""
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
        """Queue the events up to the next frame: they may have happened within the current one."""
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
            self._kernel.handle_event(name, msgpack.unpackb(body))
        else:
            raise ReplayError(f"the record has an entry of unknown kind {kind}")

    # -- Events ----------------------------------------------------------------------------------
    def _run_events(self) -> None:
        while self._events:
            self._run()
        if self._holds:
            raise ReplayError(f"recorded holds of calls did not happen: {self._holds}")

    def _run_inside(self, kind: int, *files: KVFile) -> None:
        """Run the next inside event, if it is of this kind and of one of these files.

        Evictions of the prefix cache that made room for it run before it.
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
        elif kind in (r.OFFERED, r.SHARED):
            self._share(kind, *numbers)
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

    def _skip_event(self, kind: int, file: int) -> None:
        """Skip the next event if a call has just done the same to the file by itself."""
        events = self._events
        if self._applying or not events or not events[0].inside:
            return
        if (events[0].kind, events[0].numbers[0]) == (kind, file):
            events.popleft()

    def _share(self, kind: int, number: int, first: int, pages: int = 0) -> None:
        """Offer the first tokens of a request, or let it take cached pages."""
        request = self._request(number)
        file = request.file
        assert isinstance(file, KVFile)
        if kind == r.OFFERED:
            self._kvfs.offer_computed(number, file, request.tokens[:first])
            return
        self._kvfs.share_computed(number, file, prompt_tokens(request), first, pages)
        request.shared += pages * PAGE_TOKENS

    def _request(self, number: int) -> Request:
        request = self._requests.get(number)
        if request is None:
            raise ReplayError(f"request {number} has ended already, or was never submitted")
        return request

    def _done(self, number: int, value: int) -> None:
        request = self._request(number)
        self._remove(request)
        if value < 0:
            request.done(value)
            return
        if request.options.keep:
            request.commit()
        request.done(value.to_bytes(4, "little"))

    # -- As the request queue --------------------------------------------------------------------
    def submit(self, request: Request) -> None:
        assert isinstance(request.file, KVFile)
        request.finished = False
        self._requests[request.number] = request
        self._files[request.file.number] = request.file
        self._run_inside(r.RESERVED, request.file)

    def cancel(self, request: Request) -> None:
        if not request.finished:
            assert isinstance(request.file, KVFile)
            self._remove(request)
            self._run_inside(r.UNRESERVED, request.file)
            request.done(-Errno.ECANCELED)

    def drop_requests(self, root: int, instance: int | None = None) -> None:
        """Drop the requests of an instance, or of a whole run."""
        gone = [
            request
            for request in self._requests.values()
            if request.root == root and instance in (None, request.instance)
        ]
        for request in gone:
            self._remove(request)
        self._run_inside(r.UNRESERVED, *(f for w in gone if isinstance(f := w.file, KVFile)))

    def charge_run(self, root: int, tenant: str, weight: float, cost: float) -> None:
        """Do nothing: no request waits now, and fair shares start anew."""

    def trace_run(self, root: int) -> None:
        """Do nothing: recovery asks for traces again."""

    def trace_fork(self, root: int, file: int, source: int, length: int) -> None:
        """Do nothing: a trace begins anew, and reads its files' tokens."""

    def trace_held(self, request: Request, since: float) -> None:
        """Do nothing: a replay holds no pred back."""

    def _remove(self, request: Request) -> None:
        assert isinstance(request.file, KVFile)
        request.finished = True
        del self._requests[request.number]
        del self._files[request.file.number]

    # -- As the observer -------------------------------------------------------------------------
    def now(self) -> float:
        return self._time

    def allocating(self, step: bool) -> bool:
        """Let the allocation end as recorded. SyscallError: it found no room."""
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

    def holding(self, position: int) -> int:
        if not self._holds or self._holds[0][0] != position:
            return 0
        return self._holds.popleft()[1]

    def reserved(self, file: int, n: int) -> None:  # noqa: ARG002
        self._skip_event(r.RESERVED, file)

    def unreserved(self, file: int) -> None:
        self._skip_event(r.UNRESERVED, file)

    def _ignore(self, *_: object, **__: object) -> None:
        """Record nothing: the records have it."""

    commit = abandon = record_frame = record_event = record_sent = _ignore
    done = held = refused = evicted = lost = offered = shared = _ignore


def _parse(numbers: list[int]) -> Iterator[_Event]:
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
        raise KernelBug("a record ends within an entry")
