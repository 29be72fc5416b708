"""Other gateways of the same database, each with a kernel and workers of its own.

    instance ids   each start of a gateway has a number that no other has (`run.next_boot`)
    live runs      are those of the gateway that started them: its successor in the same data
                   directory fails what it left, and no other gateway touches it
    programs       modules lie in the database, too; machine code is each gateway's own
    what changes   of tenants, keys, programs and their names is counted in the transaction that
                   changes it; each gateway looks at the count once a second, and reads anew

So a key that one gateway has revoked is refused by the others, and what it has open there is cut
off, a moment later. While the database is away what was known goes on to hold. Each gateway says
now and then that it is there (`members`).
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

from symphony_runtime.gateway.storage.database import Connection, StoreError
from symphony_runtime.gateway.storage.store import Store

_log = logging.getLogger(__name__)
_LOOK_SECONDS = 1.0
_BEAT_SECONDS = 15.0


class Holder(Protocol):
    """Who holds in memory what the database has."""

    async def reload(self) -> None:
        """Read it anew, and have it take effect."""


def gateway_name(data_dir: Path) -> str:
    """Return the name of the gateway that has a data directory; made at its first start.

    Raises:
        StoreError: the name cannot be written, or is none.
    """
    path = data_dir / "gateway.id"
    try:
        if not path.exists():
            whole = path.with_suffix(".new")  # a full disk leaves no empty name
            whole.touch(mode=0o600)
            whole.write_text(secrets.token_hex(8) + "\n")
            whole.replace(path)
        path.chmod(0o600)  # an earlier version left it readable to all users
        name = path.read_text("utf-8").strip()
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError:
        name = ""
    if not name:
        raise StoreError(
            f"{path} has no gateway's name. Restore the file; or, where no other gateway uses the "
            "database, delete it: then runs that were live at the last end stay unfinished"
        )
    return name


def note_change(connection: Connection) -> None:
    """Say that tenants, keys, programs or their names have changed, in the same transaction."""
    connection.execute("UPDATE meta SET value = value + 1 WHERE key = 'changes'")


def read_changes(connection: Connection) -> int:
    """Return how often something has changed."""
    (value,) = connection.execute("SELECT value FROM meta WHERE key = 'changes'").fetchone()
    return int(value)


class ChangeFeed:
    """Sees what other gateways change; `run` until it is cancelled."""

    def __init__(self, store: Store, beat: Callable[[], Awaitable[None]], *holders: Holder) -> None:
        """`beat` says that this gateway is there; holders hear of a change in their order."""
        self._store = store
        self._beat = beat
        self._holders = holders
        self._seen = -1

    async def run(self) -> None:
        """Look once in a while."""
        loop = asyncio.get_running_loop()
        beaten = loop.time()
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                await self.look()
                if loop.time() - beaten > _BEAT_SECONDS:
                    await self._beat()
                    beaten = loop.time()
            except self._store.errors as error:
                _log.warning("what other gateways change is not seen: %s", error)

    async def look(self) -> None:
        """Read anew what has changed since the last look."""
        changes = await self._store.read(read_changes)
        if changes == self._seen:
            return
        for holder in self._holders:
            await holder.reload()
        self._seen = changes  # only now: what could not be read is read again
