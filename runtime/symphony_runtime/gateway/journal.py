"""A run's journal: everything that its readers are told, in order, with ids that resume.

    event      id (1, 2, ...), kind, data
      message  the bytes of one send
      log      {level, text}
      status   {status, exit_code, reason}; the last event is the final one
      usage    the run's usage

While a run is live its newest events are in memory and the older ones in the database: memory is
bounded however much a program sends. What is in memory is in the tail, too, which outlives this
process (`tail.py`); readers are given nothing that is not. Readers follow at their own pace; the
slowest one that is connected decides how much credit the program gets, and without readers only
memory does.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import msgpack

from symphony_runtime.gateway.database import Connection
from symphony_runtime.gateway.store import Store
from symphony_runtime.gateway.tail import BEGUN, ENDED, Tail

MEMORY_BYTES_SPILL = 128 << 10  # past this the events in memory go to the database
MEMORY_BYTES_MAX = 2 * MEMORY_BYTES_SPILL  # past this the program waits for the database
_BATCH_BYTES = 64 << 10  # of events that a reader gets at once
_EVENT_BYTES = 64  # what an event costs besides its data


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that a run's readers are told. `total`: message bytes up to here, with its own."""

    id: int
    kind: str
    data: Any  # bytes of a message, else a map that JSON can hold
    total: int

    @property
    def size(self) -> int:
        """About the bytes it holds."""
        return _EVENT_BYTES + (len(self.data) if isinstance(self.data, bytes) else 128)


class Reader(Protocol):
    """Somebody who follows a run. Close it: an open one that does not read holds up the run."""

    async def next(self, seconds: float | None = None) -> list[Event] | None:
        """Return the next events; [] when none came within `seconds`, None after the last.

        What the call before returned counts as taken.
        """

    def close(self) -> None:
        """Stop following."""


class Journal:
    """The events of one live run. `on_credit` hears how many more message bytes were taken."""

    def __init__(
        self,
        store: Store,
        run: int,
        on_credit: Callable[[int], None],
        tail: Tail | None = None,
    ) -> None:
        """Without a tail the events in memory are lost with this process."""
        self.finished = False
        self._tail = tail
        self._settling: list[tuple[int, asyncio.Future[None]]] = []  # up to an event's id
        if tail is not None:
            tail.join(self)
        self._store = store
        self._run = run
        self._on_credit = on_credit
        self._events: list[Event] = []  # the newest, contiguous
        self._sealed = False  # the rest is on its way into the database: nothing spills any more
        self._spilling = 0  # how many of them are on their way into the database
        self._memory = 0
        self._last = 0
        self._sent = 0  # message bytes appended
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

    def begin(self, record: dict[str, Any]) -> None:
        """Keep the run's record in the tail: it has begun, and is on its way to the database."""
        if self._tail is not None:
            self._tail.add((self._run, BEGUN, "record", record))

    def append(self, kind: str, data: Any) -> None:
        """Add an event and wake the readers."""
        assert not self._sealed
        if kind == "message":
            self._sent += len(data)
            self.plan_credit()
        self._last += 1
        event = Event(self._last, kind, data, self._sent)
        self._events.append(event)
        if self._tail is not None:
            self._tail.add((self._run, event.id, kind, data))
        self._memory += event.size
        if self._memory > MEMORY_BYTES_SPILL and not self._spilling:
            self._spill()
        self._wake()

    def seal(self, finals: list[tuple[str, Any]]) -> tuple[int, bytes]:
        """Return the row that completes the database (first id, body); `finals` come last in it.

        The finals are not told yet: `finish` does when the row is safe. Nothing is added between.
        """
        self._sealed = True
        unwritten = self._events[self._spilling :]
        first = self._last + 1 - len(unwritten)
        return first, _pack(unwritten + self._number(finals))

    def finish(self, finals: list[tuple[str, Any]]) -> None:
        """Tell the last events; no event comes any more."""
        self._events += self._number(finals)
        self._last += len(finals)
        self.finished = True
        self._settled(self._last)
        if self._tail is not None:
            self._tail.leave(self)
        self._wake()

    def stored(self) -> None:
        """The end is in the database, and with it everything: the tail need not tell it again."""
        if self._tail is not None:
            self._tail.add((self._run, ENDED, "", None))

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

    async def messages(self) -> list[bytes]:
        """Return all messages so far."""
        older, after = [], 0
        while after + 1 < self._first:
            older += (batch := await read_stored(self._store, self._run, after))
            after = batch[-1].id
        newer = [event for event in self._events if event.id > after]
        return [event.data for event in (*older, *newer) if event.kind == "message"]

    # -- For readers ---------------------------------------------------------------------------
    async def events_after(self, after: int) -> list[Event]:
        """Return a batch of the events after an id, [] when there are none yet."""
        if after + 1 < self._first:
            return await read_stored(self._store, self._run, after)
        if self._tail is not None:
            self._tail.flush()
        return _batch(self._events[after + 1 - self._first :])

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
        taken = min((reader.taken for reader in self._readers), default=self._sent)
        if taken > self._credited:
            self._on_credit(taken - self._credited)
            self._credited = taken

    def _spill(self) -> None:
        self._spilling = len(self._events)
        row = (self._events[0].id, _pack(self._events))
        written = self._store.write(lambda c: insert_events(c, self._run, row), self._run)
        written.add_done_callback(self._forget_spilled)

    def _forget_spilled(self, written: "asyncio.Future[None]") -> None:
        count, self._spilling = self._spilling, 0
        written.result()  # if it failed, the loop tells; the events stay for the next attempt
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


