"""The recorder: writes one record per turn, before the turn's frames leave.

    frames arrive -> the kernel handles them -> commit: one record -> the turn's frames leave

A record is a list of entries, in the order in which they happened. What the kernel does with a
frame follows from the frame, so only the frame is recorded. Also recorded is what does not follow:
which preds ended and how, when steps took pages, which allocation failed, and the time. `replay`
does it all again.

Frames to peers stay here until the record is written. So a peer never knows more than the journal.
A turn whose record is incomplete has not happened for any peer: the sender sends its frame again.
"""

import logging
import struct
from array import array
from collections.abc import Callable
from typing import Final

from symphony_kernel.executor.base import Int32
from symphony_kernel.journal.hooks import HeldSession
from symphony_kernel.journal.log import Log
from symphony_kernel.protocol.errno import Errno

_log = logging.getLogger(__name__)

# An entry: its kind, a name (of a peer or an event), and its bytes.
HEADER: Final = struct.Struct("<BBI")
TIME: Final = struct.Struct("<d")  # of the turn; first in a record
FRAME: Final = 1  # from a peer, numbered in its session
SENT: Final = 2  # to a peer
EVENTS: Final = 3  # i64: a kind and its numbers, one event after the other
HAPPENED: Final = 4  # an internal event: msgpack of its arguments

# Events.
RESERVED: Final = 1  # file, entries
UNRESERVED: Final = 2  # file
DONE: Final = 3  # request, value: -errno, 0, or a generation's token
REFUSED: Final = 4  # errno, number of the allocation: they count calls' within a record
EVICTED: Final = 5  # 1 + n, number of the allocation (0: a step's), n pages
LOST: Final = 6  # n, n pages
HELD: Final = 7  # number of calls before it, an instance whose tenant's calls wait
OFFERED: Final = 8  # request, its first tokens
SHARED: Final = 9  # request, first page, pages
INSIDE: Final = 16  # added to the kind, when `depth` was > 0
RECORDS_PER_CHECK: Final = 16  # of the log's size
_JOINED_BYTES_MAX: Final = 16 << 10  # a larger payload is copied once, not twice

SIZES: Final = {RESERVED: 2, UNRESERVED: 1, DONE: 2, REFUSED: 2, HELD: 2, OFFERED: 2, SHARED: 3}


class Recorder:
    """Collects entries and writes records.

    It calls `failed` when the log cannot grow, and `written` after every 16 records.
    """

    def __init__(
        self,
        now: Callable[[], float],
        log: Log,
        failed: Callable[[OSError], None],
        written: Callable[[], None] = lambda: None,
    ) -> None:
        self._clock = now
        self._log = log
        self._failed, self._written = failed, written
        self.records = 0
        self._parts: list[bytes] = []  # of the record, ready to be joined
        self._events: list[int] = []  # since the last entry
        self._held: list[tuple[HeldSession, bytes, bool]] = []
        self._time: float | None = None
        self._allocations = 0  # for calls, in this record
        self._call = 0  # number of the running allocation; 0: a step's
        self.over = False
        self.depth = 0
        self.replaying = False

    # -- Time ----------------------------------------------------------------------------------
    def now(self) -> float:
        """Return the turn's time: that of the clock at the turn's first call."""
        time = self._time
        if time is None:
            time = self._time = self._clock()
        return time

    # -- Frames and internal events --------------------------------------------------------------
    def record_frame(self, peer: bytes, body: bytes | memoryview) -> None:
        self._add_entry(FRAME, peer, bytes(body))  # copied: a link reuses its buffer

    def record_event(self, what: bytes, arguments: bytes) -> None:
        self._add_entry(HAPPENED, what, arguments)

    def record_sent(self, session: HeldSession, body: bytes, now: bool) -> None:
        self._add_entry(SENT, session.peer, body)
        self._held.append((session, body, now))

    def _add_entry(self, kind: int, name: bytes, body: bytes) -> None:
        if self._events:
            self._end_events()
        self._parts += HEADER.pack(kind, len(name), len(body)), name, body

    # -- Nondeterministic events -----------------------------------------------------------------
    def done(self, request: int, value: int) -> None:
        if not self.depth:
            self._events += (DONE, request, value)

    def allocating(self, step: bool) -> bool:
        self._allocations += not step
        self._call = 0 if step else self._allocations
        return False

    def refused(self, errno: Errno) -> None:
        self._events += (REFUSED | INSIDE, errno, self._call)

    def evicted(self, pages: Int32) -> None:
        kind = EVICTED | INSIDE if self.depth else EVICTED
        self._events += (kind, 1 + len(pages), self._call, *pages.tolist())

    def held(self, position: int, instance: int) -> None:
        self._events += (HELD | INSIDE, position, instance)

    def holding(self, position: int) -> int:  # noqa: ARG002
        return 0

    def reserved(self, file: int, n: int) -> None:
        self._events += (RESERVED | INSIDE if self.depth else RESERVED, file, n)

    def unreserved(self, file: int) -> None:
        self._events += (UNRESERVED | INSIDE if self.depth else UNRESERVED, file)

    def offered(self, request: int, tokens: int) -> None:
        self._events += (OFFERED, request, tokens)

    def shared(self, request: int, first: int, pages: int) -> None:
        self._events += (SHARED, request, first, pages)

    def lost(self, pages: Int32) -> None:
        self._events += (LOST, len(pages), *pages.tolist())

    # -- Records ---------------------------------------------------------------------------------
    def commit(self) -> None:
        """Write the turn's record, then send its frames."""
        if self._events:
            self._end_events()
        if self._parts and not self.over:
            self._write()
        self._time = None

    def _write(self) -> None:
        parts, held = self._parts, self._held
        self._parts, self._held = [], []
        self._allocations = 0
        parts[0] = TIME.pack(self.now()) + parts[0]
        length = 0
        for part in parts:
            length += len(part)
        try:
            if length <= _JOINED_BYTES_MAX:
                self._log.append(b"".join(parts))
            else:
                self._log.append(*parts)
            self.records += 1
            if not self.records % RECORDS_PER_CHECK:
                self._written()
        except OSError as error:
            self._failed(error)
        if not self.over:
            for session, body, now in held:
                session.send_recorded(body, now)

    def abandon(self) -> None:
        """Write no more records and send no more frames."""
        self.over = True
        self._parts, self._events, self._held = [], [], []

    def _end_events(self) -> None:
        body = array("q", self._events).tobytes()
        self._events = []
        self._parts += HEADER.pack(EVENTS, 0, len(body)), body
