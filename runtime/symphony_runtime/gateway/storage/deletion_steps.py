"""Deletion in steps that fit into the disk's reserve.

Deleted rows are overwritten, so the database's log grows by the pages that a deletion touches. On
a full disk it has only the reserve for that.
"""

import asyncio
from collections.abc import Callable, Iterable

from symphony_runtime.gateway.storage.database import Connection
from symphony_runtime.gateway.storage.store import Store

STEP_BYTES = 2 << 20  # of one transaction, exceeded by one row at most
_ROW_BYTES = 16 << 10  # of a small row: a page of the table and of each index
STEP_ROWS = STEP_BYTES // _ROW_BYTES
_PAUSE_SECONDS = 0.01  # between steps, so that other operations run in between


async def delete_in_steps(store: Store, step: Callable[[Connection], int]) -> int:
    """Repeat a deletion until it deletes nothing; return the number of rows."""
    deleted = 0
    while some := await store.write(step):
        deleted += some
        await asyncio.sleep(_PAUSE_SECONDS)
    return deleted


def delete_some(
    connection: Connection, *, tenant: str, table: str, key: str, large: Iterable[str] = ()
) -> int:
    """Delete a tenant's rows from a table, up to one step; return their number.

    `key` identifies a row of the tenant; `large` are the columns of unbounded size.
    """
    size = " + ".join([str(_ROW_BYTES), *(f"LENGTH({column})" for column in large)])
    some = (
        f"SELECT {key} AS key, {size} AS size FROM {table}"  # noqa: S608 - ours
        " WHERE tenant = ? LIMIT ?"
    )
    budget, deleted = STEP_BYTES, 0
    for row in connection.execute(some, (tenant, STEP_ROWS)).fetchall():
        if deleted and row["size"] > budget:
            break
        sql = f"DELETE FROM {table} WHERE tenant = ? AND {key} = ?"  # noqa: S608 - ours
        connection.execute(sql, (tenant, row["key"]))
        budget, deleted = budget - row["size"], deleted + 1
    return deleted