class LiveReader:
    """A reader of a journal. `taken`: message bytes that it is known to have taken."""

    def __init__(self, journal: Journal, after: int, taken: int) -> None:
        self.taken = taken
        self._journal = journal
        self._given = after
        self._total = taken

    async def next(self, seconds: float | None = None) -> list[Event] | None:
        """See `Reader`."""
        if self.taken != self._total:
            self.taken = self._total
            self._journal.plan_credit()
        batch = await self._journal.events_after(self._given)
        if not batch:
            if self._journal.finished:
                return None
            try:
                async with asyncio.timeout(seconds):
                    await self._journal.wait_for_more()
            except TimeoutError:
                return []
            batch = await self._journal.events_after(self._given)
        if batch:
            self._given, self._total = batch[-1].id, batch[-1].total
        return batch

    def close(self) -> None:
        """See `Reader`."""
        self._journal.forget(self)


class StoredReader:
    """A reader of a run that has ended and is in the database."""

    def __init__(self, store: Store, run: int, after: int) -> None:
        self._store = store
        self._run = run
        self._given = after

    async def next(self, seconds: float | None = None) -> list[Event] | None:  # noqa: ARG002
        """See `Reader`."""
        batch = await read_stored(self._store, self._run, self._given)
        if not batch:
            return None
        self._given = batch[-1].id
        return batch

    def close(self) -> None:
        """See `Reader`."""


async def stored_messages(store: Store, run: int) -> list[bytes]:
    """Return all messages of a run that has ended."""
    rows = await store.read(lambda connection: _rows(connection, run))
    return [e.data for row in rows for e in _unpack(*row) if e.kind == "message"]


async def read_stored(store: Store, run: int, after: int) -> list[Event]:
    """Return a batch of the stored events after an id; [] when there are none."""

    def select(connection: Connection) -> tuple[int, bytes] | None:
        # Rows do not overlap, so the one with the largest first id up to here holds the next event
        # or ends before it.
        found = connection.execute(
            "SELECT first, body FROM run_events WHERE run = ? AND first <= ?"
            " ORDER BY first DESC LIMIT 1",
            (run, after + 1),
        ).fetchone()
        return (found["first"], found["body"]) if found else None

    row = await store.read(select)
    return _batch([e for e in _unpack(*row) if e.id > after]) if row else []


def insert_events(connection: Connection, run: int, row: tuple[int, bytes]) -> None:
    """Store the events of one row (first id, body)."""
    connection.execute("INSERT INTO run_events VALUES (?, ?, ?)", (run, *row))


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
    last = _unpack(*rows[0])[-1]
    return last.id, last.total


def _rows(
    connection: Connection, run: int, order: str = "ORDER BY first"
) -> list[tuple[int, bytes]]:
    sql = f"SELECT first, body FROM run_events WHERE run = ? {order}"  # noqa: S608 - ours
    return [(row["first"], row["body"]) for row in connection.execute(sql, (run,))]


def _batch(events: list[Event]) -> list[Event]:
    size = 0
    for count, event in enumerate(events, 1):
        size += event.size
        if size >= _BATCH_BYTES:
            return events[:count]
    return events


def _pack(events: list[Event]) -> bytes:
    first = events[0]
    before = first.total - (len(first.data) if first.kind == "message" else 0)
    body: bytes = msgpack.packb([before, [[e.kind, e.data] for e in events]])
    return body


def _unpack(first: int, body: bytes) -> list[Event]:
    total, packed = msgpack.unpackb(body)
    events = []
    for number, (kind, data) in enumerate(packed):
        total += len(data) if kind == "message" else 0
        events.append(Event(first + number, kind, data, total))
    return events
