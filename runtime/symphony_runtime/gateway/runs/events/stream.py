"""The events of one live run, from their arrival to their deletion.

    Output, Logs, a change of status
        │ append
        v
    EventStream, in memory ──────> LiveReader   at its own pace; the slowest one sets the credit
        │       │                       ^
        │       └─> CrashLog ───────────┘       before a reader gets an event, its file has it
        │ spill past MEMORY_BYTES_SPILL, when the crash log rotates, and the rest at the end
        v
    rows of `run_events` ────────> StoredReader, through StoredEventCache
        │
        v
    Retention deletes them with their run

Each event has one owner. `EventStream` owns it until the database has it; then the database owns
it until `Retention` deletes the run. The two others hold copies: `CrashLog` so that the next
gateway finds what a killed one had not stored, `StoredEventCache` for readers of old events.
`EphemeralStream` is for a run that is not stored: it hands messages to its client and keeps none.

    event      id (1, 2, ...), kind, data
      message  the bytes of one send
      log      {level, text}
      status   {status, exit_code, reason}; the last event is the final one
      usage    the run's usage

Memory is bounded however much a program sends. Readers follow at their own pace. The slowest
connected one decides how much credit the program gets; without readers only memory does.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import msgpack
from symphony_kernel.protocol.limits import (
    MESSAGE_BYTES_MAX,
    SEND_AT_ONCE_BYTES_MAX,
    SEND_WINDOW_BYTES,
)

from symphony_runtime.gateway.runs.events.inbox import Inbox
from symphony_runtime.gateway.runs.events.reader import Cursor, Event, unpack_events, up_to_part
from symphony_runtime.gateway.storage.crash_log import ENDED, CrashLog
from symphony_runtime.gateway.storage.database import Connection
from symphony_runtime.gateway.storage.store import Store
from symphony_runtime.malloc import PACK_BUFFER_BYTES

_log = logging.getLogger(__name__)
MEMORY_BYTES_SPILL = 64 << 10  # past this the events in memory are stored
MEMORY_BYTES_MAX = 2 * MEMORY_BYTES_SPILL  # past this the program waits for the database
_RETRY_SECONDS = 1.0  # before events that the database did not take are written again
_ENDED_BYTES_KEPT = 32 << 10  # that stay in memory after the end, for connected readers


class EventStream:
    """Events of one live run. `on_credit` gets the message bytes newly taken."""

    def __init__(
        self,
        store: Store,
        run: int,
        on_credit: Callable[[int], None],
        crash_log: CrashLog | None = None,
        tenant: str = "",
    ) -> None:
        """Without a crash log the events in memory are lost with this process."""
        self.tenant = tenant
        self.finished = False
        self._crash_log = crash_log
        # An event's id, and the future that is done when everything up to it is stored.
        self._flushes: list[tuple[int, asyncio.Future[None]]] = []
        if crash_log is not None:
            crash_log.attach(self)
        self._store = store
        self._run = run
        self._on_credit = on_credit
        self._events: list[Event] = []  # the newest, contiguous
        self._stored = False
        self._sealed = False  # `seal` took the rest for the database: nothing spills any more
        self._spilling = 0  # the first so many are being written to the database
        self.memory = 0  # approximate bytes of the events in memory
        self._last = 0
        self.sent = 0  # message bytes appended
        self._charged = 0  # bytes on disk that count for its tenant
        self._credited = 0
        self._granted = 0  # bytes of large messages, sent or about to be, that are not stored yet
        self._credit_scheduled = False
        self._readers: set[LiveReader] = set()
        self._waiting: list[asyncio.Future[None]] = []  # readers that wait for an event

    def append(self, kind: str, data: Any) -> None:
        assert not self._sealed
        if kind == "message":
            self.sent += len(data)
            self.schedule_credit()
        self._last += 1
        event = Event(self._last, kind, data, self.sent)
        self._events.append(event)
        if self._crash_log is not None:
            self._crash_log.add((self._run, event.id, kind, data))
        self.memory += event.size
        self.charge(event.size)
        if self.memory > MEMORY_BYTES_SPILL and not self._spilling:
            self._spill()
        self._wake_readers()

    def seal(self, finals: list[tuple[str, Any]]) -> tuple[int, bytes]:
        """Return the row (first id, body) that completes the database, with `finals`.

        Readers get the finals from `finish`, once the row is stored. Append nothing in between.
        """
        self._sealed = True
        # Includes the events of a spill under way, which may fail: the row replaces the spill's.
        return self._first, _pack(self._events + self._number_events(finals))

    def finish(self, finals: list[tuple[str, Any]]) -> None:
        self._events += self._number_events(finals)
        self._last += len(finals)
        self.finished = True
        self.charge(-self._charged)  # `Retention` counts the stored run from now on
        if self._stored and self.memory > _ENDED_BYTES_KEPT:
            self._events.clear()  # readers that do not read would keep them in memory
        self._release(self._granted)
        self._resolve_flushes(self._last)
        if self._crash_log is not None:
            self._crash_log.detach(self)
        self._wake_readers()

    def ask_for_memory(self, size: int, granted: Callable[[], None]) -> Callable[[], None]:
        """Call `granted` once the run may send a large message; return what cancels that."""

        def grant() -> None:
            self._granted += size
            if self.finished:
                self._release(size)
            granted()

        return self._store.large_sends.ask(self.tenant, size, grant)

    def mark_stored(self) -> None:
        """Note that all is stored: a restart ignores the crash log's copies."""
        self._stored = True
        if self._crash_log is not None:
            self._crash_log.add((self._run, ENDED, "", None))

    def store_memory(self) -> "asyncio.Future[None]":
        """Store what is in memory; the future is done when the database has it."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._flushes.append((self._last, future))
        if not self._events or self.finished:
            self._resolve_flushes(self._last)
        elif not self._spilling and not self._sealed:
            self._spill()
        return future

    def open_reader(self, after: int) -> "LiveReader":
        reader = LiveReader(self, after, self.sent if after >= self._last else self._credited)
        self._readers.add(reader)
        return reader

    def cursor_factory(self) -> Callable[[], Cursor]:
        """Return a function that makes cursors over the events so far.

        Such a cursor is no reader: it does not hold up the run.
        """
        return partial(self.cursor, 0, self._last)

    # -- For readers ---------------------------------------------------------------------------
    async def events_after(self, after: int) -> list[Event]:
        """Return some of the events after an id, [] when there are none yet."""
        if after + 1 < self._first:
            return await self._store.stored_events.events_after(self.tenant, self._run, after)
        if self._crash_log is not None:
            self._crash_log.flush()
        return up_to_part(self._events, after + 1 - self._first)

    def cursor(self, after: int, until: int | None = None) -> Cursor:
        return Cursor(self._store.stored_events, self.tenant, self.events_after, after, until)

    async def wait_for_more(self) -> None:
        # One future a reader: a shared one would need a shield, which costs a pass of the loop.
        more = asyncio.get_running_loop().create_future()
        self._waiting.append(more)
        try:
            await more
        finally:
            if more in self._waiting:  # the reader was cancelled
                self._waiting.remove(more)

    def remove_reader(self, reader: "LiveReader") -> None:
        self._readers.discard(reader)
        self.schedule_credit()

    def schedule_credit(self) -> None:
        """Give credit in the next turn of the loop, once for all messages."""
        if not self._credit_scheduled:
            self._credit_scheduled = True
            asyncio.get_running_loop().call_soon(self._give_credit)

    # -- Inside --------------------------------------------------------------------------------
    @property
    def _first(self) -> int:
        """Id of the first event in memory, or of the next event if memory is empty."""
        return self._last + 1 - len(self._events)

    def charge(self, size: int) -> None:
        """Count bytes on disk to the tenant until the run's end is stored."""
        if self._crash_log is not None:
            self._charged += size
            self._store.disk.charge(self.tenant, size)

    def _number_events(self, events: list[tuple[str, Any]]) -> list[Event]:
        first = self._last + 1
        return [Event(first + i, kind, data, self.sent) for i, (kind, data) in enumerate(events)]

    def _wake_readers(self) -> None:
        waiting, self._waiting = self._waiting, []
        for more in waiting:
            if not more.done():
                more.set_result(None)

    def _give_credit(self) -> None:
        self._credit_scheduled = False
        if self.finished or self.memory > MEMORY_BYTES_MAX:
            return
        if self._crash_log is not None and self._store.disk.must_wait(self.tenant):
            return  # the program waits for disk space
        taken = min((reader.taken for reader in self._readers), default=self.sent)
        if taken > self._credited:
            self._on_credit(taken - self._credited)
            self._credited = taken

    def _spill(self) -> None:
        self._spilling = len(self._events)
        if self._store.disk.low:  # the rest of the disk is for ends of runs and deletions
            asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._spill_again)
            return
        # Packed where it is written: a row that waits for the database is no second copy.
        events, run = self._events.copy(), self._run
        written = self._store.write(
            lambda c: insert_events(c, run, (events[0].id, _pack(events))), run
        )
        written.add_done_callback(self._drop_spilled)

    def _spill_again(self) -> None:
        if not self._sealed:
            self._spill()

    def _drop_spilled(self, written: "asyncio.Future[None]") -> None:
        if error := written.exception():
            # The events stay in memory, and `_spilling` stays set until the retry.
            _log.error("events of run %d could not be stored yet: %s", self._run, error)
            asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._spill_again)
            return
        count, self._spilling = self._spilling, 0
        gone = self._events[:count]
        del self._events[:count]
        self.memory -= sum(event.size for event in gone)
        if self._granted:
            sizes = (len(event.data) for event in gone if event.kind == "message")
            self._release(sum(size for size in sizes if size > SEND_AT_ONCE_BYTES_MAX))
        self.schedule_credit()
        self._resolve_flushes(self._first - 1)
        if (self.memory > MEMORY_BYTES_SPILL or self._flushes) and not self._sealed:
            self._spill()

    def _release(self, size: int) -> None:
        """Release memory of large messages; a worker may have sent more than it asked for."""
        size = min(size, self._granted)
        if size:
            self._granted -= size
            self._store.large_sends.release(self.tenant, size)

    def _resolve_flushes(self, last: int) -> None:
        for _, future in (flush for flush in self._flushes if flush[0] <= last):
            if not future.done():
                future.set_result(None)
        self._flushes = [flush for flush in self._flushes if flush[0] > last]


