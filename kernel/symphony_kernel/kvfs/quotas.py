"""Quotas: who pays for a page.

Accounts form chains: an instance's under its run's, a run's under its tenant's. A page is charged
to the account that took it from the pool, and counts in all accounts above, until it is free again;
sharing a page costs nothing, so a thousand forks of one prefix pay for it once. When an account is
closed, what it still paid for (pages that a name keeps, or another instance's fork) moves to the
nearest account above that is open. Limits and usage are in whole pages for that reason.

What an instance or a run may hold is counted in all tiers together: eviction gives it nothing. What
a tenant may hold is counted for each tier, at the account at the top of its chain: `pages` less
`absent` on the device, `host` and `disk` slots elsewhere. The device's limit is what a tenant's own
calls run into (EDQUOT); the others only steer where the kernel puts its pages (see `tiers`), and
what a tenant asks for itself (`Quotas.allow_tier`).

A page is *tied* while a file holds it that cannot be computed again: nobody knows any more how its
entries came about, or the device is too small for it. Nothing but a copy brings such a page back,
so it needs a place. There are only so many (`tied_room`), and a tenant may have half of what others
leave. Who ties a page is charged for that, whoever pays for the page itself.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from mypy_extensions import mypyc_attr

from symphony_kernel.executor.base import Int32, Int64
from symphony_kernel.protocol.errno import Errno, KernelBug, LimitError, SyscallError
from symphony_kernel.protocol.limits import PAGE_TOKENS

_NOBODY: Final = -1
_ONE: Final = np.int32(1)  # of the counts' own type: `ufunc.at` is much faster then
UNLIMITED: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class TierCounts:
    """Of some pages: how many are not on the device, and copies on host and disk."""

    absent: int
    host: int
    disk: int


@mypyc_attr(allow_interpreted_subclasses=True)
class TenantUsage:
    """Pages charged to an instance, a run or a tenant; only the `Quotas` changes it."""

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
        # At the top only: of `pages` those that are not on the device, and copies elsewhere.
        self.absent = self.host = self.disk = 0
        self.unrecomputable = 0  # at the top only: of `pages` those that are tied
        self.host_max = self.disk_max = UNLIMITED
        # At the top only: how often limits were reached, by name, as far as this process knows.
        self.hits: dict[str, int] = {}
        self.closed = False
        self.waits = False  # its instance waits for the outside
        self.entry_seconds = 0.0  # integral of own entries over time
        self.changed_s = 0.0

    def chain(self) -> Iterator["TenantUsage"]:
        """Yield this account and those above it."""
        account: TenantUsage | None = self
        while account is not None:
            yield account
            account = account.parent

    @property
    def device_room(self) -> int:
        """Pages that the tenant may still have on the device, maybe below 0."""
        root = self.root
        return root.pages_max - (root.pages - root.absent)

    def hit(self, limit: str) -> None:
        """Count that a limit was reached, with the tenant."""
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
    """All accounts, and which of them pays for each page. `now` gives seconds."""

    def __init__(self, pages: int, now: Callable[[], float]) -> None:
        self._payer: Int32 = np.full(pages, _NOBODY, np.int32)
        self._accounts: list[TenantUsage | None] = []
        self._unused: list[int] = []
        self._now = now
        self.ties: Int32 = np.zeros(pages, np.int32)  # [pages] places in tables of tied files
        self._tied_by: Int32 = np.full(pages, _NOBODY, np.int32)  # [pages] a tenant's account
        self.tied_pages = 0
        self.tied_room = UNLIMITED  # so many can always be kept somewhere, whatever else there is
        # What the tiers say of pages; None while all are on the device and nowhere else.
        self.count_tiers: Callable[[Int32], TierCounts | None] = lambda _pages: None

    def open(
        self, name: str, parent: TenantUsage | None, pages_max: int, entries_max: int
    ) -> TenantUsage:
        """Return a new account below `parent`."""
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
        """Close an account; return the integral of the entries it held, in entry-milliseconds."""
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
        """Check that `account` may take `pages` more.

        Raises:
            SyscallError: EDQUOT.
        """
        for each in account.chain():
            held = each.pages - each.absent
            if held + pages > each.pages_max:
                limit = "kv_tokens" if each.parent is not None else "kv_device_tokens"
                each.hit(limit)
                detail = f"{each.name} holds {held} of {each.pages_max} pages"
                raise LimitError(Errno.EDQUOT, limit, detail)

    def lose_device(self) -> None:
        """All held pages are off the device from now on, and nowhere else."""
        for account in self._accounts:
            if account is not None:
                account.host = account.disk = 0
                account.absent = account.pages if account.parent is None else 0

    def allow_tier(self, account: TenantUsage, host: int, disk: int) -> None:
        """Check that a tenant may ask for so many pages more on host and disk.

        Raises:
            SyscallError: EDQUOT.
        """
        root = account.root
        for name, used, more, most in (
            ("host", root.host, host, root.host_max),
            ("disk", root.disk, disk, root.disk_max),
        ):
            if more and used + more > most:
                root.hit(f"kv_{name}_tokens")
                detail = f"{root.name} has {used} of {most} pages on {name}"
                raise LimitError(Errno.EDQUOT, f"kv_{name}_tokens", detail)

    def allow_tied(self, account: TenantUsage, pages: int) -> None:
        """Check that a tenant may have so many pages more that are tied.

        At most as many as it leaves: one tenant may have half of the room, and whoever comes then
        half of the rest.

        Raises:
            SyscallError: EDQUOT.
        """
        root = account.root
        left = self.tied_room - self.tied_pages - pages
        most = min(left, root.host_max)
        if pages > 0 and root.unrecomputable + pages > most:
            raise SyscallError(
                Errno.EDQUOT,
                f"{root.name} would have {root.unrecomputable + pages} pages that cannot be computed again, "
                f"and leave room for {max(left, 0)}",
            )

    def tie(self, account: TenantUsage, pages: Int32) -> None:
        """A file of `account`, which is tied, holds these pages ([n]); without `allow_tied`."""
        new = np.unique(pages[self.ties[pages] == 0])
        np.add.at(self.ties, pages, _ONE)
        self._charge_ties(new, account.root)

    def loosen(self, pages: Int32) -> None:
        """A tied file is about to let go of these pages ([n]), or is tied no more."""
        np.subtract.at(self.ties, pages, _ONE)
        self._charge_ties(np.unique(pages[self.ties[pages] == 0]), None)

    def untied(self, pages: Int32) -> int:
        """Return how many different ones of `pages` are not tied."""
        return len(np.unique(pages[self.ties[pages] == 0]))

    def _charge_ties(self, pages: Int32, to: TenantUsage | None) -> None:
        """Charge pages ([n], distinct) to this tenant instead of whoever was charged for them."""
        indices, counts = np.unique(self._tied_by[pages], return_counts=True)
        for index, count in zip(indices.tolist(), counts.tolist(), strict=True):
            root = self._accounts[index] if index != _NOBODY else None
            if root is not None:
                root.unrecomputable -= count
                self.tied_pages -= count
        self._tied_by[pages] = _NOBODY if to is None else to.index
        if to is not None:
            to.unrecomputable += len(pages)
            self.tied_pages += len(pages)

    def by_tenant(self, pages: Int32) -> Iterator[tuple[TenantUsage, Int32]]:
        """Yield (the account at the top, which of `pages` it pays for); one may come twice."""
        payers = self._payer[pages]
        for index in np.unique(payers).tolist():
            account = self._accounts[index]
            assert account is not None, "a page is charged to a closed account"
            yield account.root, pages[payers == index]

    def charge(self, account: TenantUsage, pages: Int32) -> None:
        """Charge pages that were just allocated, after `allow`."""
        self._payer[pages] = account.index
        self._add(account, len(pages))

    def refund(self, pages: Int32) -> None:
        """Take back the charge of pages that are free now."""
        if len(pages) == 1:
            self._refund(int(self._payer[pages[0]]), 1)
        elif len(pages):
            payers, counts = np.unique(self._payer[pages], return_counts=True)
            for index, count in zip(payers.tolist(), counts.tolist(), strict=True):
                self._refund(index, count)
        self._payer[pages] = _NOBODY

    def move(self, pages: Int32, account: TenantUsage) -> None:
        """Charge held pages ([n], distinct) to `account` from now on, without `allow`."""
        self._move_tiers(pages, account)
        if self.tied_pages:
            self._charge_ties(pages[self.ties[pages] > 0], account.root)
        payers, counts = np.unique(self._payer[pages], return_counts=True)
        for index, count in zip(payers.tolist(), counts.tolist(), strict=True):
            self._refund(index, count)
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
        """Return those of `pages` that are charged to `account` itself."""
        charged: Int32 = pages[self._payer[pages] == account.index]
        return charged

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
        """Compare every account with the pages it pays for; `references` are the pool's ([pages]).

        Raises:
            KernelBug: a held page without a payer, a free one with one, or a wrong sum.
        """
        if not np.array_equal(self._payer == _NOBODY, references == 0):
            raise KernelBug("held pages and charged pages are not the same pages")
        paid: Int64 = np.bincount(
            self._payer[self._payer != _NOBODY], minlength=len(self._accounts)
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
        held = np.flatnonzero(self._payer != _NOBODY).astype(np.int32)
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

    def check_ties(self, expected: Int64) -> None:
        """Compare ties with the tables of tied files (`expected`: [pages]); KernelBug."""
        if not np.array_equal(self.ties, expected):
            raise KernelBug("the pages that are tied are not those of files that are")
        if not np.array_equal(self._tied_by != _NOBODY, expected > 0):
            raise KernelBug("tied pages and those that somebody is charged for are not the same")
        charged = np.bincount(self._tied_by[expected > 0], minlength=len(self._accounts))
        for index, account in enumerate(self._accounts):
            if account is not None and account.unrecomputable != charged[index]:
                raise KernelBug(
                    f"{account.name} counts {account.unrecomputable} tied pages, has others"
                )
        if self.tied_pages != charged.sum():
            raise KernelBug(f"{self.tied_pages} pages are counted as tied, there are others")
