"""Durable names in a running kernel: the threads, the device and the clock behind `DurableNames`."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from symphony_kernel.executor.base import Executor, Int32, KVArray
from symphony_kernel.kvfs.durable.directory import Directory
from symphony_kernel.kvfs.durable.disk_io import DiskIO
from symphony_kernel.kvfs.durable.format import Identity, layout_of
from symphony_kernel.kvfs.durable.names import DurableNames
from symphony_kernel.kvfs.durable.transfers import Transfers
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.filesystem import KVFS
from symphony_kernel.kvfs.pages.pool import page_count
from symphony_kernel.kvfs.tiers.tiers import Tier
from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.limits import KV_HEADER_BYTES_MAX, KV_LINEAGE_BYTES_MAX
from symphony_kernel.syscalls.file_requests import FileRequests
from symphony_kernel.syscalls.names import NameCalls

_THREADS = 2  # that write and read: one large file does not hold up all others
_EXPIRY_SECONDS_MIN, _EXPIRY_SECONDS_MAX = 0.05, 3_600.0  # between two looks at what ends next
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class DurableOptions:
    """Where durable files lie, and what an operator allows.

    `weights` gives a digest of the model's configuration and weights; it blocks, and is asked once,
    in a thread. `unix` gives seconds since 1970.
    """

    directory: Path | None = None
    publish: bool = False  # tenants may make files public
    weights: Callable[[], str] = lambda: ""
    unix: Callable[[], float] = time.time
    reserve_bytes: int = 0  # of the disk: see `FreeSpace`


class QuietDevice(Protocol):
    """Does something while the device computes nothing and owes nothing."""

    def __call__(self, work: Callable[[], Awaitable[_T]]) -> "asyncio.Future[_T]":
        """Return what `work` does, in its turn."""


class PageDevice:
    """K and V of whole files, between the executor and the disk."""

    def __init__(self, kvfs: KVFS, executor: Executor, quiet: QuietDevice) -> None:
        self._kvfs = kvfs
        self._executor = executor
        self._quiet = quiet

    async def read(self, file: KVFile) -> KVArray | None:
        """Return K and V of a file's pages; None where not all are on the device or the host."""
        return await self._quiet(partial(self._read, file))

    async def _read(self, file: KVFile) -> KVArray | None:
        pages, tiers, executor = file.pages, self._kvfs.tiers, self._executor
        where = tiers.tier_of(pages)
        if (where > Tier.HOST).any():
            return None
        here = where == Tier.DEVICE
        # Looked up at once: calls go on meanwhile and may move pages, but what lies in a frame or
        # slot stays there until the next step.
        frames, slots = self._kvfs.pool.frame[pages[here]], tiers.host[pages[~here]]
        if here.all():
            return await executor.read_frames(frames)
        whole = np.empty(executor.layout.shape(len(pages)), executor.layout.numpy)
        whole[:, :, ~here] = await executor.read_host(slots)
        if here.any():
            whole[:, :, here] = await executor.read_frames(frames)
        return whole

    async def write(self, file: KVFile, kv: KVArray) -> bool:
        """Give a file whose pages are nowhere its K and V; return whether there was room."""
        return await self._quiet(partial(self._write, file.pages, kv))

    async def _write(self, pages: Int32, kv: KVArray) -> bool:
        """To the device where frames are free, so that nobody makes way, else to the host."""
        tiers, pool = self._kvfs.tiers, self._kvfs.pool
        if len(pages) <= pool.free_frames:
            tiers.give_frames(pages)
            frames = pool.frame[pages]
            await self._executor.write_frames(frames, kv)
            there = pool.frame[pages] == frames  # a call may have wanted some of them meanwhile
            tiers.filled(pages[there])
            return bool(there.all())
        if self._kvfs.ledger.ties[pages].any():
            tiers.make_way(len(pages))  # nothing else says what it was
        slots = tiers.take_quiet_slots(len(pages))
        if len(slots) < len(pages):
            tiers.give_slots(slots)
            return False
        await self._executor.write_host(slots, kv)
        tiers.put_host(pages, slots)
        return True


