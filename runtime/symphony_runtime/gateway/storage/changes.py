"""Changes by other gateways of the same database.

    instance ids   each start of a gateway has a unique number (`record.next_boot`)
    live runs      belong to the gateway that started them: only its successor in the same data
                   directory fails what it left
    programs       modules are in the database, too; each gateway has its own machine code
    counted        a change of tenants, keys, programs or their names raises a counter in the same
                   transaction; each gateway reads the counter once a second, and then reloads

So a key that one gateway revokes is refused by the others, and its open requests are cut, a moment
later. While the database is away the last known state holds. Each gateway reports at intervals
that it runs (`cluster.members`).
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path

from symphony_runtime.gateway.storage.data_directory import write_durably
from symphony_runtime.gateway.storage.database import Connection, StoreError
from symphony_runtime.gateway.storage.store import Store

_log = logging.getLogger(__name__)
_LOOK_SECONDS = 1.0
_BEAT_SECONDS = 15.0
Action = Callable[[], Awaitable[None]]


def gateway_name(data_dir: Path) -> str:
    """Return the name of a data directory's gateway; the first start makes it.

    Raises StoreError: the name cannot be written, or the file is empty or not text.
    """
    path = data_dir / "gateway.id"
    try:
        if not path.exists():
            write_durably(path, secrets.token_hex(8).encode() + b"\n")
        path.chmod(0o600)  # an earlier version left it readable to all users
        name = path.read_text("utf-8").strip()
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError:
        name = ""
    if not name:
        raise StoreError(
            f"{path} has no gateway's name. Restore the file; or, if no other gateway uses the "
            "database, delete it: runs that were live at the last end then stay unfinished"
        )
    return name


def note_change(connection: Connection) -> None:
    """Count a change of tenants, keys or programs, in the same transaction."""
    connection.execute("UPDATE meta SET value = value + 1 WHERE key = 'changes'")


def read_changes(connection: Connection) -> int:
    (value,) = connection.execute("SELECT value FROM meta WHERE key = 'changes'").fetchone()
    return int(value)


class ChangeFeed:
    """Reloads what other gateways change; `run` until it is cancelled."""

    def __init__(self, store: Store, beat: Action, *reloads: Action) -> None:
        """`beat` reports that this gateway runs; `reloads` are called in their order."""
        self._store = store
        self._beat = beat
        self._reloads = reloads
        self._seen = -1

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        beaten = loop.time()
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                await self.reload_changes()
                if loop.time() - beaten > _BEAT_SECONDS:
                    await self._beat()
                    beaten = loop.time()
            except self._store.errors as error:
                _log.warning("changes of other gateways cannot be read: %s", error)

    async def reload_changes(self) -> None:
        """Reload if something changed since the last look."""
        changes = await self._store.read(read_changes)
        if changes == self._seen:
            return
        for reload in self._reloads:
            await reload()
        self._seen = changes  # only now: a reload that failed is repeated
