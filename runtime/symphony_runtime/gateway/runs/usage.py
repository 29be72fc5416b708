"""Usage of tenants: runs that ended on each day (UTC) and what they used.

A stored run is counted in the transaction that stores its end, so that both are there or neither.
An ephemeral run that is not stored costs no write of its own: such runs are summed in memory and
written in batches (`storage.write_behind`).
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from symphony_runtime.gateway.storage.database import Connection
from symphony_runtime.gateway.storage.store import Store
from symphony_runtime.gateway.storage.write_behind import WriteBehind

_BATCH_SECONDS = 1.0
_DAY_MS = 86_400_000
# Sums of a run's usage. Not `peak_memory_bytes`: peaks do not add up.
SUMMED = (
    "prompt_tokens", "cached_tokens", "completion_tokens", "cpu_ms", "wall_ms", "kv_token_ms",
    "syscalls",
)  # fmt: skip
COLUMNS = ("tenant", "day", "runs", *SUMMED)
_Batch = dict[tuple[str, str], Counter[str]]  # (tenant, day): runs, and sums by SUMMED

_ADDED = ", ".join(f"{name} = tenant_usage.{name} + excluded.{name}" for name in COLUMNS[2:])
_ADD = (
    f"INSERT INTO tenant_usage ({', '.join(COLUMNS)})"  # noqa: S608 - ours
    f" VALUES ({', '.join('?' * len(COLUMNS))}) ON CONFLICT (day, tenant) DO UPDATE SET {_ADDED}"
)


def day_of(ms: int) -> str:
    """Return the day (UTC) of a time in milliseconds since 1970, as YYYY-MM-DD."""
    return _day(ms // _DAY_MS)


@lru_cache(maxsize=8)
def _day(number: int) -> str:
    return datetime.fromtimestamp(number * _DAY_MS / 1000, UTC).strftime("%Y-%m-%d")


def add_usage(connection: Connection, tenant: str, ended_ms: int, usage: Mapping[str, int]) -> None:
    sums = (usage.get(name, 0) for name in SUMMED)
    connection.execute(_ADD, (tenant, day_of(ended_ms), 1, *sums))


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """Which days to list, `first` to `last`, of which tenant ("": all).

    `after` is a place in the listing: behind that day and tenant.
    """

    tenant: str = ""
    first: str = ""
    last: str = "9999-99-99"
    after: tuple[str, str] = ("", "")


def usage_page(connection: Connection, query: UsageQuery, limit: int) -> list[dict[str, Any]]:
    rows = connection.execute(
        f"SELECT {', '.join(COLUMNS)} FROM tenant_usage"  # noqa: S608 - ours
        " WHERE (day, tenant) > (?, ?) AND day >= ? AND day <= ? AND (? = '' OR tenant = ?)"
        " ORDER BY day, tenant LIMIT ?",
        (*query.after, query.first, query.last, query.tenant, query.tenant, limit),
    )
    return [dict(row) for row in rows]


class RunUsage(WriteBehind[_Batch]):
    """Counts the runs of which only the usage is stored, by tenant and day."""

    def __init__(self, store: Store, now_ms: Callable[[], int]) -> None:
        super().__init__(store, _BATCH_SECONDS, "usage of tenants")
        self._now_ms = now_ms
        self._sums: _Batch = {}

    def count(self, tenant: str, usage: Mapping[str, int]) -> None:
        sums = self._sums.setdefault((tenant, day_of(self._now_ms())), Counter())
        sums["runs"] += 1
        sums.update(usage)
        self.schedule_write()

    def take_batch(self) -> _Batch | None:
        sums, self._sums = self._sums, {}
        return sums or None

    def insert_batch(self, connection: Connection, batch: _Batch) -> None:
        for key, sums in batch.items():
            connection.execute(_ADD, (*key, *(sums[name] for name in COLUMNS[2:])))

    def restore_batch(self, batch: _Batch) -> None:
        for key, sums in batch.items():
            self._sums.setdefault(key, Counter()).update(sums)
