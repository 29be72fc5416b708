"""A run's journal: everything that its readers are told, in order, with ids that resume.

    event      id (1, 2, ...), kind, data
      message  the bytes of one send
      log      {level, text}
      status   {status, exit_code, reason}; the last event is the final one
      usage    the run's usage

While a run is live its newest events are in memory and the older ones in the database: memory is
bounded however much a program sends. What is in memory is in the tail, too, which outlives this
process (`gateway/storage/crash_log.py`); readers are given nothing that is not. Readers follow at
their own pace; the slowest one that is connected decides how much credit the program gets, and
without readers only memory does.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import msgpack
from symphony_kernel.protocol.limits import SEND_WINDOW_BYTES

from symphony_runtime.gateway.runs.events.reader import Cursor, Event, unpack_events, up_to_part
from symphony_runtime.gateway.storage.crash_log import ENDED, CrashLog
from symphony_runtime.gateway.storage.database import Connection
from symphony_runtime.gateway.storage.store import Store

_log = logging.getLogger(__name__)
MEMORY_BYTES_SPILL = 128 << 10  # past this the events in memory go to the database
MEMORY_BYTES_MAX = 2 * MEMORY_BYTES_SPILL  # past this the program waits for the database
_AGAIN_SECONDS = 1.0  # before events that the database did not take are written again
_ENDED_BYTES_KEPT = 32 << 10  # that stay in memory when the run has ended, for those that follow


class Reader(Protocol):
    """A follower of a run. Close it: an open one that does not read holds up the run.

    It holds a place in the journal, and none of the events that it was given.
    """

    async def next(self, seconds: float | None = None) -> list[Event] | None:
        """Return the next events; [] when none came within `seconds`, None after the last.

        They are about PART_BYTES, or a part of one message. What the call before returned counts as
        taken.
        """

    def close(self) -> None:
        """Stop following."""


class EventStream:
    """The events of one live run. `on_credit` hears how many more message bytes were taken."""

    def __init__(
        self,
        store: Store,
        run: int,
        on_credit: Callable[[int], None],
        crash_log: CrashLog | None = None,
        tenant: str = "",
    ) -> None:
        """Without a tail the events in memory are lost with this process."""
        self.tenant = tenant
        self.finished = False
        self._crash_log = crash_log
        self._settling: list[tuple[int, asyncio.Future[None]]] = []  # up to an event's id
        if crash_log is not None:
            crash_log.join(self)
        self._store = store
        self._run = run
        self._on_credit = on_credit
        self._events: list[Event] = []  # the newest, contiguous
        self._stored = False
        self._sealed = False  # the rest is on its way into the database: nothing spills any more
        self._spilling = 0  # how many of them are on their way into the database
        self._memory = 0
        self._last = 0
        self._sent = 0  # message bytes appended
        self._charged = 0  # bytes that its tenant holds on disk for it
        self._credited = 0
        self._credit_planned = False
        self._readers: set[LiveReader] = set()
        self._waiting: list[asyncio.Future[None]] = []  # readers, for more

    @property
    def sent(self) -> int:
        """Message bytes so far."""
        return self._sent

    @property
    def memory(self) -> int:
        """About the bytes of the events in memory."""
        return self._memory

    def append(self, kind: str, data: Any) -> None:
        """Add an event and wake the readers."""
        assert not self._sealed
        if kind == "message":
            self._sent += len(data)
            self.plan_credit()
        self._last += 1
        event = Event(self._last, kind, data, self._sent)
        self._events.append(event)
        if self._crash_log is not None:
            self._crash_log.add((self._run, event.id, kind, data))
        self._memory += event.size
        self._charge(event.size)
        if self._memory > MEMORY_BYTES_SPILL and not self._spilling:
            self._spill()
        self._wake()

    def seal(self, finals: list[tuple[str, Any]]) -> tuple[int, bytes]:
        """Return the row that completes the database (first id, body); `finals` come last in it.

        The finals are not told yet: `finish` does when the row is safe. Nothing is added between.
        """
        self._sealed = True
        # With those of a spill under way, which may fail: the row takes the place of the spill's.
        return self._first, _pack(self._events + self._number(finals))

    def finish(self, finals: list[tuple[str, Any]]) -> None:
        """Tell the last events; no event comes any more."""
        self._events += self._number(finals)
        self._last += len(finals)
        self.finished = True
        self._charge(-self._charged)  # what is kept of it counts as an ended run's
        if self._stored and self._memory > _ENDED_BYTES_KEPT:
            self._events.clear()  # else readers that do not read would hold them
        self._settled(self._last)
        if self._crash_log is not None:
            self._crash_log.leave(self)
        self._wake()

    def stored(self) -> None:
        """The end is in the database, and with it everything: the tail need not tell it again."""
        self._stored = True
        if self._crash_log is not None:
            self._crash_log.add((self._run, ENDED, "", None))

    def settle(self) -> "asyncio.Future[None]":
        """Write what is in memory to the database; the future is done when it is there."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._settling.append((self._last, future))
        if not self._events or self.finished:
            self._settled(self._last)
        elif not self._spilling and not self._sealed:
            self._spill()
        return future

    def open(self, after: int) -> "LiveReader":
        """Follow the events after an id."""
        reader = LiveReader(self, after, self._sent if after >= self._last else self._credited)
        self._readers.add(reader)
        return reader

    def so_far(self) -> Callable[[], Cursor]:
        """Return how to read the events that there are now, as often as it takes.

        Such a cursor is no reader: it holds up nothing.
        """
        return partial(self.cursor, 0, self._last)

    # -- For readers ---------------------------------------------------------------------------
    async def events_after(self, after: int) -> list[Event]:
        """Return some of the events after an id, [] when there are none yet."""
        if after + 1 < self._first:
            return await self._store.stored_events.after(self.tenant, self._run, after)
        if self._crash_log is not None:
            self._crash_log.flush()
        return up_to_part(self._events, after + 1 - self._first)

    def cursor(self, after: int, until: int | None = None) -> Cursor:
        """Return a cursor over the events after an id."""
        return Cursor(self._store.stored_events, self.tenant, self.events_after, after, until)

    async def wait_for_more(self) -> None:
        """Wait until an event was added or the journal finished."""
        # Each its own: to shield one for all from whoever leaves costs a pass of the loop.
        more = asyncio.get_running_loop().create_future()
        self._waiting.append(more)
        try:
            await more
        finally:
            if more in self._waiting:  # it has left
                self._waiting.remove(more)

    def forget(self, reader: "LiveReader") -> None:
        """A reader has gone."""
        self._readers.discard(reader)
        self.plan_credit()

    def plan_credit(self) -> None:
        """Give credit in the next turn: once, however many messages this one brings."""
        if not self._credit_planned:
            self._credit_planned = True
            asyncio.get_running_loop().call_soon(self._give_credit)

    # -- Inside --------------------------------------------------------------------------------
    @property
    def _first(self) -> int:
        """Id of the first event in memory (of the next one, if memory is empty)."""
        return self._last + 1 - len(self._events)

    def _charge(self, size: int) -> None:
        if self._crash_log is not None:
            self._charged += size
            self._store.disk.charge(self.tenant, size)

    def _number(self, events: list[tuple[str, Any]]) -> list[Event]:
        first = self._last + 1
        return [Event(first + i, kind, data, self._sent) for i, (kind, data) in enumerate(events)]

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for more in waiting:
            if not more.done():
                more.set_result(None)

    def _give_credit(self) -> None:
        self._credit_planned = False
        if self.finished or self._memory > MEMORY_BYTES_MAX:
            return
        if self._crash_log is not None and self._store.disk.must_wait(self.tenant):
            return  # the program waits for room on the disk
        taken = min((reader.taken for reader in self._readers), default=self._sent)
        if taken > self._credited:
            self._on_credit(taken - self._credited)
            self._credited = taken

    def _spill(self) -> None:
        self._spilling = len(self._events)
        if self._store.disk.low:  # what is left of it is for ends and deletions
            asyncio.get_running_loop().call_later(_AGAIN_SECONDS, self._spill_again)
            return
        row = (self._events[0].id, _pack(self._events))
        written = self._store.write(lambda c: insert_events(c, self._run, row), self._run)
        written.add_done_callback(self._forget_spilled)

    def _spill_again(self) -> None:
        if not self._sealed:
            self._spill()

    def _forget_spilled(self, written: "asyncio.Future[None]") -> None:
        if error := written.exception():
            # The events stay; until the next attempt this one counts as under way.
            _log.error("events of run %d could not be stored yet: %s", self._run, error)
            asyncio.get_running_loop().call_later(_AGAIN_SECONDS, self._spill_again)
            return
        count, self._spilling = self._spilling, 0
        gone = self._events[:count]
        del self._events[:count]
        self._memory -= sum(event.size for event in gone)
        self.plan_credit()
        self._settled(self._first - 1)
        if (self._memory > MEMORY_BYTES_SPILL or self._settling) and not self._sealed:
            self._spill()

    def _settled(self, last: int) -> None:
        """Everything up to an event is in the database."""
        for _, future in (done for done in self._settling if done[0] <= last):
            if not future.done():
                future.set_result(None)
        self._settling = [waiting for waiting in self._settling if waiting[0] > last]


