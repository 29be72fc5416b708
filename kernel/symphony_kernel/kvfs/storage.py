"""What all files share: pages, tiers, quotas, and transfers to be made.

A method that raises SyscallError has changed nothing.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from symphony_kernel.executor.base import Int32, Int64
from symphony_kernel.kvfs.lineage.book import LineageBook
from symphony_kernel.kvfs.observer import PageObserver
from symphony_kernel.kvfs.pages.pool import PagePool
from symphony_kernel.kvfs.pages.prefix_cache import PrefixCache
from symphony_kernel.kvfs.quotas import Quotas, TenantUsage
from symphony_kernel.kvfs.tiers.page_transfers import PageTransfers
from symphony_kernel.kvfs.tiers.tiers import Tiers
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import PAGE_TOKENS, TENANT_PAGES_TIMES_UNUSED


class PageHolder(Protocol):
    """The part of a file that `Storage` uses."""

    def take_pages(self) -> Int32:
        """Return its pages ([n]), which it no longer holds."""


class FileOrder(Protocol):
    """The part of `EvictionOrder` that files use."""

    def add(self, file: Any) -> None: ...
    def discard(self, file: Any) -> None: ...


class Storage:
    """The pool, tiers and quotas of all files, and the allocation of pages.

    Before an allocation fails, pages of the prefix cache and of idle files are evicted:
    `make_free(frames, *keep)` takes frames from idle files other than `keep` until so many are
    free, and returns whether they are. A file can use at most `usable` frames: others may be taken
    by pages that must stay.
    """

    def __init__(
        self,
        pool: PagePool,
        quotas: Quotas,
        cache: PrefixCache,
        transfers: PageTransfers,
        tiers: Tiers,
        lineages: LineageBook,
        usable: int,
        make_free: Callable[..., bool],
        eviction_order: FileOrder,
    ) -> None:
        self.pool = pool
        self.quotas = quotas
        self.cache = cache
        self.transfers = transfers
        self.tiers = tiers
        self.lineages = lineages
        self.usable = usable
        self.make_free = make_free
        self.eviction_order = eviction_order
        self.made = 0  # files
        self.observer: PageObserver | None = None
        # Called with a file whose entries change other than by a pred, or that is gone.
        self.on_edited: Callable[[Any], None] = lambda _file: None

    def allocate(
        self,
        account: TenantUsage,
        n: int,
        keep: tuple[PageHolder, ...] = (),
        unrecomputable: int = 0,
    ) -> Int32:
        """Return n pages charged to `account`, for a step; files of `keep` lose no frames.

        `unrecomputable`: how many pages, of these and others, become so. ENOMEM or EDQUOT.
        """
        observer = self.observer
        if observer is None or not observer.allocating(True):
            self.quotas.allow_unrecomputable(account, unrecomputable)
            self._find_frames(account, n, keep)
        if n > self.pool.free_frames:
            self.make_free(n, *keep)
        pages = self.pool.allocate(n)
        self.quotas.charge(account, pages)
        return pages

    def allocate_for_call(
        self,
        account: TenantUsage,
        n: int,
        keep: tuple[PageHolder, ...],
        recomputable: bool,
        readable: bool,
        check: Callable[[], None] = lambda: None,
    ) -> Int32:
        """Return n pages as `allocate`, for a call. `check` is called first and may raise.

        Where frames are lacking, `recomputable` pages get none and are computed when they are
        needed. Others must be `readable`: the content that is copied into them is on the device.
        """

        def check_all() -> None:
            check()
            self._find_frames(account, n, keep, recomputable, readable)

        self.decide(check_all)
        if n > self.pool.free_frames:
            self.make_free(n, *keep)
        return self._allocate(account, n, not recomputable or n <= self.pool.free_frames)

    def allocate_for_load(
        self, account: TenantUsage, n: int, unrecomputable: bool, frames: bool
    ) -> Int32:
        """Return n pages with or without `frames`; SyscallError ENOMEM or EDQUOT."""

        def check() -> None:
            self.quotas.allow(account, n)
            if unrecomputable:
                self.quotas.allow_unrecomputable(account, n)
            self._check_fair_share(account, n)
            self._find_pages(n)
            if n > self.pool.unused:
                raise SyscallError(Errno.ENOMEM, f"{n} pages wanted, {self.pool.unused} unused")

        self.decide(check)
        return self._allocate(account, n, frames)

    def _allocate(self, account: TenantUsage, n: int, frames: bool) -> Int32:
        pages = self.pool.allocate(n, frames=frames)
        self.quotas.charge(account, pages)
        if not frames:
            self.tiers.count(pages, absent=1)
        return pages

    def decide(self, check: Callable[[], None]) -> None:
        """Run a call's check, which may raise SyscallError, or repeat its old result."""
        observer = self.observer
        if observer is None:
            check()
        elif not observer.allocating(False):
            try:
                check()
            except SyscallError as error:
                observer.refused(error.errno)
                raise

    def _find_frames(
        self,
        account: TenantUsage,
        n: int,
        keep: tuple[PageHolder, ...],
        recomputable: bool = False,
        readable: bool = True,
    ) -> None:
        self.quotas.allow(account, n)
        self._check_fair_share(account, n)  # before prefixes are evicted in vain
        self._find_pages(n)
        if n > self.pool.free:
            self.cache.make_free(n - self.pool.free)
        if n > self.pool.free:
            self.make_free(n, *keep)
        possible = recomputable or readable
        if not possible or n > (self.pool.unused if recomputable else self.pool.free):
            raise SyscallError(Errno.ENOMEM, f"{n} pages wanted, {self.pool.free} free")

    def _find_pages(self, n: int) -> None:
        """Evict from the prefix cache until n pages are unused, if that is possible."""
        if n > self.pool.unused:
            self.cache.make_free(n - self.pool.unused, frames=False)

    def _check_fair_share(self, account: TenantUsage, n: int) -> None:
        """Check that a tenant that takes n pages leaves others some; SyscallError ENOMEM.

        Frames can be taken from other files, but a page that is in no tier is held all the same:
        without a bound one tenant could hold all pages at no cost. Pages that only the prefix cache
        holds count as unused, because it releases them on demand.
        """
        unused, held = self.pool.unused + self.cache.idle_pages - n, account.root.pages + n
        if held > TENANT_PAGES_TIMES_UNUSED * unused and self.pool.pages > self.pool.frames:
            name = account.root.name
            raise SyscallError(Errno.ENOMEM, f"{name} would hold {held} pages and leave {unused}")

    def recall(self, pages: Int32, keep: tuple[PageHolder, ...]) -> bool:
        """Fetch pages ([n]) from the host if frames can be freed; return whether all came."""
        pool = self.pool
        absent = pages[pool.is_absent(pages)]
        held = absent[self.tiers.host[absent] >= 0]
        if len(held) and self.make_free(len(held), *keep):
            self.tiers.fetch(held)
            for file in keep:  # else these frames could never be evicted again
                self.eviction_order.add(file)
        return not pool.is_absent(absent).any()

    def release(self, pages: Int32) -> None:
        freed = self.pool.release(pages)
        if len(freed):
            self.quotas.refund(freed)
        self.cache.charge_idle(pages)

    def adopt(self, account: TenantUsage, pages: Int32) -> None:
        """Hold cached pages ([n], distinct), charge idle ones; ENOMEM or EDQUOT."""
        idle = self.cache.charged_here(pages)

        def check() -> None:
            self.quotas.allow(account, len(idle))
            if len(idle):
                self._check_fair_share(account, len(idle))

        self.decide(check)
        self.hold_cached(account, pages)

    def hold_cached(self, account: TenantUsage, pages: Int32) -> None:
        """Hold cached pages ([n], distinct); charge those that only the cache held."""
        idle = self.cache.charged_here(pages)
        self.pool.retain(pages)
        self.quotas.move(idle, account)

    def clear(self, files: Sequence[PageHolder]) -> None:
        """Release all pages of dead files at once: a program may end with thousands."""
        if len(files) == 1:
            self.release(files[0].take_pages())
        elif files:
            self.release(np.concatenate([file.take_pages() for file in files]))

    def copy(self, sources: Int64, destinations: Int64) -> None:
        """Copy slots of pages: tokens and positions now, K and V with the next step.

        A page that would get entries of an absent page is in no tier afterwards, and is recomputed
        when it is needed.
        """
        pool = self.pool
        pool.tokens[destinations] = pool.tokens[sources]
        pool.positions[destinations] = pool.positions[sources]
        while pool.absent:
            into = (destinations // PAGE_TOKENS).astype(np.int32)
            lacks = pool.is_absent((sources // PAGE_TOKENS).astype(np.int32)) | pool.is_absent(into)
            if not lacks.any():
                break
            # In a loop: a page that is evicted here may be the source of another copy.
            self.tiers.evict(into[lacks], host=False)
            whole = pool.frame[into] >= 0
            sources, destinations = sources[whole], destinations[whole]
        if not len(sources):
            return
        self.transfers.copy(pool.device_slots(sources), pool.device_slots(destinations))
