"""What is gathered in memory and written in lots: many notes a second, a write now and then.

    note -> wake -> a moment passes -> the lot is taken and written in one go

What could not be written is taken back and goes with the next lot; the log says so once, and once
when it is written. A gateway that is killed loses its last lot, and one that ends while its storage
fails loses what it has taken back.
"""

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from symphony_runtime.gateway.storage.database import Connection, StorageError
from symphony_runtime.gateway.storage.store import Store

_log = logging.getLogger(__name__)
Lot = TypeVar("Lot")


class WriteBehind(ABC, Generic[Lot]):
    """Gathers and writes; `run` until it is cancelled, then `flush`. Belongs to the event loop."""

    def __init__(self, store: Store, seconds: float, words: str) -> None:
        """A lot is gathered for so many seconds; `words` say in the log what it is."""
        self.store = store
        self._seconds = seconds
        self._words = words
        self._wake = asyncio.Event()
        self._failing = False  # the last attempt to write failed, and the log says so

    # -- What there is to write ----------------------------------------------------------------
    @abstractmethod
    def take(self) -> Lot | None:
        """Return what was gathered, and begin anew; None: there is nothing to write."""

    @abstractmethod
    def insert(self, connection: Connection, lot: Lot) -> None:
        """Write a lot; in the store's thread."""

    @abstractmethod
    def take_back(self, lot: Lot) -> None:
        """Keep what could not be written for the next time: no more than there is room for."""

    # -- When ----------------------------------------------------------------------------------
    def wake(self) -> None:
        """There is something to write."""
        self._wake.set()

    async def run(self) -> None:
        """Write what was gathered, a moment after it was."""
        while True:
            await self._wake.wait()
            await asyncio.sleep(self._seconds)
            with contextlib.suppress(*self.store.errors):  # `flush` has said it
                await self.flush()

    async def close(self) -> None:
        """Write what was gathered, if it can be written: there is no next time."""
        try:
            await self.flush()
        except self.store.errors as error:
            _log.error("%s could not be written and is lost: %s", self._words, error)

    async def flush(self) -> None:
        """Write what was gathered so far; what cannot be written is kept, and its error raised."""
        self._wake.clear()
        lot = self.take()
        if lot is None:
            return
        taken: Lot = lot
        try:
            await self.store.write(lambda connection: self.insert(connection, taken))
        except self.store.errors as error:  # and not a cancel: the write is under way
            self.take_back(lot)
            self.wake()
            if not self._failing:
                ours = None if isinstance(error, StorageError) else error  # a fault in our code
                words = "%s cannot be written yet, and is kept in memory: %s"
                _log.error(words, self._words, error, exc_info=ours)
            self._failing = True
            raise
        if self._failing:
            _log.info("%s is written again", self._words)
        self._failing = False
