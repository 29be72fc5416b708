"""Events of runs, read in small parts: an idle reader holds no events.

    Event              one event for readers; a large message comes in several parts
    Cursor             a place in a run's events; it returns the next PART_BYTES
    StoredEventCache   rows of stored events: one copy for all readers of a tenant, bounded

Parts of one tenant are made one after the other. Of large parts, each tenant makes at most one in
a pass of the event loop: a thousand readers of one tenant cost the others as much as one.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgpack
from symphony_kernel.protocol.limits import REPLAY_BYTES_MAX, TENANT_REPLAY_BYTES_MAX

from symphony_runtime.gateway.admission.tenant_lock import TenantLocks
from symphony_runtime.gateway.storage.database import Connection

PART_BYTES = 3 * 2_048  # that a reader gets at once; a multiple of 3: base64 has no padding within
LOG_CHARACTERS = PART_BYTES // 6  # of one log event: JSON may need six bytes for each
_EVENT_BYTES = 64  # overhead of an event
_ROWS_KEPT = 64  # in memory, of one tenant


@dataclass(slots=True)
class Event:
    """One event, or a part of it: `begins` and `ends` say which part.

    `data` is the bytes of a message, else a map for JSON. `total`: message bytes up to its end.
    """

    id: int
    kind: str
    data: Any
    total: int
    begins: bool = True
    ends: bool = True
    _text: bool | None = None

    @property
    def size(self) -> int:
        """Approximate bytes of the event."""
        if isinstance(self.data, bytes):
            return _EVENT_BYTES + len(self.data)
        return _EVENT_BYTES + 128 + len(self.data.get("text", ""))

    @property
    def is_text(self) -> bool:
        """Whether the whole message is UTF-8; a part repeats it for its message."""
        if self._text is None:
            try:
                self.data.decode()
                self._text = True
            except UnicodeDecodeError:
                self._text = False
        return self._text

    def part(self, start: int) -> "Event":
        """Return the part of a message from byte `start`; text is cut between characters."""
        stop = min(start + PART_BYTES, len(self.data))
        if stop < len(self.data) and self.is_text:
            while self.data[stop] & 0xC0 == 0x80:
                stop -= 1
        total = self.total - len(self.data) + stop
        data = self.data[start:stop]
        return Event(
            self.id, self.kind, data, total, start == 0, stop == len(self.data), self.is_text
        )


Read = Callable[[Callable[[Connection], list[Event]]], Awaitable[list[Event]]]
Fetch = Callable[[int], Awaitable[list[Event]]]  # returns events after an id, or []


class Cursor:
    """A place in a run's events. Close it to release the rows it read."""

    def __init__(
        self,
        stored_events: "StoredEventCache",
        tenant: str,
        fetch: Fetch,
        after: int,
        until: int | None = None,
    ) -> None:
        """Start after an event's id; stop at `until`."""
        self._stored_events = stored_events
        self._tenant = tenant
        self._fetch = fetch
        self._after = after
        self._offset = 0  # bytes of the next event that were returned
        self._until = until
        self._open = True
        stored_events.add_reader(tenant)

    async def next(self) -> list[Event]:
        """Return the next events, about PART_BYTES, or one part of one; [] if none."""
        given = self._cut(await self._fetch(self._after))
        if sum(event.size for event in given) >= PART_BYTES:
            await self._stored_events.wait_turn(self._tenant)
        return given

    def _cut(self, events: list[Event]) -> list[Event]:
        """Return the first of some events and move behind them."""
        size, given = 0, list[Event]()
        for event in events:
            if self._until is not None and event.id > self._until:
                break
            is_large = event.kind == "message" and len(event.data) > PART_BYTES
            if is_large and given:
                break
            next_ = event.part(self._offset) if is_large else event
            self._offset += len(next_.data)
            if next_.ends:
                self._after, self._offset = event.id, 0
            given.append(next_)
            size += next_.size
            if size >= PART_BYTES or is_large:
                break
        return given

    def close(self) -> None:
        if self._open:
            self._open = False
            self._stored_events.remove_reader(self._tenant)


