"""The recorder: notes what happens in a turn, and writes it down before anybody hears of it.

    frames come -> the kernel does what they say -> commit: one record -> what it sent leaves

A record is a list of entries, in the order in which they happened. What the kernel does with a
frame follows from the frame, so only the frame is noted; beside it what does not follow: which
preds ended and how, when steps took pages, what found no room, what time it was. `replay` does it
all again.

What is sent stays here until the record is written. So a peer never knows what the journal does
not, and what a record that was not finished would have said has not happened for anybody: whoever
sent the frame sends it again.
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

# Entries: what it is, whose (a peer's name, or what happened), and its bytes.
HEADER: Final = struct.Struct("<BBI")
TIME: Final = struct.Struct("<d")  # of the turn, first in a record
FRAME: Final = 1  # of a peer, numbered in its session
SENT: Final = 2  # to a peer
EVENTS: Final = 3  # i64: a kind and its numbers, one event after the other
HAPPENED: Final = 4  # what no peer said and the kernel does: msgpack of its arguments

# Events.
RESERVED: Final = 1  # file, entries
UNRESERVED: Final = 2  # file
DONE: Final = 3  # work, its value: an errno, or 0, or a generation's token
REFUSED: Final = 4  # errno, which of the record's allocations for calls
EVICTED: Final = 5  # 1 + n, for which of them (0: for a step), n pages
LOST: Final = 6  # n, n pages
HELD: Final = 7  # after how many calls, whose tenant's wait: an instance
INSIDE: Final = 16  # beside the kind: while the kernel did what a frame or the end of a pred says
RECORDS_A_LOOK: Final = 16  # whether the log is long

SIZES: Final = {RESERVED: 2, UNRESERVED: 1, DONE: 2, REFUSED: 2, HELD: 2}


class Recorder:
    """Notes entries and writes records.

    `failed` hears when there is no room for them any more, `written` now and then that some were.
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
        self._parts: list[bytes] = []
        self._events: list[int] = []
        self._held: list[tuple[HeldSession, bytes, bool]] = []
        self._time: float | None = None
        self._allocations = 0  # for calls, in this record
        self._call = 0  # which of them goes on now; 0: one for a step
        self._over = False
        self.inside = 0  # a frame, or the end of a pred, is what the kernel acts on now
        self.replaying = False

    # -- Time ----------------------------------------------------------------------------------
    def now(self) -> float:
        """Return the turn's time: the clock's when it was first asked for."""
        time = self._time
        if time is None:
            time = self._time = self._clock()
        return time

    # -- What comes, and what leaves -----------------------------------------------------------
    def frame(self, peer: bytes, body: bytes | memoryview) -> None:
        """A peer's frame is about to be taken."""
        self._note(FRAME, peer, bytes(body))  # a link uses its buffer again

    def happened(self, what: bytes, arguments: bytes) -> None:
        """Something that no peer said is about to be done."""
        self._note(HAPPENED, what, arguments)

    def sent(self, session: HeldSession, body: bytes, now: bool) -> None:
        """A frame is for a peer; it leaves with the turn's record."""
        self._note(SENT, session.peer, body)
        self._held.append((session, body, now))

    def _note(self, kind: int, name: bytes, body: bytes) -> None:
        if self._events:
            self._end_events()
        self._parts += HEADER.pack(kind, len(name), len(body)), name, body

    # -- What does not follow --------------------------------------------------------------------
    def done(self, request: int, value: int) -> None:
        """A pred has ended, or a generation's step: with an errno, or 0, or the token it gave."""
        if not self.inside:
            self._events += (DONE, request, value)

    def allocating(self, step: bool) -> bool:
        """Nothing is known of it yet."""
        self._allocations += not step
        self._call = 0 if step else self._allocations
        return False

    def refused(self, errno: Errno) -> None:
        """A call's allocation found no room."""
        self._events += (REFUSED | INSIDE, errno, self._call)

    def evicted(self, pages: Int32) -> None:
        """The prefix cache gave up pages."""
        kind = EVICTED | INSIDE if self.inside else EVICTED
        self._events += (kind, 1 + len(pages), self._call, *pages.tolist())

    def held(self, position: int, instance: int) -> None:
        """After so many calls of what is executed now, those of an instance's tenant wait."""
        self._events += (HELD | INSIDE, position, instance)

    def holding(self, position: int) -> int:  # noqa: ARG002
        """Nothing is known of it yet."""
        return 0

    def reserved(self, file: int, n: int) -> None:
        """A step took pages."""
        self._events += (RESERVED | INSIDE if self.inside else RESERVED, file, n)

    def unreserved(self, file: int) -> None:
        """A file gave pages back."""
        self._events += (UNRESERVED | INSIDE if self.inside else UNRESERVED, file)

    def lost(self, pages: Int32) -> None:
        """Pages hold what they should not."""
        self._events += (LOST, len(pages), *pages.tolist())

    # -- Records ---------------------------------------------------------------------------------
    def commit(self) -> None:
        """Write down what has been noted, then let what was sent leave."""
        if self._events:
            self._end_events()
        if self._parts and not self._over:
            self._write()
        self._time = None

    def _write(self) -> None:
        parts, held = self._parts, self._held
        self._parts, self._held = [], []
        self._allocations = 0
        parts[0] = TIME.pack(self.now()) + parts[0]
        try:
            self._log.append(b"".join(parts))
            self.records += 1
            if not self.records % RECORDS_A_LOOK:
                self._written()
        except OSError as error:
            self._failed(error)
        if not self._over:
            for session, body, now in held:
                session.leave(body, now)

    def abandon(self) -> None:
        """Write nothing more, and let nothing more leave."""
        self._over = True
        self._parts, self._events, self._held = [], [], []

    def _end_events(self) -> None:
        body = array("q", self._events).tobytes()
        self._events = []
        self._parts += HEADER.pack(EVENTS, 0, len(body)), body