_CREDIT_BYTES = SEND_WINDOW_BYTES // 4  # credit is given in batches: most runs end before the first


class EphemeralStream(EventStream):
    """Events of a run that is not stored: only its client gets the messages.

    Such a run costs no database write unless it fails: then its record, log and end are stored.
    """

    def __init__(
        self,
        store: Store,
        run: int,
        on_credit: Callable[[int], None],
        listener: Inbox,
        tenant: str = "",
    ) -> None:
        super().__init__(store, run, on_credit, tenant=tenant)
        self._listener = listener
        self._taken = 0

    def append(self, kind: str, data: Any) -> None:
        if kind == "message":
            self.sent += len(data)
            self._listener.message(data)
        else:
            super().append(kind, data)

    def is_flooded_by(self, size: int) -> bool:
        """Return whether a message would wait that no worker sends which heeds credit."""
        most = SEND_WINDOW_BYTES + self._granted + MESSAGE_BYTES_MAX
        return self._listener.weight + size > most

    def note_taken(self, size: int) -> None:
        self._taken += size
        if self._granted:
            self._release(size)
        if self._taken - self._credited >= _CREDIT_BYTES:
            self._on_credit(self._taken - self._credited)
            self._credited = self._taken

    def finish(self, finals: list[tuple[str, Any]]) -> None:
        super().finish(finals)
        self._listener.ended()

    def schedule_credit(self) -> None:
        """Do nothing: only the client gives credit."""

    def _spill(self) -> None:
        """Do nothing: memory holds only a status and a bounded log."""


