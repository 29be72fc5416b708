"""Durable names without a kernel: a directory, a loop, and slots that stand for a device."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from symphony_kernel.executor.base import Int64
from symphony_kernel.kvfs.durable.directory import Directory
from symphony_kernel.kvfs.durable.disk import Disk
from symphony_kernel.kvfs.durable.format import KV, Identity, layout_of
from symphony_kernel.kvfs.durable.names import Done, DurableNames
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.filesystem import KVFS
from symphony_kernel.protocol.errno import SyscallError

T = TypeVar("T")
SHAPE = (1, 2, 0, 16, 1, 1)
IDENTITY = Identity("slots", "", "uint64", layout_of(SHAPE), vocab_size=1_000, max_context=1_024)


class Slots:
    """K and V of a pool: a number for each slot.

    `absent` says that a file's are nowhere, `full` that there is no room for them.
    """

    def __init__(self, kvfs: KVFS) -> None:
        self._kvfs = kvfs
        self.values: Int64 = np.zeros(kvfs.pool.pages * 16, np.int64)
        self.absent = self.full = False

    def compute(self, file: KVFile) -> None:
        """Fill a file's slots with a function of its tokens."""
        self.values[file.slots(np.arange(file.length))] = file.tokens.astype(np.int64) * 7

    def of(self, file: KVFile) -> list[int]:
        return self.values[file.slots(np.arange(file.length))].tolist()  # type: ignore[no-any-return]

    async def read(self, file: KVFile) -> KV | None:
        if self.absent:
            return None
        frames = self._kvfs.pool.frame[file.pages]
        pages = self.values.reshape(-1, 16)[frames]
        return np.stack([pages, pages]).astype(np.uint64).reshape(1, 2, -1, 16, 1, 1)

    async def write(self, file: KVFile, kv: KV) -> bool:
        if self.full:
            return False
        self._kvfs.tiers.give_frames(file.pages)
        self._kvfs.tiers.mark_filled(file.pages)
        frames = self._kvfs.pool.frame[file.pages]
        self.values.reshape(-1, 16)[frames] = kv[0, 0, :, :, 0, 0].astype(np.int64)
        return True


async def inline(work: Callable[[], T]) -> T:
    """Do blocking work at once, but let other tasks run first."""
    await asyncio.sleep(0)
    return work()


class Answers:
    """The outcomes of calls, in order."""

    def __init__(self) -> None:
        self.all: list[str] = []

    def named(self, name: str) -> Done:
        def done(error: SyscallError | None) -> None:
            self.all.append(f"{name}: {error.errno.name if error else 'done'}")

        return done


class DurableRig:
    """A KVFS with durable names in `root`, as one kernel has it."""

    def __init__(self, kvfs: KVFS, root: Path, *, publish: bool = False) -> None:
        self.kvfs = kvfs
        self.directory = Directory(root, lambda: self.identity)
        self.slots = Slots(kvfs)
        self.answers = Answers()
        self.faults: list[BaseException] = []
        self.events: list[tuple[str, list[Any]]] = []
        self.identity = IDENTITY
        self.saving = DurableNames(
            kvfs,
            Disk(self.directory, inline),
            self.slots,
            self.happen,
            self.faults.append,
            publish=publish,
        )
        self.saving.restore(self.directory.open())

    def happen(self, what: str, arguments: list[Any]) -> None:
        """Record an event and apply it, as a kernel with a journal does."""
        self.events.append((what, arguments))
        getattr(self.saving, what)(*arguments)

    def save(self, name: str, file: KVFile, path: str, **given: bool) -> None:
        """Save durably, unless told otherwise; the answer is called `name`."""
        flags = {"replace": True, "durable": True, "public": False, **given}
        if self.saving.save(file, path, self.answers.named(name), **flags):
            self.answers.named(name)(None)

    def remove(self, name: str, path: str, tenant: str = "t") -> None:
        if self.saving.remove(tenant, path, self.answers.named(name)):
            self.answers.named(name)(None)

    async def opened(self, path: str, tenant: str = "t") -> KVFile:
        """Return a view of a name, loaded if it is not."""
        named = self.kvfs.named(tenant, path)
        assert named.name is not None
        if not named.name.loaded:
            loaded: asyncio.Future[SyscallError | None] = asyncio.get_running_loop().create_future()
            self.saving.load(named, loaded.set_result)
            error = await loaded
            if error is not None:
                raise error
        return self.kvfs.open(tenant, path, self.kvfs.tenant(tenant).account)

    async def finish(self) -> list[str]:
        """Wait for all changes, check the references, and return the answers."""
        await self.saving.close()
        assert not self.faults
        assert not self.saving.references()
        return self.answers.all
