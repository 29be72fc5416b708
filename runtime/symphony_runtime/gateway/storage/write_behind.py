"""Write-behind: records that are gathered in memory and written in batches.

    a record -> schedule_write -> a moment passes -> the batch is written in one operation

A batch that could not be written is restored and goes with the next one. The log reports the first
failure, and the first success after it. A gateway that is killed loses its last batch; one that
ends while its storage fails loses what it restored. All of it belongs to the event loop.
"""

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from functools import partial
from typing import Generic, TypeVar

from symphony_runtime.gateway.storage.database import Connection, StorageError
from symphony_runtime.gateway.storage.store import Store

_log = logging.getLogger(__name__)
Batch = TypeVar("Batch")


class WriteBehind(ABC, Generic[Batch]):
    """Gathers and writes. `run` it until cancelled, then `close`."""

    def __init__(self, store: Store, seconds: float, words: str) -> None:
        """A batch is gathered for `seconds`; `words` name it in the log."""
        self.store = store
        self._seconds = seconds
        self._words = words
        self._wake = asyncio.Event()
        self._failing = False  # the last write failed, and the log says so

    # -- Of the subclass -----------------------------------------------------------------------
    @abstractmethod
    def take_batch(self) -> Batch | None:
        """Return what was gathered and start anew; None: there is nothing to write."""

    @abstractmethod
    def insert_batch(self, connection: Connection, batch: Batch) -> None:
        """Write a batch; in the store's thread."""

    @abstractmethod
    def restore_batch(self, batch: Batch) -> None:
        """Put back a batch that could not be written, as far as its bound allows."""

    # -- Writing -------------------------------------------------------------------------------
    def schedule_write(self) -> None:
        """Have `run` write what was gathered, a moment later."""
        self._wake.set()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(self._seconds)
            with contextlib.suppress(*self.store.errors):  # `flush` has logged it
                await self.flush()

    async def close(self) -> None:
        """Write what was gathered; what fails now is lost."""
        try:
            await self.flush()
        except self.store.errors as error:
            _log.error("%s could not be written and is lost: %s", self._words, error)

    async def flush(self) -> None:
        """Write what was gathered; on an error restore it and raise."""
        self._wake.clear()
        batch = self.take_batch()
        if batch is None:
            return
        try:
            await self.store.write(partial(self.insert_batch, batch=batch))
        except self.store.errors as error:  # not of a cancel: that write is under way
            self.restore_batch(batch)
            self.schedule_write()
            if not self._failing:
                ours = None if isinstance(error, StorageError) else error  # a bug
                words = "%s cannot be written yet and stays in memory: %s"
                _log.error(words, self._words, error, exc_info=ours)
            self._failing = True
            raise
        if self._failing:
            _log.info("%s is written again", self._words)
        self._failing = False
