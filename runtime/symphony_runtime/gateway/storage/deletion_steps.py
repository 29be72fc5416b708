"""Deletion in steps that fit into the disk's reserve.

What is deleted is overwritten, so the database's log grows by the pages that a deletion touches,
and on a full disk it has only the reserve for that.
"""

import asyncio
from collections.abc import Callable, Iterable

from symphony_runtime.gateway.storage.database import Connection
from symphony_runtime.gateway.storage.store import Store

STEP_BYTES = 2 << 20  # of one transaction, and at most one row more
_ROW_BYTES = 16 << 10  # a small row: a page of the table and of each index
STEP_ROWS = STEP_BYTES // _ROW_BYTES
_PAUSE_SECONDS = 0.01  # between steps, so that others' operations come in between


async def delete_in_steps(store: Store, step: Callable[[Connection], int]) -> int:
    """Write an operation that deletes some rows until it finds none; return how many it deleted."""
    deleted = 0
    while some := await store.write(step):
        deleted += some
        await asyncio.sleep(_PAUSE_SECONDS)
    return deleted


def delete_some(
    connection: Connection, *, tenant: str, table: str, key: str, large: Iterable[str] = ()
) -> int:
    """Delete rows of a tenant from a table, as many as one step takes; return how many.

    `key` tells a tenant's rows apart, and `large` are the columns of any size.
    """
    size = " + ".join([str(_ROW_BYTES), *(f"LENGTH({column})" for column in large)])
    some = (
        f"SELECT {key} AS key, {size} AS size FROM {table}"  # noqa: S608 - ours
        " WHERE tenant = ? LIMIT ?"
    )
    room, deleted = STEP_BYTES, 0
    for row in connection.execute(some, (tenant, STEP_ROWS)).fetchall():
        if deleted and row["size"] > room:
            break
        sql = f"DELETE FROM {table} WHERE tenant = ? AND {key} = ?"  # noqa: S608 - ours
        connection.execute(sql, (tenant, row["key"]))
        room, deleted = room - row["size"], deleted + 1
    return deleted
