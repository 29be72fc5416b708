"""What happens to the runs of a tenant, for readers of `GET /v1/events`.

    a run starts, waits, ends ── note ──> the tenant's last changes ──> readers, at their own pace

Changes are kept for tenants with a reader, and for RUN_CHANGES_KEPT_SECONDS after the last one, so
that it can resume. Without any reader `note` looks at an empty map and returns. A reader holds a
place among the changes, and no changes: one that falls behind the oldest is told to list the runs
again. Operators have a feed over all tenants, which says no more than whose run has which status.
"""

import asyncio
import json
import time
from collections import deque
from itertools import islice
from typing import Any

from symphony_kernel.protocol.limits import RUN_CHANGES_KEPT_MAX, RUN_CHANGES_KEPT_SECONDS

from symphony_runtime.gateway.runs.record import Record

_BATCH = 128  # changes that a reader gets at once
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_REASON_CHARACTERS = 300  # a run itself has all of its reason
_OF_OPERATORS = ("id", "status", "limit", "waits_for", "usage", "created_ms", "ended_ms")


class _Feed:
    """The last changes of one tenant, encoded; of all tenants for operators."""

    def __init__(self) -> None:
        self.changes: deque[bytes] = deque(maxlen=RUN_CHANGES_KEPT_MAX)
        # Ids begin at the time, in microseconds: a later feed, or another gateway's, has none of
        # the same. A count over all tenants would tell each how much the others do.
        self.last = time.time_ns() // 1_000
        self.readers = 0
        self.closed = False
        self.drop: asyncio.TimerHandle | None = None  # set while it has no reader
        self.waiting: list[asyncio.Future[None]] = []

    def add(self, data: dict[str, Any]) -> None:
        self.last += 1
        body = _encode(data).encode()
        self.changes.append(b"id: %d\nevent: run\ndata: %b\n\n" % (self.last, body))
        self.wake()

    def begin(self, *, resumed: bool) -> bytes:
        words = b"true" if resumed else b"false"
        return b'id: %d\nevent: begin\ndata: {"resumed":%b}\n\n' % (self.last, words)

    def has_all_after(self, after: int) -> bool:
        return self.last - len(self.changes) <= after <= self.last

    def wake(self) -> None:
        waiting, self.waiting = self.waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)


class RunFeed:
    """The feeds of the tenants with readers. Belongs to the event loop."""

    def __init__(self) -> None:
        self._feeds: dict[str | None, _Feed] = {}  # None: the operators'

    def note(self, record: Record, *, kept: bool = True) -> None:
        """Tell readers how a run stands now; not `kept`: it is forgotten when it ends so."""
        if self._feeds:
            self._note(record, kept=kept)

    def open_reader(self, tenant: str | None, after: int) -> "FeedReader":
        """Open a reader of a tenant's runs, or of all tenants' (None), behind a change's id."""
        feed = self._feeds.get(tenant)
        if feed is None:
            feed = self._feeds[tenant] = _Feed()
        feed.readers += 1
        if feed.drop is not None:
            feed.drop.cancel()
            feed.drop = None
        return FeedReader(self, tenant, feed, after)

    def forget_tenant(self, tenant: str) -> None:
        """End the readers of a deleted tenant: another may get its name."""
        self._close(tenant)

    def close(self) -> None:
        """End all readers: the server ends."""
        for tenant in list(self._feeds):
            self._close(tenant)

    def drop_later(self, tenant: str | None, feed: _Feed) -> None:
        """Drop a feed without readers unless one comes back in time."""

        def drop() -> None:
            if self._feeds.get(tenant) is feed:
                del self._feeds[tenant]

        loop = asyncio.get_running_loop()
        feed.drop = loop.call_later(RUN_CHANGES_KEPT_SECONDS, drop)

    def _note(self, record: Record, *, kept: bool) -> None:
        own, operators = self._feeds.get(record.tenant), self._feeds.get(None)
        if own is None and operators is None:
            return
        view = record.view()
        del view["limits"]  # they do not change
        for name in ("reason", "error"):
            view[name] = view[name] and view[name][:_REASON_CHARACTERS]
        if own is not None:
            own.add({**view, "kept": kept})
        if operators is not None:
            shown = {name: view[name] for name in _OF_OPERATORS}
            operators.add({"tenant": record.tenant, **shown})

    def _close(self, tenant: str | None) -> None:
        feed = self._feeds.pop(tenant, None)
        if feed is not None:
            feed.closed = True
            feed.wake()


class FeedReader:
    """A place in a feed. Close it: the feed counts its readers."""

    def __init__(self, feeds: RunFeed, tenant: str | None, feed: _Feed, after: int) -> None:
        self._feeds, self._tenant, self._feed = feeds, tenant, feed
        resumed = feed.has_all_after(after)
        self._after = after if resumed else feed.last
        self.greeting = feed.begin(resumed=resumed)

    @property
    def behind(self) -> bool:
        """Whether there are changes that the reader has not got."""
        return self._after < self._feed.last

    async def next(self, seconds: float) -> bytes | None:
        """Return the next changes; b"" when none came within `seconds`, None at the end."""
        feed = self._feed
        if self._after == feed.last and not feed.closed and seconds:
            more = asyncio.get_running_loop().create_future()
            feed.waiting.append(more)
            try:
                async with asyncio.timeout(seconds):
                    await more
            except TimeoutError:
                pass
            finally:
                if more in feed.waiting:  # a change that came just now has taken it out
                    feed.waiting.remove(more)
        if feed.closed:
            return None
        if not feed.has_all_after(self._after):  # it was too slow
            self._after = feed.last
            return feed.begin(resumed=False)
        behind = feed.last - self._after
        first = len(feed.changes) - behind
        count = min(behind, _BATCH)
        self._after += count
        return b"".join(islice(feed.changes, first, first + count))

    def close(self) -> None:
        self._feed.readers -= 1
        if not self._feed.readers and not self._feed.closed:
            self._feeds.drop_later(self._tenant, self._feed)
