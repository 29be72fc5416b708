"""Durable names in a running kernel: their threads, device and clock."""

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
from symphony_kernel.kvfs.durable.disk import Disk
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
_EXPIRY_SECONDS_MIN, _EXPIRY_SECONDS_MAX = 0.05, 3_600.0  # between two checks for expired names
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class DurableOptions:
    """The directory of durable files, and what the operator allows."""

    directory: Path | None = None
    publish: bool = False  # tenants may make files public
    # A digest of the model's configuration and weights; blocks, is called once, in a thread.
    weights: Callable[[], str] = lambda: ""
    unix: Callable[[], float] = time.time  # seconds since 1970
    reserve_bytes: int = 0  # of the disk: see `FreeSpace`


class QuietDevice(Protocol):
    """Runs work while the device computes nothing and has no transfers to make."""

    def __call__(self, work: Callable[[], Awaitable[_T]]) -> "asyncio.Future[_T]": ...


class PageDevice:
    """Reads and writes K and V of whole files on the device and the host."""

    def __init__(self, kvfs: KVFS, executor: Executor, quiet: QuietDevice) -> None:
        self._kvfs = kvfs
        self._executor = executor
        self._quiet = quiet

    async def read(self, file: KVFile) -> KVArray | None:
        """Return K and V of a file's pages; None unless all are on the device or the host."""
        return await self._quiet(partial(self._read, file))

    async def _read(self, file: KVFile) -> KVArray | None:
        pages, tiers, executor = file.pages, self._kvfs.tiers, self._executor
        device = executor.pages
        where = tiers.tier_of(pages)
        if (where > Tier.HOST).any():
            return None
        here = where == Tier.DEVICE
        # Looked up at once: calls continue meanwhile and may move pages, but the content of a frame
        # or slot stays there until the next step.
        frames, slots = self._kvfs.pool.frame[pages[here]], tiers.host[pages[~here]]
        if here.all():
            return await executor.after_steps(lambda: device.read_frames(frames))
        whole = np.empty(device.layout.shape(len(pages)), device.layout.numpy)
        whole[:, :, ~here] = await executor.after_steps(lambda: device.read_host(slots))
        if here.any():
            whole[:, :, here] = await executor.after_steps(lambda: device.read_frames(frames))
        return whole

    async def write(self, file: KVFile, kv: KVArray) -> bool:
        """Write K and V of a file that is in no tier; return whether there were places."""
        return await self._quiet(partial(self._write, file.pages, kv))

    async def _write(self, pages: Int32, kv: KVArray) -> bool:
        """Write to the device if frames are free, without eviction, else to the host."""
        tiers, pool, executor = self._kvfs.tiers, self._kvfs.pool, self._executor
        if len(pages) <= pool.free_frames:
            tiers.give_frames(pages)
            frames = pool.frame[pages]
            await executor.after_steps(lambda: executor.pages.write_frames(frames, kv))
            there = pool.frame[pages] == frames  # a call may have evicted some of them meanwhile
            tiers.mark_filled(pages[there])
            return bool(there.all())
        if self._kvfs.quotas.unrecomputable[pages].any():
            tiers.free_up_slots(len(pages))  # they cannot be recomputed
        slots = tiers.take_quiet_slots(len(pages))
        if len(slots) < len(pages):
            tiers.give_slots(slots)
            return False
        await executor.after_steps(lambda: executor.pages.write_host(slots, kv))
        tiers.put_host(pages, slots)
        return True


class DurableNameService:
    """The durable names and file requests of one kernel.

    `happen` records an event of the disk and applies it; `now` gives the kernel's seconds.
    """

    requests: FileRequests  # made by `serve`

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
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="disk")
        self._timer: asyncio.TimerHandle | None = None
        self._directory: Directory | None = None
        disk = None
        if options.directory is not None:
            identity = lru_cache(self._make_identity)
            self._directory = Directory(options.directory, identity, options.reserve_bytes)
            disk = Disk(self._directory, self._run_in_thread)
        self.durable_names = DurableNames(
            kvfs,
            disk,
            PageDevice(kvfs, executor, quiet),
            happen,
            failed,
            publish=options.publish,
            now=now,
            unix_offset=options.unix() - now(),
            schedule_expiry=self._schedule_expiry,
        )
        self._transfers = Transfers(self.durable_names, now, _largest_file(executor))

    def serve(
        self,
        named: NameCalls,
        answer: Callable[[m.Answer], None],
        turn_over: Callable[[], None],
    ) -> dict[str, Callable[..., None]]:
        """Answer the gateway's requests; return the handlers of disk events, by name."""
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
        """Clean up on disk, and name the files there unless a journal has (`known`).

        Blocks; before any call. OSError.
        """
        if self._directory is not None:
            found = self._directory.open()
            if not known:
                self.durable_names.restore(found)

    def pause(self) -> None:
        """Call neither disk nor device until `resume`: a journal is being replayed."""
        self.durable_names.live = False

    def resume(self) -> None:
        """Continue what the kernel before this one had under way."""
        self.durable_names.resume()
        self.requests.resume()
        self._schedule_expiry()

    async def close(self, *, wait: bool) -> None:
        """End transfers; wait for changes and loads if the device still answers (`wait`)."""
        if self._timer is not None:
            self._timer.cancel()
        await self.requests.close()
        await self.durable_names.close(wait=wait)
        self._threads.shutdown()

    # -- Expiry ---------------------------------------------------------------------------------
    def _schedule_expiry(self) -> None:
        """Set the timer for the next name that expires."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        following = self._kvfs.expiries.next_end
        if following is not None:
            wait = following / 1000 - self._options.unix()
            wait = min(max(wait, _EXPIRY_SECONDS_MIN), _EXPIRY_SECONDS_MAX)
            self._timer = asyncio.get_running_loop().call_later(wait, self._expire)

    def _expire(self) -> None:
        try:
            self.durable_names.expire(1000 * self._options.unix())
            self._schedule_expiry()
        except Exception as error:  # a kernel bug
            self._failed(error)

    # -- Internals ------------------------------------------------------------------------------
    def _run_in_thread(self, work: Callable[[], _T]) -> Awaitable[_T]:
        return asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _make_identity(self) -> Identity:
        model, layout = self._executor.model, self._executor.pages.layout
        return Identity(
            model=model.name,
            weights=self._options.weights(),
            dtype=layout.dtype,
            layout=layout_of(layout.shape(0)),
            vocab_size=model.vocab_size,
            max_context=model.max_context,
        )


def _largest_file(executor: Executor) -> int:
    """Return the most bytes of a file as long as the model's context."""
    entries = executor.model.max_context
    kv = page_count(entries) * executor.pages.layout.page_bytes
    return kv + 8 * entries + KV_LINEAGE_BYTES_MAX + KV_HEADER_BYTES_MAX