class LiveReader:
    """A reader of a live run. `taken` counts the message bytes it confirmed.

    It holds a place in the stream, and none of the events that it returned. Close it: an open one
    that does not read holds up the run.
    """

    def __init__(self, stream: EventStream, after: int, taken: int) -> None:
        self.taken = taken
        self._stream = stream
        self._cursor = stream.cursor(after)
        self._total = taken

    async def next(self, seconds: float | None = None) -> list[Event] | None:
        """Return the next events; [] when none came within `seconds`, None after the last.

        They are about PART_BYTES, or a part of one message. A call confirms what the previous call
        returned as taken.
        """
        if self.taken != self._total:
            self.taken = self._total
            self._stream.schedule_credit()
        events = await self._cursor.next()
        if not events:
            if self._stream.finished:
                return None
            try:
                async with asyncio.timeout(seconds):
                    await self._stream.wait_for_more()
            except TimeoutError:
                return []
            events = await self._cursor.next()
        if events:
            self._total = events[-1].total
        return events

    def close(self) -> None:
        self._cursor.close()
        self._stream.remove_reader(self)


class StoredReader:
    """A reader of a run that has ended and is in the database."""

    def __init__(self, store: Store, run: int, after: int, tenant: str = "") -> None:
        self._cursor = stored_cursor(store, run, after, tenant)

    async def next(self, seconds: float | None = None) -> list[Event] | None:  # noqa: ARG002
        return await self._cursor.next() or None

    def close(self) -> None:
        self._cursor.close()


Reader = LiveReader | StoredReader


def stored_cursor(store: Store, run: int, after: int, tenant: str) -> Cursor:
    async def fetch(after: int) -> list[Event]:
        return await store.stored_events.events_after(tenant, run, after)

    return Cursor(store.stored_events, tenant, fetch, after)


def insert_events(connection: Connection, run: int, row: tuple[int, bytes]) -> None:
    """Store a row of events (first id, body), or replace it."""
    connection.execute(
        "INSERT INTO run_events VALUES (?, ?, ?)"
        " ON CONFLICT (run, first) DO UPDATE SET body = excluded.body",
        (run, *row),
    )


def pack_final(first: int, total: int, events: list[tuple[str, Any]]) -> tuple[int, bytes]:
    """Return a row of events of a run that is not live.

    `total`: the message bytes before them.
    """
    kind, data = events[0]
    total += len(data) if kind == "message" else 0
    return first, _pack([Event(first + i, k, d, total) for i, (k, d) in enumerate(events)])


def last_event(connection: Connection, run: int) -> tuple[int, int]:
    """Return the id and the total of a run's last stored event, or (0, 0)."""
    sql = "SELECT first, body FROM run_events WHERE run = ? ORDER BY first DESC LIMIT 1"
    row = connection.execute(sql, (run,)).fetchone()
    if row is None:
        return 0, 0
    last = unpack_events(row["first"], row["body"])[-1]
    return last.id, last.total


def _pack(events: list[Event]) -> bytes:
    first = events[0]
    before = first.total - (len(first.data) if first.kind == "message" else 0)
    listed = [before, [[e.kind, e.data] for e in events]]
    body: bytes = msgpack.packb(listed, buf_size=PACK_BUFFER_BYTES)
    return body