class StoredEventCache:
    """Copies of stored events while a tenant has open readers.

    Belongs to the event loop.
    """

    def __init__(self, read: Read) -> None:
        """`read` runs an operation that only reads committed data."""
        self._read = read
        self._readers: Counter[str] = Counter()
        self._rows: dict[str, OrderedDict[tuple[int, int], list[Event]]] = {}  # by (run, first id)
        self._bytes: Counter[str] = Counter()
        self._tenant_locks = TenantLocks()

    @property
    def held(self) -> int:
        return self._bytes.total()

    def add_reader(self, tenant: str) -> None:
        self._readers[tenant] += 1

    def remove_reader(self, tenant: str) -> None:
        """Count one reader less; the last one of a tenant drops the tenant's rows."""
        self._readers[tenant] -= 1
        if not self._readers[tenant]:
            del self._readers[tenant]
            self._rows.pop(tenant, None)
            self._bytes.pop(tenant, None)

    async def wait_turn(self, tenant: str) -> None:
        """Wait until the tenant may make a large part: one in a pass of the event loop."""
        async with self._tenant_locks.of(tenant):
            await asyncio.sleep(0)

    async def events_after(self, tenant: str, run: int, after: int) -> list[Event]:
        """Return stored events after an id: PART_BYTES or all there are.

        The list is shared: do not change it.
        """
        row = self._find(tenant, run, after + 1)
        if row is None:
            async with self._tenant_locks.of(tenant):
                row = self._find(tenant, run, after + 1)
                if row is None:
                    row = await self._load(tenant, run, after + 1)
        if not row or row[-1].id <= after:
            return []
        return up_to_part(row, after + 1 - row[0].id)

    def _find(self, tenant: str, run: int, wanted: int) -> list[Event] | None:
        for key, row in self._rows.get(tenant, {}).items():
            if key[0] == run and key[1] <= wanted <= row[-1].id:
                return row
        return None

    async def _load(self, tenant: str, run: int, wanted: int) -> list[Event]:
        def select(connection: Connection) -> list[Event]:
            # Rows do not overlap, so the one with the largest first id up to here holds the event
            # or ends before it.
            found = connection.execute(
                "SELECT first, body FROM run_events WHERE run = ? AND first <= ?"
                " ORDER BY first DESC LIMIT 1",
                (run, wanted),
            ).fetchone()
            return unpack_events(found["first"], found["body"]) if found else []

        row = await self._read(select)
        if row and tenant in self._readers:
            self._keep(tenant, (run, row[0].id), row)
        return row

    def _keep(self, tenant: str, key: tuple[int, int], row: list[Event]) -> None:
        rows = self._rows.setdefault(tenant, OrderedDict())
        self._bytes[tenant] += _size(row) - _size(rows.pop(key, []))
        rows[key] = row
        while len(rows) > 1 and (
            self._bytes[tenant] > TENANT_REPLAY_BYTES_MAX
            or len(rows) > _ROWS_KEPT
            or self.held > REPLAY_BYTES_MAX
        ):
            _, oldest = rows.popitem(last=False)
            self._bytes[tenant] -= _size(oldest)


async def read_all(cursor: Cursor) -> AsyncGenerator[Event, None]:
    try:
        while events := await cursor.next():
            for event in events:
                yield event
    finally:
        cursor.close()


def up_to_part(events: list[Event], start: int) -> list[Event]:
    """Return events from `start`: up to PART_BYTES, the last one whole."""
    size = 0
    for stop in range(start, len(events)):
        size += events[stop].size
        if size >= PART_BYTES:
            return events[start : stop + 1]
    return events[start:]


def unpack_events(first: int, body: bytes) -> list[Event]:
    total, packed = msgpack.unpackb(body)
    events = []
    for number, (kind, data) in enumerate(packed):
        total += len(data) if kind == "message" else 0
        events.append(Event(first + number, kind, data, total))
    return events


def _size(row: list[Event]) -> int:
    return sum(event.size for event in row)
