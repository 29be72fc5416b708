"""Versions of names in the database: which programs a name has pointed at.

    upload or alias -> point_name: note the version, move the name -> drop_oldest, past the limit

A version is dropped with its program, unless another name has that, too. What a name points at, or
a live run uses, is never dropped for another's sake. Each function is one transaction. It locks
the row of the one program that it changes, so that no other gateway points a name at it meanwhile.
"""

from symphony_kernel.protocol.limits import (
    PROGRAM_VERSION_DIGITS_MIN,
    TENANT_PROGRAM_VERSIONS_CEILING,
)

from symphony_runtime.gateway.storage.changes import note_change
from symphony_runtime.gateway.storage.database import Connection, Row

_VERSIONS = """SELECT p.*, v.name AS name, v.added_ms AS added_ms,
    CASE WHEN n.program = v.program THEN 1 ELSE 0 END AS current
    FROM program_versions v
    JOIN programs p ON p.tenant = v.tenant AND p.id = v.program
    LEFT JOIN program_names n ON n.tenant = v.tenant AND n.name = v.name
    WHERE v.tenant = ? AND v.name = ?"""
_NOT_LIVE = (
    " AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.status IN ('queued', 'running')"
    " AND r.tenant = p.tenant AND r.program = p.id)"
)
# Programs that are only older versions: a tenant's new programs may take their place.
_UNNEEDED = (
    "SELECT p.id AS program, p.size AS size FROM programs p WHERE p.tenant = ?"  # noqa: S608 - ours
    " AND EXISTS (SELECT 1 FROM program_versions v"
    " WHERE v.tenant = p.tenant AND v.program = p.id)"
    " AND NOT EXISTS (SELECT 1 FROM program_names n"
    " WHERE n.tenant = p.tenant AND n.program = p.id)"
    f"{_NOT_LIVE} ORDER BY COALESCE(p.used_ms, 0), p.created_ms, p.id"
)


def point_name(
    connection: Connection, tenant: str, name: str, program: str, now_ms: int, *, uploaded: bool
) -> bool:
    """Point a name at a program, a version of it from now on; False: the program is gone.

    `uploaded`: the version is the name's newest, even if it was there before.
    """
    used = "UPDATE programs SET used_ms = ? WHERE tenant = ? AND id = ?"
    if not connection.execute(used, (now_ms, tenant, program)).rowcount:
        return False
    again = "UPDATE SET added_ms = excluded.added_ms, turn = excluded.turn"
    connection.execute(
        "INSERT INTO program_versions VALUES (?, ?, ?, ?,"  # noqa: S608 - ours
        " (SELECT COALESCE(MAX(turn), 0) + 1 FROM program_versions WHERE tenant = ?))"
        f" ON CONFLICT (tenant, name, program) DO {again if uploaded else 'NOTHING'}",
        (tenant, name, program, now_ms, tenant),
    )
    connection.execute(
        "INSERT INTO program_names VALUES (?, ?, ?, ?,"
        " (SELECT COALESCE(MAX(turn), 0) + 1 FROM program_names WHERE tenant = ?))"
        " ON CONFLICT (tenant, name) DO UPDATE SET"
        " program = excluded.program, named_ms = excluded.named_ms, turn = excluded.turn",
        (tenant, name, program, now_ms, tenant),
    )
    note_change(connection)
    return True


def list_versions(connection: Connection, tenant: str, name: str) -> list[Row]:
    """Return the newest programs that are versions of a name, the newest first."""
    # Live runs may keep more versions than the limit; the oldest of these are not listed.
    sql = f"{_VERSIONS} ORDER BY v.turn DESC LIMIT ?"
    most = TENANT_PROGRAM_VERSIONS_CEILING
    return connection.execute(sql, (tenant, name, most)).fetchall()


def find_version(connection: Connection, tenant: str, name: str, version: str) -> Row | None:
    """Return a version by its digest or the first digits of it; None also if several have them."""
    sql = f"{_VERSIONS} AND SUBSTR(v.program, 1, ?) = ? LIMIT 2"
    wanted = f"sha256:{version.removeprefix('sha256:')}"
    if len(wanted) < len("sha256:") + PROGRAM_VERSION_DIGITS_MIN:
        return None
    rows = connection.execute(sql, (tenant, name, len(wanted), wanted)).fetchall()
    return rows[0] if len(rows) == 1 else None


