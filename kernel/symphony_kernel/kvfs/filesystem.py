"""KVFS: a tenant's files and names over the one pool of pages.

Whoever keeps a file holds a reference to it: a handle, a name, a grant, an operation under way. The
last one to let go frees its pages. Arguments are trusted; syscalls have checked them.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from symphony_kernel.executor.base import Batch, Int32, Int64, UInt32
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.lineage.book import LineageBook, LineageStatistics
from symphony_kernel.kvfs.lineage.spans import Trail
from symphony_kernel.kvfs.loading import fill
from symphony_kernel.kvfs.name_tree import PUBLIC, Name, is_public
from symphony_kernel.kvfs.names import NamedFile, NameExpiries, describe, split_public
from symphony_kernel.kvfs.observer import PageObserver
from symphony_kernel.kvfs.pages.pool import PagePool, PoolStatistics
from symphony_kernel.kvfs.pages.prefix_cache import PrefixCache, PrefixCacheStatistics
from symphony_kernel.kvfs.quotas import UNLIMITED, Quotas, TenantUsage
from symphony_kernel.kvfs.storage import Storage
from symphony_kernel.kvfs.tenants import Tenant, TenantLimits
from symphony_kernel.kvfs.tiers.config import TierConfig
from symphony_kernel.kvfs.tiers.eviction import Eviction
from symphony_kernel.kvfs.tiers.metrics import TierStatistics
from symphony_kernel.kvfs.tiers.page_transfers import PageTransfers
from symphony_kernel.kvfs.tiers.tiers import Tiers
from symphony_kernel.protocol.errno import Errno, KernelBug, SyscallError
from symphony_kernel.protocol.limits import (
    FILE_ENTRIES_MAX,
    KV_KEEP_SHARE,
    LINEAGE_TENANT_ENTRIES_MIN,
    LINEAGE_TENANT_ENTRIES_TIMES,
    LIST_ITEMS_MAX,
    PAGE_TOKENS,
    PREFIX_CACHE_SHARE,
    TENANT_PAGES_SHARE_MAX,
)


@dataclass(frozen=True, slots=True)
class KVFSStatistics:
    """Files, and the pool below them."""

    files: int
    names: int
    tenants: int
    copied_slots: int
    pool: PoolStatistics
    prefix_cache: PrefixCacheStatistics
    tiers: TierStatistics
    lineage: LineageStatistics


class KVFS:
    """All KV files of one device with `pages` pages; `now` gives seconds.

    Prefixes that programs offer may take `prefix_cache_share` of the pages.
    """

    def __init__(
        self,
        pages: int,
        now: Callable[[], float],
        limits: TenantLimits | None = None,
        on_freed: Callable[[Int32], None] | None = None,
        prefix_cache_share: float = PREFIX_CACHE_SHARE,
        places: TierConfig | None = None,
    ) -> None:
        places = places or TierConfig()
        self.transfers = PageTransfers()
        if places.poison and on_freed is None:
            on_freed = self.transfers.poison.append
        ids = places.pages(pages)
        self.pool = PagePool(pages, on_freed, ids, places.poison)
        self.ledger = Quotas(ids, now)
        self.tiers = Tiers(
            self.pool, self.ledger, self.transfers, places.host_slots, places.page_bytes
        )
        self.tenants: dict[str, Tenant] = {}
        self._page_bytes = max(places.page_bytes, 1)
        self.expiries = NameExpiries()
        self.limits = limits or TenantLimits(int(pages * TENANT_PAGES_SHARE_MAX))
        # Who may fill the whole pool waits for pages like everybody, instead of EDQUOT.
        self._pages_max = UNLIMITED if self.limits.pages >= pages else self.limits.pages
        self.prefix_cache = PrefixCache(
            self.pool, self.ledger, int(pages * prefix_cache_share), now
        )
        # Some times the entries that a tenant may have there, for each of the pages there may be.
        entries = self.limits.pages * PAGE_TOKENS * ids // pages
        self.lineages = LineageBook(
            max(LINEAGE_TENANT_ENTRIES_TIMES * entries, LINEAGE_TENANT_ENTRIES_MIN)
        )
        self._storage = Storage(
            self.pool, self.ledger, self.prefix_cache, self.transfers, self.tiers, self.lineages
        )
        if ids > pages:  # else nothing ever leaves the device
            self._storage.keep_tied(places.disk_slots > 0)
        kept = int(min(self.limits.pages, pages) * KV_KEEP_SHARE)
        self.eviction = Eviction(
            self.pool, self.tiers, self.ledger, self.transfers, self.prefix_cache.references, now, kept,
            self._storage.usable,
        )  # fmt: skip
        self._storage.eviction_order = self.eviction.eviction_order
        self._storage.relief = self.eviction.make_free
        self._files: dict[KVFile, None] = {}  # in the order in which they were made
        self.eviction.everything = lambda: self._files
        self._copied_slots = 0  # given to the executor
        # References of what goes to disk or comes from there, see `durable.names`.
        self.under_way: Callable[[], Mapping[KVFile, int]] = dict

    # -- Tenants --------------------------------------------------------------------------------
    def tenant(self, name: str) -> Tenant:
        """Return the tenant, made when it is new."""
        tenant = self.tenants.get(name)
        if tenant is None:
            account = self.ledger.open(name, None, self._pages_max, FILE_ENTRIES_MAX)
            self._limit_tiers(account, self.limits)
            tenant = self.tenants[name] = Tenant(name, account, self.limits)
        return tenant

    def limit(self, name: str, values: Mapping[str, int | None]) -> Tenant:
        """Give a tenant limits of its own, by their names in `limit_table`; None: everybody's.

        What it holds past them stays; it gets nothing more.

        Raises:
            KeyError: there is no such limit.
        """
        limits = self.limits.changed(values)
        tenant = self.tenant(name)
        own = values.get("kv_device_tokens") is not None and limits.pages < self.limits.pages
        tenant.limits, account = limits, tenant.account
        account.pages_max = limits.pages if own else self._pages_max
        self._limit_tiers(account, limits)
        return tenant

    def _limit_tiers(self, account: TenantUsage, limits: TenantLimits) -> None:
        account.host_max = limits.host_pages
        account.disk_max = min(limits.disk_pages, limits.disk_bytes // self._page_bytes)

    # -- Files ----------------------------------------------------------------------------------
    def create(self, tenant: str, owner: TenantUsage) -> KVFile:
        """Return an empty file with one reference; SyscallError EDQUOT."""
        self.tenant(tenant).charge_file()
        file = KVFile(self._storage, tenant, owner)
        self._files[file] = None
        return file

    def create_named(self, tenant: str) -> KVFile:
        """Return an empty file for a name that is there already, past any quota."""
        owner = self.tenant(tenant)
        owner.files += 1
        file = KVFile(self._storage, tenant, owner.account)
        self._files[file] = None
        return file

    def fill(
        self,
        file: KVFile,
        tokens: UInt32,
        positions: Int32,
        plain: int,
        trail: Trail | None,
        *,
        device: bool = True,
    ) -> None:
        """Give an empty file its entries; see `loading.fill`. SyscallError ENOMEM, EDQUOT."""
        fill(self._storage, file, tokens, positions, plain, trail, device=device)

    def create_failed(self, tenant: str, owner: TenantUsage, errno: Errno) -> KVFile:
        """Return a file that only answers `errno`, in no quota: what a failed call leaves."""
        file = KVFile(self._storage, tenant, owner)
        file.counted = False
        file.error = errno
        self._files[file] = None
        return file

    def fork(self, source: KVFile, owner: TenantUsage) -> KVFile:
        """Return a file with the entries of `source`, all pages shared; SyscallError EDQUOT."""
        file = self.create(source.tenant, owner)
        file.share(source)
        return file

    def extract(self, file: KVFile, source: KVFile, entries: Int64) -> None:
        """Fill an empty file with entries of `source` ([c] indices); ENOMEM, EDQUOT."""
        assert file.length == 0
        file.append(source, entries)

    def let_go(self, file: KVFile) -> None:
        """Let go of one reference, which is hardly ever the last one."""
        if file.references > 1:
            file.references -= 1
        else:
            self.release(file)

    def release(self, *files: KVFile) -> None:
        """Let go of one reference to each (a file may stand there twice); the last one frees it."""
        dead: list[KVFile] = []
        for file in files:
            assert file.references > 0
            file.references -= 1
            if not file.references:
                assert not file.queue, "a file was freed below an operation"
                dead.append(file)
                del self._files[file]
                if file.counted:
                    self.tenants[file.tenant].files -= 1
        self._storage.clear(dead)

    # -- Names ----------------------------------------------------------------------------------
    def open(self, tenant: str, path: str, owner: TenantUsage) -> KVFile:
        """Return a private copy-on-write view of what `path` names now; it must be loaded.

        Raises:
            SyscallError: ENOENT, EDQUOT, EIO.
        """
        named = self.named(tenant, path)
        if named.error is not None:
            raise SyscallError(named.error, path)
        return self.view(tenant, named, path, owner)

    def view(self, tenant: str, named: KVFile, path: str, owner: TenantUsage) -> KVFile:
        """Return a view of a named file, which may be another tenant's; SyscallError EDQUOT."""
        assert named.name is not None
        assert named.name.loaded, "nothing of it is here yet"
        self.tenant(tenant).charge_file()
        file = KVFile(self._storage, tenant, owner)
        self._files[file] = None
        file.share(named)
        if named.tenant != tenant:
            self.pool.lent[file.pages] = True
        file.path = path
        file.expires_ms = named.expires_ms
        return file

    def named(self, tenant: str, path: str) -> KVFile:
        """Return the file that a tenant finds under this name; SyscallError ENOENT.

        `public/<owner>/..` are those of any tenant's files that are public.
        """
        if not is_public(path):
            file = self.tenant(tenant).names.get(path)
        else:
            owner, rest = split_public(path)
            publisher = self.tenants.get(owner)
            file = publisher.names.get(rest) if publisher is not None else None
            if file is not None and (file.name is None or not file.name.public):
                file = None
        if file is None:
            raise SyscallError(Errno.ENOENT, path)
        return file

    def save(self, file: KVFile, path: str, replace: bool, public: bool = False) -> None:
        """Name the content of `file` as it is now: later writes to the file are not seen.

        Raises:
            SyscallError: EEXIST without `replace`, EDQUOT, EACCES for a path under `public/`.
        """
        self.check_name(file.tenant, path, replace)
        self.put_name(path, self.snapshot(file, path), Name(public=public))

    def check_name(self, tenant: str, path: str, replace: bool) -> None:
        """Check that a tenant may give this name; SyscallError EACCES, EEXIST, EDQUOT."""
        if is_public(path):
            raise SyscallError(Errno.EACCES, "public/ is not a tenant's own")
        owner = self.tenant(tenant)
        names = owner.names
        if names.get(path) is not None:
            if not replace:
                raise SyscallError(Errno.EEXIST, path)
        elif len(names) >= owner.limits.names:
            raise owner.refusal("kv_names", f"{tenant} has {len(names)} names")

    def snapshot(self, file: KVFile, path: str) -> KVFile:
        """Return the content of `file` as it is now, to be named `path`; SyscallError EDQUOT."""
        # Owned by the tenant from now on: the name outlives the instance.
        snapshot = self.fork(file, self.tenant(file.tenant).account)
        snapshot.computed_at = 0.0  # whoever opens it goes on with no stream
        snapshot.path = file.path = path
        snapshot.expires_ms = file.expires_ms
        return snapshot

    def put_name(self, path: str, file: KVFile, name: Name) -> None:
        """Give `file` a name, in place of the one that had it; takes over one reference."""
        file.name = name
        tenant = self.tenant(file.tenant)
        tenant.durable_bytes += name.size
        self.expiries.set(file.expires_ms, file.tenant, path)
        old = tenant.names.put(path, file)
        if old is not None:
            self._drop_name(tenant, old)

    def remove(self, tenant: str, path: str) -> None:
        """Take a tenant's own name away; files that were opened from it stay. SyscallError ENOENT.

        Raises:
            SyscallError: ENOENT, EACCES for a path under `public/`.
        """
        if is_public(path):
            raise SyscallError(Errno.EACCES, "public/ is not a tenant's own")
        owner = self.tenant(tenant)
        file = owner.names.remove(path)
        if file is None:
            raise SyscallError(Errno.ENOENT, path)
        self.expiries.set(0, tenant, path)
        self._drop_name(owner, file)

    def _drop_name(self, tenant: Tenant, file: KVFile) -> None:
        name, file.name = file.name, None
        assert name is not None
        tenant.durable_bytes -= name.size
        shown = file.pages.copy() if name.public else file.pages[:0]
        self.release(file)
        left = shown[(self.pool.references[shown] > 0) & self.pool.lent[shown]]
        if len(left):
            self._hand_over(tenant, np.unique(left))

    def _hand_over(self, publisher: Tenant, pages: Int32) -> None:
        """Charge pages that only other tenants hold any longer ([n]) to one that does."""
        wanted = np.zeros(self.pool.pages, np.bool_)
        wanted[pages] = True
        holders: list[KVFile] = []
        for file in self._files:
            held = file.pages
            if len(held) and wanted[held].any():
                if file.tenant == publisher.name:
                    wanted[held] = False
                else:
                    holders.append(file)
        for file in holders:
            theirs = np.unique(file.pages[wanted[file.pages]])
            self.ledger.move(theirs, file.owner.live())
            wanted[theirs] = False

    def stat(self, tenant: str, path: str) -> NamedFile:
        """Return what a listing says of one file. SyscallError ENOENT."""
        return describe(path, self.named(tenant, path))

    def listing(
        self, tenant: str, prefix: str = "", after: str = "", limit: int = LIST_ITEMS_MAX + 1
    ) -> list[NamedFile]:
        """Return the named files whose paths begin with `prefix` and come after `after`, in order.

        At most `limit` of them. Below `public/<owner>/` they are that tenant's public ones; what
        tenants publish is told only of those that are named.
        """
        base, owner = "", tenant
        if is_public(prefix):
            owner, prefix = split_public(prefix)
            base = f"{PUBLIC}/{owner}/"
            after = after.removeprefix(base)
        found: list[NamedFile] = []
        known = self.tenants.get(owner)
        for path, file in known.names.items(prefix, after) if known is not None else ():
            if base and (file.name is None or not file.name.public):
                continue
            found.append(describe(base + path, file))
            if len(found) >= limit:
                break
        return found

    # -- Prefixes -------------------------------------------------------------------------------
    def offer(self, file: KVFile) -> int:
        """Offer the whole pages of `file` to its tenant's runs; return the entries taken.

        Raises:
            SyscallError: EINVAL when an entry depends on more than the tokens before it.
        """
        if file.plain < file.length:
            raise SyscallError(Errno.EINVAL, f"{file.plain} of {file.length} entries are plain")
        pages = file.length // PAGE_TOKENS
        offered = file.pages[:pages]
        return PAGE_TOKENS * self.prefix_cache.offer(file.tenant, file.page_tokens(pages), offered)

    def match(self, tenant: str, tokens: UInt32, owner: TenantUsage) -> KVFile:
        """Return a file with the longest prefix of `tokens` that was offered in this tenant.

        It has whole pages, and leaves at least one token.

        Raises:
            SyscallError: ENOENT, ENOMEM, EDQUOT.
        """
        pages = self.prefix_cache.find(tenant, tokens.tobytes())
        if not len(pages):
            raise SyscallError(Errno.ENOENT, "no prefix of these tokens was offered")
        file = self.create(tenant, owner)
        try:
            file.adopt(pages)
        except SyscallError:
            self.release(file)
            raise
        return file

    # -- What the executor owes -----------------------------------------------------------------
    @property
    def moves_pending(self) -> bool:
        """Whether there are copies or moves that the executor has not been given yet."""
        return self.transfers.pending

    def take_moves(self) -> list[Batch]:
        """Return what must come before the next step's rows: batches without rows, in order.

        Nearly always one or none. Every step takes them: a frame may be in use again by the time
        the next one is formed.
        """
        if self.tiers.spilling.waiting:
            self.tiers.spilling.balance()
        if not self.transfers.pending:
            return []
        self._copied_slots += self.transfers.copied_slots
        return self.tiers.give(self.transfers.take())

    def moved(self, batch: Batch) -> None:
        """A batch has been computed."""
        if batch.note is not None:
            self.tiers.ended(batch)

    def lose_moves(self, batch: Batch) -> None:
        """A batch that copied and moved has failed: files that hold what it wrote answer EIO.

        What lies there may be another tenant's. Pages that were on their way to the host are just
        computed again.
        """
        self.eviction.faults += 1
        lost = self.tiers.lost(batch)
        if len(lost):
            if self._storage.observer is not None:
                self._storage.observer.lost(lost)
            self.lose_pages(lost)

    def lose_pages(self, lost: Int32) -> None:
        """What lies in these pages ([n]) is wrong: the files that hold them answer EIO."""
        self.prefix_cache.forget(lost)
        for file in self._files:
            if file.error is None and np.isin(file.pages, lost).any():
                file.error = Errno.EIO

    # -- A kernel that comes back ---------------------------------------------------------------
    def use(self, observer: PageObserver | None) -> None:
        """Tell this witness of what no call determines."""
        self._storage.observer = observer
        self.prefix_cache.evicted = observer.evicted if observer else lambda _pages: None

    def hear_of_edits(self, heard: Callable[[KVFile], None]) -> None:
        """Tell of files whose entries change otherwise than by a pred, or that are gone."""
        self._storage.edited = heard

    def kept(self) -> dict[str, object]:
        """Return the parts that a kernel which comes back fills in, by name."""
        return {
            "pool": self.pool,
            "ledger": self.ledger,
            "prefix cache": self.prefix_cache,
            "lineages": self.lineages,
            "storage": self._storage,
        }

    def file(self, number: int) -> KVFile:
        """Return the file with this number; LookupError. Takes a look at each."""
        for file in self._files:
            if file.number == number:
                return file
        raise LookupError(f"no file has the number {number}")

    def lend_frames(self) -> None:
        """Do without a device until `lose_device`: calls find frames, and nothing is computed."""
        self.prefix_cache.restore_heaps()
        self.pool.lend_frames()
        self.transfers.page = self.pool.page
        for file in self._files:
            file.forget_frames()

    def lose_device(self, frames: int) -> None:
        """Begin with an empty device: all pages are to be computed again.

        What cannot be computed again answers EIO, or lies on disk again until somebody opens it.
        """
        for file in self._files:
            if not file.recomputable:
                self._lose(file)
            file.unreserve()  # what was for steps of that device
            if file.ranked:
                self._storage.eviction_order.discard(file)
        self.transfers.forget()
        self.pool.lose_frames(frames)
        self.transfers.page = self.pool.page
        self.ledger.lose_device()

    def _lose(self, file: KVFile) -> None:
        if file.name is not None and file.name.durable:
            file.truncate(0)
            file.name.loaded = False
        elif file.error is None:
            file.error = Errno.EIO

    # -- Audit ----------------------------------------------------------------------------------
    def check_integrity(self, held: Mapping[KVFile, int]) -> None:
        """Compare counts with what is there; `held` has the references of everybody but the names.

        Raises:
            KernelBug: references differ from the page tables, free pages are in use, a quota
                differs from what is held, or a reference points at a file that is gone.
        """
        expected = Counter(held) + Counter(self.under_way())
        for tenant in self.tenants.values():
            expected.update(file for _, file in tenant.names.items())
        gone = set(expected) - self._files.keys()
        if gone:
            raise KernelBug(f"{len(gone)} files are referred to and gone")
        for file in self._files:
            if file.references != expected[file]:
                raise KernelBug(
                    f"a file of {file.tenant} counts {file.references} references, "
                    f"{expected[file]} are held"
                )
        tables = [file.pages for file in self._files]
        pages = np.concatenate(tables) if tables else np.empty(0, np.int32)
        in_tables: Int64 = np.bincount(pages, minlength=self.pool.pages)
        self.pool.check_integrity(in_tables + self.prefix_cache.references)
        self.prefix_cache.check_integrity()
        self.ledger.check_integrity(self.pool.references)
        origins = [file.origins for file in self._files if file.origins is not None]
        self.lineages.check_integrity(
            Counter(each.lineage for each in origins if each.lineage is not None)
        )
        self.tiers.check_integrity()
        self._check_quotas()
        unrecomputable = [file.pages for file in self._files if file.unrecomputable]
        self.ledger.check_ties(
            np.bincount(np.concatenate([*unrecomputable, pages[:0]]), minlength=self.pool.pages)
        )
        for file in self._files:
            if not (file.recomputable or file.unrecomputable or not file.length):
                raise KernelBug(f"a file of {file.tenant} is lost and not tied")

    def _check_quotas(self) -> None:
        counted = Counter(file.tenant for file in self._files if file.counted)
        for tenant in self.tenants.values():
            if tenant.files != counted[tenant.name]:
                raise KernelBug(
                    f"{tenant.name} is charged {tenant.files} files and has {counted[tenant.name]}"
                )

    def statistics(self) -> KVFSStatistics:
        """Return what there is."""
        return KVFSStatistics(
            files=len(self._files),
            names=sum(len(tenant.names) for tenant in self.tenants.values()),
            tenants=len(self.tenants),
            copied_slots=self._copied_slots,
            pool=self.pool.statistics(),
            prefix_cache=self.prefix_cache.statistics(),
            tiers=self.tiers.statistics(),
            lineage=self.lineages.statistics(),
        )
