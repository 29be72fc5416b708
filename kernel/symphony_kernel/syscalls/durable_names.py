"""Durable names in a running kernel: threads, device and clock for `DurableNames`."""

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

_THREADS = 2  # that write and read: one large file does not delay all others
_EXPIRY_SECONDS_MIN, _EXPIRY_SECONDS_MAX = 0.05, 3_600.0  # between two looks at expiries
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class DurableOptions:
    """Where durable files are, and what an operator allows.

    `weights` returns a digest of the model's configuration and weights. It blocks, and is called
    once, in a thread. `unix` returns seconds since 1970.
    """

    directory: Path | None = None
    publish: bool = False  # tenants may make files public
    weights: Callable[[], str] = lambda: ""
    unix: Callable[[], float] = time.time
    reserve_bytes: int = 0  # of the disk: see `FreeSpace`


class QuietDevice(Protocol):
    """Runs an action while the device computes nothing and no copy is due."""

    def __call__(self, work: Callable[[], Awaitable[_T]]) -> "asyncio.Future[_T]":
        """Return the result of `work`."""


class PageDevice:
    """Reads and writes K and V of whole files, on the device or the host."""

    def __init__(self, kvfs: KVFS, executor: Executor, quiet: QuietDevice) -> None:
        self._kvfs = kvfs
        self._executor = executor
        self._quiet = quiet

    async def read(self, file: KVFile) -> KVArray | None:
        """Return K and V of a file; None unless all pages are on device or host."""
        return await self._quiet(partial(self._read, file))

    async def _read(self, file: KVFile) -> KVArray | None:
        pages, tiers, executor = file.pages, self._kvfs.tiers, self._executor
        where = tiers.tier_of(pages)
        if (where > Tier.HOST).any():
            return None
        here = where == Tier.DEVICE
        # Look up both now: calls may move pages meanwhile, but a frame or slot keeps its content
        # until the next step.
        frames, slots = self._kvfs.pool.frame[pages[here]], tiers.host[pages[~here]]
        if here.all():
            return await executor.read_frames(frames)
        whole = np.empty(executor.layout.shape(len(pages)), executor.layout.numpy)
        whole[:, :, ~here] = await executor.read_host(slots)
        if here.any():
            whole[:, :, here] = await executor.read_frames(frames)
        return whole

    async def write(self, file: KVFile, kv: KVArray) -> bool:
        """Write K and V of a file whose pages are in no tier; return whether it fits."""
        return await self._quiet(partial(self._write, file.pages, kv))

    async def _write(self, pages: Int32, kv: KVArray) -> bool:
        """Write to the device if frames are free (nothing is evicted), else to the host."""
        tiers, pool = self._kvfs.tiers, self._kvfs.pool
        if len(pages) <= pool.free_frames:
            tiers.give_frames(pages)
            frames = pool.frame[pages]
            await self._executor.write_frames(frames, kv)
            there = pool.frame[pages] == frames  # a call may have taken some of them meanwhile
            tiers.filled(pages[there])
            return bool(there.all())
        if self._kvfs.ledger.ties[pages].any():
            tiers.make_way(len(pages))  # pages that cannot be recomputed need a place
        slots = tiers.take_quiet_slots(len(pages))
        if len(slots) < len(pages):
            tiers.give_slots(slots)
            return False
        await self._executor.write_host(slots, kv)
        tiers.put_host(pages, slots)
        return True


class DurableNameService:
    """Everything of one kernel: `durable_names`, `requests`, and what calls them when.

    `happen` records and applies what the disk has done, `answer` replies to the gateway; `now`
    returns the kernel's seconds.
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
        self.requests: FileRequests  # set by `serve`

    def serve(
        self,
        named: NameCalls,
        answer: Callable[[m.Answer], None],
        turn_over: Callable[[], None],
    ) -> dict[str, Callable[..., None]]:
        """Handle the gateway's requests; return the disk's internal events, by name."""
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

    # -- Start and end --------------------------------------------------------------------------
    def open(self, *, known: bool) -> None:
        """Clean up on disk, and name what is there unless a journal knows the names.

        Blocks; called before the first call.

        Raises:
            OSError: the directory cannot be used.
        """
        if self._directory is not None:
            found = self._directory.open()
            if not known:
                self.durable_names.restore(found)

    def pause(self) -> None:
        self.durable_names.live = False

    def resume(self) -> None:
        """Continue what the kernel before this one had in progress."""
        self.durable_names.resume()
        self.requests.resume()
        self.schedule_expiry()

    async def close(self, *, wait: bool) -> None:
        """End transfers; wait for the disk if the device still answers."""
        if self._timer is not None:
            self._timer.cancel()
        await self.requests.close()
        await self.durable_names.close(wait=wait)
        self._pool.shutdown()

    # -- Names that expire ----------------------------------------------------------------------
    def schedule_expiry(self) -> None:
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
        except Exception as error:  # the kernel's own fault
            self._failed(error)

    # -- Internal -------------------------------------------------------------------------------
    def _run(self, work: Callable[[], _T]) -> Awaitable[_T]:
        return asyncio.get_running_loop().run_in_executor(self._pool, work)

    def _make_identity(self) -> Identity:
        """Return what K and V depend on here; runs in a thread."""
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
    """Return the bytes of a file as long as the model's context, with its lineage."""
    entries = executor.model.max_context
    kv = page_count(entries) * executor.layout.page_bytes
    return kv + 8 * entries + KV_LINEAGE_BYTES_MAX + KV_HEADER_BYTES_MAX