def drop_version(connection: Connection, tenant: str, name: str, program: str) -> bool | None:
    """Drop a version that its name does not point at; return whether its program went with it.

    None: the name points at it, or it is gone.
    """
    if not _lock(connection, tenant, program):
        return None
    key = (tenant, name, program)
    of_name = "tenant = ? AND name = ? AND program = ?"
    if connection.execute(f"SELECT 1 FROM program_names WHERE {of_name}", key).fetchone():  # noqa: S608
        return None
    if not connection.execute(f"DELETE FROM program_versions WHERE {of_name}", key).rowcount:  # noqa: S608
        return None
    note_change(connection)
    others = "SELECT 1 FROM program_versions WHERE tenant = ? AND program = ? LIMIT 1"
    if connection.execute(others, (tenant, program)).fetchone():
        return False
    delete_rows(connection, tenant, program)
    return True


def drop_oldest(
    connection: Connection, tenant: str, name: str, most: int
) -> tuple[str, bool] | None:
    """Drop the least recently used version of a name that has more than `most`.

    Return it, and whether its program went with it; None: there is none to drop.
    """
    counted = "SELECT COUNT(*) FROM program_versions WHERE tenant = ? AND name = ?"
    (count,) = connection.execute(counted, (tenant, name)).fetchone()
    if count <= most:
        return None
    oldest = (
        f"{_VERSIONS} AND (n.program IS NULL OR n.program != v.program){_NOT_LIVE}"
        " ORDER BY COALESCE(p.used_ms, 0), v.turn LIMIT 1"
    )
    row = connection.execute(oldest, (tenant, name)).fetchone()
    if row is None:
        return None
    gone = drop_version(connection, tenant, name, row["id"])
    return None if gone is None else (row["id"], gone)


def drop_unneeded(connection: Connection, tenant: str) -> str | None:
    """Drop the least recently used program that is only an older version; return its id."""
    row = connection.execute(f"{_UNNEEDED} LIMIT 1", (tenant,)).fetchone()
    if row is None or not _lock(connection, tenant, row["program"]):
        return None
    named = "SELECT 1 FROM program_names WHERE tenant = ? AND program = ?"
    if connection.execute(named, (tenant, row["program"])).fetchone():
        return None
    delete_rows(connection, tenant, row["program"])
    note_change(connection)
    return str(row["program"])


def count_unneeded(connection: Connection, tenant: str) -> tuple[int, int]:
    """Return how many programs `drop_unneeded` could drop, and their bytes."""
    sql = f"SELECT COUNT(*), COALESCE(SUM(size), 0) FROM ({_UNNEEDED}) AS unneeded"  # noqa: S608
    programs, size = connection.execute(sql, (tenant,)).fetchone()
    return int(programs), int(size)


def delete_rows(connection: Connection, tenant: str, program: str) -> None:
    """Delete a program with the names that point at it, and with these names' versions."""
    key = (tenant, program)
    connection.execute("DELETE FROM programs WHERE tenant = ? AND id = ?", key)
    connection.execute("DELETE FROM program_bytes WHERE tenant = ? AND id = ?", key)
    connection.execute("DELETE FROM program_versions WHERE tenant = ? AND program = ?", key)
    connection.execute(
        "DELETE FROM program_versions WHERE tenant = ? AND name IN"
        " (SELECT name FROM program_names WHERE tenant = ? AND program = ?)",
        (tenant, *key),
    )
    connection.execute("DELETE FROM program_names WHERE tenant = ? AND program = ?", key)


def _lock(connection: Connection, tenant: str, program: str) -> bool:
    """Lock a program's row until the transaction ends; False: it is gone."""
    sql = "UPDATE programs SET size = size WHERE tenant = ? AND id = ?"
    return bool(connection.execute(sql, (tenant, program)).rowcount)
