"""What all files share: the pool and the tiers below it, who pays, and what the executor owes."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from symphony_kernel.executor.base import Int32, Int64
from symphony_kernel.kvfs.lineage.book import LineageBook
from symphony_kernel.kvfs.observer import PageObserver
from symphony_kernel.kvfs.pages.pool import PagePool
from symphony_kernel.kvfs.pages.prefix_cache import PrefixCache
from symphony_kernel.kvfs.quotas import Quotas, TenantUsage
from symphony_kernel.kvfs.tiers.base import spare_slots
from symphony_kernel.kvfs.tiers.page_transfers import PageTransfers
from symphony_kernel.kvfs.tiers.tiers import Tiers
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import (
    PAGE_TOKENS,
    TENANT_PAGES_TIMES_UNUSED,
    TIED_DEVICE_SHARE,
)


class PageHolder(Protocol):
    """A file, as far as what all files share knows of it."""

    def take_pages(self) -> Int32:
        """Return its pages ([n]), which it holds no more."""


class FileOrder(Protocol):
    """What keeps an order over files with pages on the device (`eviction_order`)."""

    def add(self, file: Any) -> None:
        """A file has got pages on the device."""

    def discard(self, file: Any) -> None:
        """A file is gone."""


class NoEvictionOrder:
    """No order: nothing is ever taken from a file."""

    def add(self, file: PageHolder) -> None:
        """Do nothing."""

    def discard(self, file: PageHolder) -> None:
        """Do nothing."""


class Storage:
    """What all files share: the pool, the tiers below it, who pays, and what the executor owes.

    The prefix cache gives up pages before an allocation fails.
    """

    def __init__(
        self,
        pool: PagePool,
        ledger: Quotas,
        cache: PrefixCache,
        transfers: PageTransfers,
        tiers: Tiers,
        lineages: LineageBook,
    ) -> None:
        self.pool = pool
        self.ledger = ledger
        self.cache = cache
        self.transfers = transfers
        self.tiers = tiers
        self.lineages = lineages
        self.made = 0  # files
        # Frames that a file may need, with what brings it back: others may have to stay.
        self.usable = pool.frames
        self.observer: PageObserver | None = None
        # What takes frames from idle files, but not from the one named, until so many are free.
        self.relief: Callable[..., bool] = lambda _frames, *_keep: False
        self.eviction_order: FileOrder = NoEvictionOrder()
        # Hears of a file whose entries change otherwise than by a pred, or that is gone.
        self.edited: Callable[[Any], None] = lambda _file: None

    def allocate(
        self,
        account: TenantUsage,
        n: int,
        keep: tuple[PageHolder, ...] = (),
        unrecomputable: int = 0,
    ) -> Int32:
        """Return n pages charged to `account`, for a step; SyscallError ENOMEM or EDQUOT.

        Nothing has changed then. Idle files give up their frames for it, but none of `keep`.
        `unrecomputable`: so many pages, these perhaps, are to be tied then.
        """
        observer = self.observer
        if observer is None or not observer.allocating(True):
            self.ledger.allow_tied(account, unrecomputable)
            self._make_room(account, n, keep)
        if n > self.pool.free_frames:
            self.relief(n, *keep)
        pages = self.pool.allocate(n)
        self.ledger.charge(account, pages)
        return pages

    def allocate_for_call(
        self,
        account: TenantUsage,
        n: int,
        keep: tuple[PageHolder, ...],
        bare: bool | None,
        allowed: Callable[[], None] = lambda: None,
    ) -> Int32:
        """As `allocate`, for what a call does now.

        `bare`: where frames are lacking the pages are in no tier, to be computed when they are
        needed; None: what they are to hold is not at hand, and could not be computed. `allowed` is
        asked first: it may refuse, too.
        """

        def check() -> None:
            allowed()
            self._make_room(account, n, keep, bare)

        self.decide(check)
        if n > self.pool.free_frames:
            self.relief(n, *keep)
        absent = bool(bare) and n > self.pool.free_frames
        pages = self.pool.allocate(n, frames=not absent)
        self.ledger.charge(account, pages)
        if absent:
            self.tiers.born_absent(pages)
        return pages

    def decide(self, check: Callable[[], None]) -> None:
        """Check for a call, which may raise a SyscallError; or let it end as it did once."""
        observer = self.observer
        if observer is None:
            check()
        elif not observer.allocating(False):
            try:
                check()
            except SyscallError as error:
                observer.refused(error.errno)
                raise

    def keep_tied(self, disk: bool) -> None:
        """Bound tied pages by what always has a place: on the host, or else a few on the device.

        A page goes to disk by way of the host, and later: so the disk's room does not count. But
        with a `disk` none need stay on the device.
        """
        slots, frames = self.tiers.slots, self.pool.frames
        host = slots - spare_slots(slots)
        self.ledger.tied_room = host if disk else max(host, int(frames * TIED_DEVICE_SHARE))
        self.usable = frames - (self.ledger.tied_room - host)

    def _make_room(
        self, account: TenantUsage, n: int, keep: tuple[PageHolder, ...], bare: bool | None = False
    ) -> None:
        self.ledger.allow(account, n)
        self.leave_some(account, n)  # before anybody's offered prefixes go for nothing
        self.find_pages(n)
        if n > self.pool.free:
            self.cache.make_free(n - self.pool.free)
        if n > self.pool.free:
            self.relief(n, *keep)
        if bare is None or n > (self.pool.unused if bare else self.pool.free):
            raise SyscallError(Errno.ENOMEM, f"{n} pages wanted, {self.pool.free} free")

    def find_pages(self, n: int) -> None:
        """Let the prefix cache give up what it takes that n pages are unused, if it can."""
        if n > self.pool.unused:
            self.cache.make_free(n - self.pool.unused, frames=False)

    def leave_some(self, account: TenantUsage, n: int) -> None:
        """Check that a tenant that takes n pages leaves others some; SyscallError ENOMEM.

        On the device whoever comes takes frames from others. But a page that is nowhere but in its
        tokens is held all the same, and nobody else can have it: without a bound one tenant would
        hold all there are, at no cost. What the prefix cache alone holds it gives to whoever comes.
        """
        unused, held = self.pool.unused + self.cache.idle_pages - n, account.root.pages + n
        if held > TENANT_PAGES_TIMES_UNUSED * unused and self.pool.pages > self.pool.frames:
            name = account.root.name
            raise SyscallError(Errno.ENOMEM, f"{name} would hold {held} pages, {unused} were left")

    def recall(self, pages: Int32, keep: tuple[PageHolder, ...]) -> bool:
        """Bring pages ([n]) back from the host as far as idle files make room; whether all came."""
        pool = self.pool
        absent = pages[pool.is_absent(pages)]
        held = absent[self.tiers.host[absent] >= 0]
        if len(held) and self.relief(len(held), *keep):
            self.tiers.fetch(held)
            for file in keep:  # or nobody would ever take these frames again
                self.eviction_order.add(file)
        return not pool.is_absent(absent).any()

    def release(self, pages: Int32) -> None:
        """Let go of pages, once each."""
        freed = self.pool.release(pages)
        if len(freed):
            self.ledger.refund(freed)
        self.cache.left(pages)

    def adopt(self, account: TenantUsage, pages: Int32) -> None:
        """Hold pages ([n], distinct) of the prefix cache; what it alone held is charged now.

        Raises:
            SyscallError: ENOMEM or EDQUOT, and nothing has changed.
        """
        idle = self.cache.charged_here(pages)

        def check() -> None:
            self.ledger.allow(account, len(idle))
            if len(idle):
                self.leave_some(account, len(idle))

        self.decide(check)
        self.pool.retain(pages)
        self.ledger.move(idle, account)

    def clear(self, files: Sequence[PageHolder]) -> None:
        """Let go of all pages of dead files, many at once: a program may end with thousands."""
        if len(files) == 1:
            self.release(files[0].take_pages())
        elif files:
            self.release(np.concatenate([file.take_pages() for file in files]))

    def copy(self, sources: Int64, destinations: Int64) -> None:
        """Copy slots of pages: tokens and positions now, K and V with the next step.

        A page that would get entries of one that is absent is in no tier afterwards: it is computed
        again when it is needed.
        """
        pool = self.pool
        pool.copy_entries(sources, destinations)
        while pool.absent:
            into = (destinations // PAGE_TOKENS).astype(np.int32)
            lacks = pool.is_absent((sources // PAGE_TOKENS).astype(np.int32)) | pool.is_absent(into)
            if not lacks.any():
                break
            self.tiers.evict(into[lacks], host=False)  # which another one may be copied from
            whole = pool.frame[into] >= 0
            sources, destinations = sources[whole], destinations[whole]
        if not len(sources):
            return
        self.transfers.copy(pool.device_slots(sources), pool.device_slots(destinations))
