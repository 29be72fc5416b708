"""Quotas: which account is charged for a page.

Accounts form chains: instance, run, tenant. A page is charged to the account that allocated it, and
counts in all accounts above, until it is free again. Sharing a page costs nothing, so that a
thousand forks of one prefix pay for it once. When an account is closed, the pages that are still
charged to it (a name or another instance's fork keeps them) move to the nearest open account above.
Limits and usage are therefore in whole pages.

The limits of an instance or run are on all tiers together: eviction gains it nothing. A tenant's
limits are on each tier, at the account at the top of its chain: `pages` less `absent` on the
device, `host` and `disk` slots elsewhere. The device's limit makes a tenant's own calls fail
(EDQUOT). The others only steer where the kernel puts its pages (see `tiers`).

A page is *unrecomputable* while a file holds it that cannot be computed again: its lineage is lost,
or the device is too small for it. Only a copy brings such a page back, so it needs a place. There
are only so many (`unrecomputable_max`), and a tenant may have half of what others leave. The tenant
whose file makes a page unrecomputable is charged for that, not the one that pays for the page.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from mypy_extensions import mypyc_attr

from symphony_kernel.executor.base import Int32, Int64
from symphony_kernel.protocol.errno import Errno, KernelBug, LimitError, SyscallError
from symphony_kernel.protocol.limits import PAGE_TOKENS

_NO_ACCOUNT: Final = -1
_ONE: Final = np.int32(1)  # with a plain 1 `ufunc.at` takes twenty times as long
UNLIMITED: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class TierCounts:
    """Of some pages: how many are absent, and how many copies are on host and disk."""

    absent: int
    host: int
    disk: int


@mypyc_attr(allow_interpreted_subclasses=True)
class TenantUsage:
    """Pages charged to an instance, a run or a tenant; only `Quotas` changes it."""

    __slots__ = (
        "absent", "changed_s", "closed", "disk", "disk_max", "entries_allowed", "entries_max",
        "entry_seconds", "hits", "host", "host_max", "index", "name", "own", "pages", "pages_max",
        "parent", "root", "unrecomputable", "waits",
    )  # fmt: skip

    def __init__(
        self, index: int, name: str, parent: "TenantUsage | None", pages_max: int, entries_max: int
    ) -> None:
        self.index = index
        self.name = name
        self.parent = parent
        self.root: TenantUsage = parent.root if parent is not None else self
        self.pages_max = pages_max
        self.entries_max = entries_max  # of any one file: a limit smaller than a page is exact
        above = parent.entries_allowed if parent else entries_max
        self.entries_allowed: int = min(entries_max, above)
        self.pages = 0  # own, and those of all accounts below
        self.own = 0
        # At the top only: pages (of `pages`) that are absent, and copies elsewhere.
        self.absent = self.host = self.disk = 0
        self.unrecomputable = 0  # at the top only: unrecomputable pages
        self.host_max = self.disk_max = UNLIMITED
        # At the top only: how often each limit was reached, since this process started.
        self.hits: dict[str, int] = {}
        self.closed = False
        self.waits = False  # its instance waits for a tool, a timer or a message
        self.entry_seconds = 0.0  # integral of own entries over time
        self.changed_s = 0.0

    def chain(self) -> Iterator["TenantUsage"]:
        account: TenantUsage | None = self
        while account is not None:
            yield account
            account = account.parent

    def hit(self, limit: str) -> None:
        hits = self.root.hits
        hits[limit] = hits.get(limit, 0) + 1

    def live(self) -> "TenantUsage":
        """Return the nearest open account: this one or one above it."""
        account = self
        while account.closed:
            assert account.parent is not None, "a tenant's account is never closed"
            account = account.parent
        return account


class Quotas:
    """All accounts, and the account that pays for each page. `now` gives seconds."""

    def __init__(self, pages: int, now: Callable[[], float]) -> None:
        self._payer: Int32 = np.full(pages, _NO_ACCOUNT, np.int32)
        self._accounts: list[TenantUsage | None] = []
        self._unused: list[int] = []
        self._now = now
        # [pages] How many places it has in the tables of unrecomputable files.
        self.unrecomputable: Int32 = np.zeros(pages, np.int32)
        self._unrecomputable_payer: Int32 = np.full(
            pages, _NO_ACCOUNT, np.int32
        )  # [pages] a tenant's account
        self.unrecomputable_pages = 0
        self.unrecomputable_max = UNLIMITED  # pages that always have a place
        # Set by `Tiers`; returns None while all pages are on the device and nowhere else.
        self.count_tiers: Callable[[Int32], TierCounts | None] = lambda _pages: None

    def open(
        self, name: str, parent: TenantUsage | None, pages_max: int, entries_max: int
    ) -> TenantUsage:
        if self._unused:
            index = self._unused.pop()
        else:
            index = len(self._accounts)
            self._accounts.append(None)
        account = TenantUsage(index, name, parent, pages_max, entries_max)
        account.changed_s = self._now()
        self._accounts[index] = account
        return account

    def close(self, account: TenantUsage) -> float:
        """Close an account; return the integral of its entries, in entry-milliseconds."""
        assert not account.closed
        self._integrate(account)
        account.closed = True
        heir = account.live()
        if account.own:
            self._payer[self._payer == account.index] = heir.index
            self._integrate(heir)
            heir.own += account.own
            for each in account.chain():
                if each is heir:
                    break
                each.pages -= account.own
            account.own = 0
        self._accounts[account.index] = None
        self._unused.append(account.index)
        return account.entry_seconds * 1000.0

    def allow(self, account: TenantUsage, pages: int) -> None:
        """Check that `account` may allocate so many pages more; SyscallError EDQUOT."""
        for each in account.chain():
            held = each.pages - each.absent
            if held + pages > each.pages_max:
                limit = "kv_tokens" if each.parent is not None else "kv_device_tokens"
                each.hit(limit)
                detail = f"{each.name} holds {held} of {each.pages_max} pages"
                raise LimitError(Errno.EDQUOT, limit, detail)

    def reset_device(self) -> None:
        """Account for a new, empty device: all held pages are in no tier."""
        for account in self._accounts:
            if account is not None:
                account.host = account.disk = 0
                account.absent = account.pages if account.parent is None else 0

    def allow_unrecomputable(self, account: TenantUsage, pages: int) -> None:
        """Check that a tenant may have so many more unrecomputable pages; EDQUOT.

        A tenant may have at most as many as it leaves: the first one half of them, the next one
        half of the rest.
        """
        root = account.root
        left = self.unrecomputable_max - self.unrecomputable_pages - pages
        most = min(left, root.host_max)
        if pages > 0 and root.unrecomputable + pages > most:
            held = root.unrecomputable + pages
            detail = f"{root.name} would have {held} pages that cannot be recomputed"
            raise SyscallError(Errno.EDQUOT, f"{detail}, and leave places for {max(left, 0)}")

    def add_unrecomputable(self, account: TenantUsage, pages: Int32) -> None:
        """Count pages ([n]) of an unrecomputable file of `account`, past any limit."""
        new = np.unique(pages[self.unrecomputable[pages] == 0])
        np.add.at(self.unrecomputable, pages, _ONE)
        self._charge_unrecomputable(new, account.root)

    def remove_unrecomputable(self, pages: Int32) -> None:
        """Uncount pages ([n]) that an unrecomputable file releases or makes recomputable."""
        np.subtract.at(self.unrecomputable, pages, _ONE)
        self._charge_unrecomputable(np.unique(pages[self.unrecomputable[pages] == 0]), None)

    def count_recomputable(self, pages: Int32) -> int:
        """Return how many different ones of `pages` are recomputable."""
        return len(np.unique(pages[self.unrecomputable[pages] == 0]))

    def _charge_unrecomputable(self, pages: Int32, to: TenantUsage | None) -> None:
        """Charge unrecomputable pages ([n], distinct) to this tenant instead of others."""
        indices, counts = np.unique(self._unrecomputable_payer[pages], return_counts=True)
        for index, count in zip(indices.tolist(), counts.tolist(), strict=True):
            root = self._accounts[index] if index != _NO_ACCOUNT else None
            if root is not None:
                root.unrecomputable -= count
                self.unrecomputable_pages -= count
        self._unrecomputable_payer[pages] = _NO_ACCOUNT if to is None else to.index
        if to is not None:
            to.unrecomputable += len(pages)
            self.unrecomputable_pages += len(pages)

    def by_tenant(self, pages: Int32) -> Iterator[tuple[TenantUsage, Int32]]:
        """Yield the tenants' accounts with those of `pages` that they pay for; may repeat."""
        payers = self._payer[pages]
        for index in np.unique(payers).tolist():
            account = self._accounts[index]
            assert account is not None, "a page is charged to a closed account"
            yield account.root, pages[payers == index]

    def charge(self, account: TenantUsage, pages: Int32) -> None:
        """Charge pages that were just allocated; after `allow`."""
        self._payer[pages] = account.index
        self._add(account, len(pages))

    def refund(self, pages: Int32) -> None:
        if len(pages) == 1:
            self._refund(int(self._payer[pages[0]]), 1)
        elif len(pages):
            self._refund_all(pages)
        self._payer[pages] = _NO_ACCOUNT

    def move(self, pages: Int32, account: TenantUsage) -> None:
        """Charge held pages ([n], distinct) to another account, without `allow`."""
        self._move_tiers(pages, account)
        if self.unrecomputable_pages:
            self._charge_unrecomputable(pages[self.unrecomputable[pages] > 0], account.root)
        self._refund_all(pages)
        self._payer[pages] = account.index
        self._add(account, len(pages))

    def _move_tiers(self, pages: Int32, account: TenantUsage) -> None:
        if self.count_tiers(pages) is None:
            return
        for tenant, mine in self.by_tenant(pages):
            counts = self.count_tiers(mine)
            if counts is not None and tenant is not account.root:
                for root, sign in ((tenant, -1), (account.root, 1)):
                    root.absent += sign * counts.absent
                    root.host += sign * counts.host
                    root.disk += sign * counts.disk

    def charged(self, pages: Int32, account: TenantUsage) -> Int32:
        charged: Int32 = pages[self._payer[pages] == account.index]
        return charged

    def _refund_all(self, pages: Int32) -> None:
        payers, counts = np.unique(self._payer[pages], return_counts=True)
        for index, count in zip(payers.tolist(), counts.tolist(), strict=True):
            self._refund(index, count)

    def _refund(self, index: int, count: int) -> None:
        account = self._accounts[index]
        assert account is not None, "a page is charged to a closed account"
        self._add(account, -count)

    def _add(self, account: TenantUsage, pages: int) -> None:
        self._integrate(account)
        account.own += pages
        for each in account.chain():
            each.pages += pages

    def _integrate(self, account: TenantUsage) -> None:
        now = self._now()
        account.entry_seconds += account.own * PAGE_TOKENS * (now - account.changed_s)
        account.changed_s = now

    def check_integrity(self, references: Int32) -> None:
        """Compare accounts with their pages; `references` are the pool's ([pages]); KernelBug."""
        if not np.array_equal(self._payer == _NO_ACCOUNT, references == 0):
            raise KernelBug("held pages and charged pages are not the same pages")
        paid: Int64 = np.bincount(
            self._payer[self._payer != _NO_ACCOUNT], minlength=len(self._accounts)
        )
        sums: dict[TenantUsage, int] = {}
        for index, count in enumerate(paid.tolist()):
            account = self._accounts[index]
            if account is None:
                if count:
                    raise KernelBug(f"{count} pages are charged to an account that was closed")
                continue
            if account.own != count:
                raise KernelBug(f"{account.name} counts {account.own} pages and pays for {count}")
            for each in account.chain():
                sums[each] = sums.get(each, 0) + count
        for account, count in sums.items():
            if account.pages != count:
                raise KernelBug(f"{account.name} and below count {account.pages}, pay for {count}")
        self._check_tiers()

    def _check_tiers(self) -> None:
        held = np.flatnonzero(self._payer != _NO_ACCOUNT).astype(np.int32)
        sums: dict[TenantUsage, tuple[int, int, int]] = {}
        for tenant, pages in self.by_tenant(held):
            counts = self.count_tiers(pages) or TierCounts(0, 0, 0)
            absent, host, disk = sums.get(tenant, (0, 0, 0))
            sums[tenant] = absent + counts.absent, host + counts.host, disk + counts.disk
        for account in self._accounts:
            if account is not None and (account.absent, account.host, account.disk) != sums.get(
                account, (0, 0, 0)
            ):
                raise KernelBug(f"{account.name} miscounts its pages off the device")

    def check_unrecomputable(self, expected: Int64) -> None:
        """Compare with the tables of unrecomputable files, `expected` [pages]; KernelBug."""
        if not np.array_equal(self.unrecomputable, expected):
            raise KernelBug("the unrecomputable pages are not those of unrecomputable files")
        if not np.array_equal(self._unrecomputable_payer != _NO_ACCOUNT, expected > 0):
            raise KernelBug("unrecomputable pages and those charged as such are not the same")
        charged = np.bincount(
            self._unrecomputable_payer[expected > 0], minlength=len(self._accounts)
        )
        for index, account in enumerate(self._accounts):
            if account is not None and account.unrecomputable != charged[index]:
                raise KernelBug(
                    f"{account.name} counts {account.unrecomputable} unrecomputable pages, "
                    f"and has {charged[index]}"
                )
        if self.unrecomputable_pages != charged.sum():
            counted = self.unrecomputable_pages
            raise KernelBug(f"{counted} pages count as unrecomputable, {charged.sum()} are")
