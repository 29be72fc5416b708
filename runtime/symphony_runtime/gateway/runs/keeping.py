"""Keeps what has ended, as far as it is kept; as often as it takes."""

from collections.abc import Callable

from symphony_runtime.gateway.runs.live_run import Run
from symphony_runtime.gateway.runs.record import Record, insert_run
from symphony_runtime.gateway.runs.trace import store_end
from symphony_runtime.gateway.runs.usage import RunUsage
from symphony_runtime.gateway.storage.database import Connection, StorageError
from symphony_runtime.gateway.storage.store import Store


async def keep_end(
    store: Store,
    run: Run,
    ended: Record,
    row: tuple[int, bytes],
    ledger: RunUsage,
    put_off: Callable[[StorageError], None],
) -> int | None:
    """Store a run's end and return its size; None: a run that passes is kept only if it failed.

    What it used is counted in either case. While the storage fails it is tried again; `put_off`
    hears of each failure.
    """
    if run.passing and ((ended.status, ended.exit_code) == ("exited", 0) or run.unwanted):
        ledger.count(ended.tenant, ended.usage or {})
        return None
    begun = run.record if run.passing else None  # the others' are there since they began
    packed = run.trace.pack() if run.trace else None

    def keep(connection: Connection) -> int:
        if begun is not None:
            insert_run(connection, begun)
        return store_end(connection, ended, row, packed)

    size = await store.insist(keep, ended.tenant, put_off)
    if not run.passing:
        run.journal.stored()
    return size