_CREDIT_BYTES = SEND_WINDOW_BYTES // 4  # credit goes in such lots: most runs end before the first


class Listener(Protocol):
    """The client's side of a run."""

    def message(self, data: bytes) -> None:
        """The program has sent a message."""

    def ended(self) -> None:
        """The run has ended; nothing follows."""


class UnsavedEvents(EventStream):
    """A journal that hands messages on instead of holding them; whoever else looks sees none."""

    def __init__(
        self, store: Store, run: int, on_credit: Callable[[int], None], listener: Listener
    ) -> None:
        super().__init__(store, run, on_credit)
        self._listener = listener
        self._taken = 0

    def append(self, kind: str, data: Any) -> None:
        """See `EventStream`."""
        if kind == "message":
            self._sent += len(data)
            self._listener.message(data)
        else:
            super().append(kind, data)

    def take(self, size: int) -> None:
        """The client has taken so many bytes of messages."""
        self._taken += size
        if self._taken - self._credited >= _CREDIT_BYTES:
            self._on_credit(self._taken - self._credited)
            self._credited = self._taken

    def finish(self, finals: list[tuple[str, Any]]) -> None:
        """See `EventStream`."""
        super().finish(finals)
        self._listener.ended()

    def plan_credit(self) -> None:
        """Credit is the listener's alone to give."""

    def _spill(self) -> None:
        """What is left is a status and a log, which has its own bound."""


