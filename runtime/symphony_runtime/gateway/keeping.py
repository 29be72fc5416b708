"""Keeps what has ended, as far as it is kept."""

from symphony_runtime.gateway.live import Run
from symphony_runtime.gateway.run import Record, finish_run, insert_run
from symphony_runtime.gateway.store import Store
from symphony_runtime.gateway.trace import store_end
from symphony_runtime.gateway.usage import Ledger


async def keep_end(
    store: Store, run: Run, ended: Record, row: tuple[int, bytes], ledger: Ledger
) -> int | None:
    """Store a run's end and return its size; None: a run that passes is kept only if it failed.

    What it used is counted in either case.
    """
    if not run.passing:
        packed = run.trace.pack() if run.trace else None
        size = await store.write(lambda c: store_end(c, ended, row, packed), ended.tenant)
        run.journal.stored()
        return size
    if (ended.status, ended.exit_code) == ("exited", 0) or run.unwanted:
        ledger.count(ended.tenant, ended.usage or {})
        return None
    record = run.record
    begun = store.write(lambda connection: insert_run(connection, record), ended.tenant)
    size = await store.write(lambda c: finish_run(c, ended, row), ended.tenant)
    await begun
    return size