class DurableNameService:
    """All of it, for one kernel: `durable_names`, `requests`, and what calls them when.

    `happen` notes and does what the disk has said, `answer` is for the gateway; `now` gives the
    kernel's seconds.
    """

    def __init__(
        self,
        kvfs: KVFS,
        executor: Executor,
        options: DurableOptions,
        quiet: QuietDevice,
        happen: Callable[[str, list[Any]], None],
        failed: Callable[[BaseException], None],
        now: Callable[[], float],
    ) -> None:
        self._kvfs = kvfs
        self._executor = executor
        self._options = options
        self._happen = happen
        self._failed = failed
        self._directory = (
            Directory(options.directory, options.reserve_bytes) if options.directory else None
        )
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="disk")
        self._identity = lru_cache(self._make_identity)
        self._timer: asyncio.TimerHandle | None = None
        device = PageDevice(kvfs, executor, quiet)
        self.durable_names = DurableNames(
            kvfs,
            DiskIO(self._directory, self._identity, self._run) if self._directory else None,
            device,
            happen,
            failed,
            publish=options.publish,
            now=now,
            unix_offset=options.unix() - now(),
        )
        self.durable_names.ending = self.schedule_expiry
        self._transfers = Transfers(
            kvfs,
            self.durable_names,
            self._directory,
            self._identity,
            self._run,
            device,
            now,
            _largest_file(executor),
        )
        self.requests: FileRequests  # once `serve` has said of whom

    def serve(
        self,
        named: NameCalls,
        answer: Callable[[m.Answer], None],
        turn_over: Callable[[], None],
    ) -> dict[str, Callable[..., None]]:
        """Answer the gateway's requests; return what may happen on disk, by name."""
        durable_names = self.durable_names
        self.requests = FileRequests(
            named, durable_names, self._transfers, answer, self._happen, turn_over, self._failed
        )
        return {
            "changed": durable_names.changed,
            "loaded": durable_names.loaded,
            "filled": durable_names.filled,
            "expired": durable_names.expired,
            "uploaded": self.requests.uploaded,
        }

    # -- Beginning and end ----------------------------------------------------------------------
    def open(self, *, known: bool) -> None:
        """Clean up on disk, and name what lies there, unless the names are known from a journal.

        Blocks; before anybody calls. OSError.
        """
        if self._directory is not None:
            found = self._directory.open()
            if not known:
                self.durable_names.restore(found)

    def pause(self) -> None:
        """A kernel before this one is being followed: ask nobody anything until `resume`."""
        self.durable_names.live = False

    def resume(self) -> None:
        """Go on from what the kernel before this one had under way."""
        self.durable_names.resume()
        self.requests.resume()
        self.schedule_expiry()

    async def close(self, *, wait: bool) -> None:
        """End transfers, and wait for what is under way on disk if the device still answers."""
        if self._timer is not None:
            self._timer.cancel()
        await self.requests.close()
        await self.durable_names.close(wait=wait)
        self._pool.shutdown()

    # -- Names that end -------------------------------------------------------------------------
    def schedule_expiry(self) -> None:
        """Take away the names whose time has come, and look again when the next one's has."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        following = self._kvfs.expiries.next_ms
        if following is not None:
            wait = following / 1000 - self._options.unix()
            wait = min(max(wait, _EXPIRY_SECONDS_MIN), _EXPIRY_SECONDS_MAX)
            self._timer = asyncio.get_running_loop().call_later(wait, self._expire)

    def _expire(self) -> None:
        try:
            self.durable_names.expire(1000 * self._options.unix())
            self.schedule_expiry()
        except Exception as error:  # ours
            self._failed(error)

    # -- Inside ---------------------------------------------------------------------------------
    def _run(self, work: Callable[[], _T]) -> Awaitable[_T]:
        return asyncio.get_running_loop().run_in_executor(self._pool, work)

    def _make_identity(self) -> Identity:
        """Return what K and V depend on here; in a thread."""
        model, layout = self._executor.model, self._executor.layout
        return Identity(
            model=model.name,
            weights=self._options.weights(),
            dtype=layout.dtype,
            layout=layout_of(layout.shape(0)),
            vocab_size=model.vocab_size,
            max_context=model.max_context,
        )


def _largest_file(executor: Executor) -> int:
    """Return the bytes of a file that is as long as the model's context, and of all it may have."""
    entries = executor.model.max_context
    kv = page_count(entries) * executor.layout.page_bytes
    return kv + 8 * entries + KV_LINEAGE_BYTES_MAX + KV_HEADER_BYTES_MAX