class LiveReader:
    """A reader of a journal. `taken`: message bytes that it is known to have taken."""

    def __init__(self, journal: EventStream, after: int, taken: int) -> None:
        self.taken = taken
        self._journal = journal
        self._cursor = journal.cursor(after)
        self._total = taken

    async def next(self, seconds: float | None = None) -> list[Event] | None:
        """See `Reader`."""
        if self.taken != self._total:
            self.taken = self._total
            self._journal.plan_credit()
        events = await self._cursor.next()
        if not events:
            if self._journal.finished:
                return None
            try:
                async with asyncio.timeout(seconds):
                    await self._journal.wait_for_more()
            except TimeoutError:
                return []
            events = await self._cursor.next()
        if events:
            self._total = events[-1].total
        return events

    def close(self) -> None:
        """See `Reader`."""
        self._cursor.close()
        self._journal.forget(self)


class StoredReader:
    """A reader of a run that has ended and is in the database."""

    def __init__(self, store: Store, run: int, after: int, tenant: str = "") -> None:
        self._cursor = stored_cursor(store, run, after, tenant)

    async def next(self, seconds: float | None = None) -> list[Event] | None:  # noqa: ARG002
        """See `Reader`."""
        return await self._cursor.next() or None

    def close(self) -> None:
        """See `Reader`."""
        self._cursor.close()


def stored_cursor(store: Store, run: int, after: int, tenant: str) -> Cursor:
    """Return a cursor over the stored events of a run."""

    async def fetch(after: int) -> list[Event]:
        return await store.stored_events.after(tenant, run, after)

    return Cursor(store.stored_events, tenant, fetch, after)


def insert_events(connection: Connection, run: int, row: tuple[int, bytes]) -> None:
    """Store the events of one row (first id, body), in place of one that begins with the same."""
    connection.execute(
        "INSERT INTO run_events VALUES (?, ?, ?)"
        " ON CONFLICT (run, first) DO UPDATE SET body = excluded.body",
        (run, *row),
    )


def pack_final(first: int, total: int, events: list[tuple[str, Any]]) -> tuple[int, bytes]:
    """Return the row of events that are added to a run which is not live.

    `total`: the message bytes before them.
    """
    kind, data = events[0]
    total += len(data) if kind == "message" else 0
    return first, _pack([Event(first + i, k, d, total) for i, (k, d) in enumerate(events)])


def last_event(connection: Connection, run: int) -> tuple[int, int]:
    """Return the id and the total of a run's last stored event (0, 0 without any)."""
    rows = _rows(connection, run, "ORDER BY first DESC LIMIT 1")
    if not rows:
        return 0, 0
    last = unpack_events(*rows[0])[-1]
    return last.id, last.total


def _rows(
    connection: Connection, run: int, order: str = "ORDER BY first"
) -> list[tuple[int, bytes]]:
    sql = f"SELECT first, body FROM run_events WHERE run = ? {order}"  # noqa: S608 - ours
    return [(row["first"], row["body"]) for row in connection.execute(sql, (run,))]


def _pack(events: list[Event]) -> bytes:
    first = events[0]
    before = first.total - (len(first.data) if first.kind == "message" else 0)
    body: bytes = msgpack.packb([before, [[e.kind, e.data] for e in events]])
    return body
