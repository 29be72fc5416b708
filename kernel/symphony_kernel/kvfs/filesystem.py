"""KVFS: a tenant's files and names over one pool of pages.

Handles, names, grants and operations under way each hold a reference to a file. When the last
reference is released, the file's pages are freed. Syscalls have checked the arguments.
Docstrings name a SyscallError by its errno.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from symphony_kernel.executor.base import Batch, Int32, Int64, UInt32
from symphony_kernel.kvfs.expiry_queue import ExpiryQueue
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.lineage.book import LineageBook
from symphony_kernel.kvfs.name_tree import PUBLIC, Name, is_public
from symphony_kernel.kvfs.names import NamedFile, describe, split_public
from symphony_kernel.kvfs.observer import PageObserver
from symphony_kernel.kvfs.pages.pool import PagePool
from symphony_kernel.kvfs.pages.prefix_cache import PrefixCache
from symphony_kernel.kvfs.quotas import UNLIMITED, Quotas, TenantUsage
from symphony_kernel.kvfs.storage import Storage
from symphony_kernel.kvfs.tenants import Tenant, TenantLimits
from symphony_kernel.kvfs.tiers.base import spare_slots
from symphony_kernel.kvfs.tiers.config import TierConfig
from symphony_kernel.kvfs.tiers.eviction import Eviction
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
    UNRECOMPUTABLE_DEVICE_SHARE,
)


class KVFS:
    """All KV files of one device with `pages` frames; `now` gives seconds.

    Offered prefixes may take `prefix_cache_share` of the frames.
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
        poison: list[Int32] = []
        if places.poison and on_freed is None:
            on_freed = poison.append
        ids = places.pages(pages)
        self.pool = PagePool(pages, on_freed, ids, places.poison)
        self.transfers = PageTransfers(self.pool, poison)
        self.quotas = Quotas(ids, now)
        self.tiers = Tiers(
            self.pool, self.quotas, self.transfers, places.host_slots, places.page_bytes
        )
        self.tenants: dict[str, Tenant] = {}
        self._page_bytes = max(places.page_bytes, 1)
        self.expiries: ExpiryQueue[tuple[str, str]] = ExpiryQueue()  # of (tenant, path), in Unix ms
        self.limits = limits or TenantLimits(int(pages * TENANT_PAGES_SHARE_MAX))
        # A tenant that may fill the whole pool waits for pages, instead of EDQUOT.
        self._pages_max = UNLIMITED if self.limits.pages >= pages else self.limits.pages
        self.prefix_cache = PrefixCache(
            self.pool, self.quotas, int(pages * prefix_cache_share), now
        )
        # In proportion to the entries that a tenant may have on the device, and to all page ids.
        entries = self.limits.pages * PAGE_TOKENS * ids // pages
        self.lineages = LineageBook(
            max(LINEAGE_TENANT_ENTRIES_TIMES * entries, LINEAGE_TENANT_ENTRIES_MIN)
        )
        usable = pages
        if ids > pages:  # else pages never leave the device
            usable -= self._limit_unrecomputable(places.disk_slots > 0)
        self._files: dict[KVFile, None] = {}  # in the order in which they were made
        self.eviction = Eviction(
            self.pool, self.tiers, self.quotas, self.transfers, self.prefix_cache.references, now,
            int(min(self.limits.pages, pages) * KV_KEEP_SHARE), usable, lambda: self._files,
        )  # fmt: skip
        self._storage = Storage(
            self.pool, self.quotas, self.prefix_cache, self.transfers, self.tiers, self.lineages,
            usable, self.eviction.make_free, self.eviction.eviction_order,
        )  # fmt: skip
        self._copied_slots = 0  # given to the executor
        # References of what goes to disk or comes from there; set by `durable.names`.
        self.durable_references: Callable[[], Mapping[KVFile, int]] = dict

    def _limit_unrecomputable(self, disk: bool) -> int:
        """Bound unrecomputable pages by their places; return how many are frames.

        The places are host slots, or a few frames. A page goes to disk through the host, later, so
        that disk slots do not count; but with a `disk` none need stay on the device.
        """
        slots, frames = self.tiers.slots, self.pool.frames
        host = slots - spare_slots(slots)
        self.quotas.unrecomputable_max = (
            host if disk else max(host, int(frames * UNRECOMPUTABLE_DEVICE_SHARE))
        )
        return self.quotas.unrecomputable_max - host

    # -- Tenants --------------------------------------------------------------------------------
    def tenant(self, name: str) -> Tenant:
        """Return the tenant; make it if it is new."""
        tenant = self.tenants.get(name)
        if tenant is None:
            account = self.quotas.open(name, None, self._pages_max, FILE_ENTRIES_MAX)
            self._limit_tiers(account, self.limits)
            tenant = self.tenants[name] = Tenant(name, account, self.limits)
        return tenant

    def limit(self, name: str, values: Mapping[str, int | None]) -> Tenant:
        """Set a tenant's own limits, by their names in `limit_table`; None: the default; KeyError.

        It keeps what exceeds them, and gets no more.
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
        return self._new_file(tenant, owner)

    def create_named(self, tenant: str) -> KVFile:
        """Return an empty file for a name that exists already, past any quota."""
        owner = self.tenant(tenant)
        owner.files += 1
        return self._new_file(tenant, owner.account)

    def create_failed(self, tenant: str, owner: TenantUsage, errno: Errno) -> KVFile:
        """Return a file that only answers `errno`, in no quota, after a failed call."""
        file = self._new_file(tenant, owner)
        file.counted = False
        file.error = errno
        return file

    def _new_file(self, tenant: str, owner: TenantUsage) -> KVFile:
        file = KVFile(self._storage, tenant, owner)
        self._files[file] = None
        return file

    def fork(self, source: KVFile, owner: TenantUsage) -> KVFile:
        """Return a file that shares all pages of `source`; SyscallError EDQUOT."""
        file = self.create(source.tenant, owner)
        file.share(source)
        return file

    def release_one(self, file: KVFile) -> None:
        """Release one reference, which is rarely the last one."""
        if file.references > 1:
            file.references -= 1
        else:
            self.release(file)

    def release(self, *files: KVFile) -> None:
        """Release a reference to each file (perhaps twice); the last one frees it."""
        dead: list[KVFile] = []
        for file in files:
            assert file.references > 0
            file.references -= 1
            if not file.references:
                assert not file.queue, "a file was freed while an operation uses it"
                dead.append(file)
                del self._files[file]
                if file.counted:
                    self.tenants[file.tenant].files -= 1
        self._storage.clear(dead)

    # -- Names ----------------------------------------------------------------------------------
    def open(self, tenant: str, path: str, owner: TenantUsage) -> KVFile:
        """Return a copy-on-write view of a named, loaded file; ENOENT, EDQUOT, EIO."""
        named = self.named(tenant, path)
        if named.error is not None:
            raise SyscallError(named.error, path)
        return self.view(tenant, named, path, owner)

    def view(self, tenant: str, named: KVFile, path: str, owner: TenantUsage) -> KVFile:
        """Return a view of a named file, perhaps another tenant's; SyscallError EDQUOT."""
        assert named.name is not None
        assert named.name.loaded, "a file is opened before its content is loaded"
        self.tenant(tenant).charge_file()
        file = self._new_file(tenant, owner)
        file.share(named)
        if named.tenant != tenant:
            self.pool.opened_by_others[file.pages] = True
        file.path = path
        file.expires_ms = named.expires_ms
        return file

    def named(self, tenant: str, path: str) -> KVFile:
        """Return the file that a tenant finds under this name; SyscallError ENOENT.

        Below `public/<owner>/` are the public files of that tenant.
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
        """Name the present content of `file`, not later writes to it; EEXIST, EDQUOT, EACCES."""
        self.check_name(file.tenant, path, replace)
        self.put_name(path, self.snapshot(file, path), Name(public=public))

    def check_name(self, tenant: str, path: str, replace: bool) -> None:
        """Check that a tenant may use this name; SyscallError EACCES, EEXIST, EDQUOT."""
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
        """Return a copy of the present content of `file`, to be named `path`; EDQUOT."""
        # The tenant owns it: the name outlives the instance.
        snapshot = self.fork(file, self.tenant(file.tenant).account)
        snapshot.computed_at = 0.0  # files that are opened from it continue no stream
        snapshot.path = file.path = path
        snapshot.expires_ms = file.expires_ms
        return snapshot

    def put_name(self, path: str, file: KVFile, name: Name) -> None:
        """Give `file` a name, in place of an older file's; takes over one reference."""
        file.name = name
        tenant = self.tenant(file.tenant)
        tenant.durable_bytes += name.size
        self.expiries.set((file.tenant, path), file.expires_ms)
        old = tenant.names.put(path, file)
        if old is not None:
            self._drop_name(tenant, old)

    def remove(self, tenant: str, path: str) -> None:
        """Remove a tenant's own name; files opened from it stay; ENOENT, EACCES."""
        if is_public(path):
            raise SyscallError(Errno.EACCES, "public/ is not a tenant's own")
        owner = self.tenant(tenant)
        file = owner.names.remove(path)
        if file is None:
            raise SyscallError(Errno.ENOENT, path)
        self.expiries.set((tenant, path), 0)
        self._drop_name(owner, file)

    def _drop_name(self, tenant: Tenant, file: KVFile) -> None:
        name, file.name = file.name, None
        assert name is not None
        tenant.durable_bytes -= name.size
        shown = file.pages.copy() if name.public else file.pages[:0]
        self.release(file)
        left = shown[(self.pool.references[shown] > 0) & self.pool.opened_by_others[shown]]
        if len(left):
            self._hand_over(tenant, np.unique(left))

    def _hand_over(self, publisher: Tenant, pages: Int32) -> None:
        """Charge pages ([n]) that only other tenants still hold to one of these."""
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
            self.quotas.move(theirs, file.owner.live())
            wanted[theirs] = False

    def listing(
        self, tenant: str, prefix: str = "", after: str = "", limit: int = LIST_ITEMS_MAX + 1
    ) -> list[NamedFile]:
        """Return the named files with `prefix` that come after path `after`, in order.

        At most `limit` of them. Below `public/<owner>/` they are that tenant's public files; there
        is no list of the tenants that publish.
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
        """Offer the whole pages of `file` to its tenant's runs; return entries cached.

        EINVAL if an entry depends on more than the tokens before it.
        """
        if file.plain < file.length:
            raise SyscallError(Errno.EINVAL, f"{file.plain} of {file.length} entries are plain")
        pages = file.length // PAGE_TOKENS
        offered = file.pages[:pages]
        return PAGE_TOKENS * self.prefix_cache.offer(
            file.tenant, file.page_tokens(pages), offered, file.adapter
        )

    def match(self, tenant: str, tokens: UInt32, owner: TenantUsage) -> KVFile:
        """Return a file with the longest prefix of `tokens` that the tenant has offered.

        It has whole pages, which no adapter has computed, and leaves at least one token.
        ENOENT, ENOMEM, EDQUOT.
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
        file.cached = file.length
        return file

    # -- Preds that share prefixes --------------------------------------------------------------
    def offer_computed(self, request: int, file: KVFile, tokens: UInt32) -> None:
        """Offer the first tokens ([n]) of a pred, which are computed, before it ends."""
        assert file.length % PAGE_TOKENS == 0, "a partial page is copied when it is written"
        file.write_reserved(tokens)
        pages = (file.length + len(tokens)) // PAGE_TOKENS
        self.prefix_cache.offer(
            file.tenant, file.page_tokens(pages), file.pages[:pages], file.adapter
        )
        if self._storage.observer is not None:
            self._storage.observer.offered(request, len(tokens))

    def share_computed(
        self, request: int, file: KVFile, tokens: bytes, first: int, count: int
    ) -> None:
        """Put `count` cached pages in place of those reserved for a pred, from `first` on.

        `tokens` (u32) are the file's and the pred's.
        """
        pages = self.prefix_cache.use(file.tenant, tokens, first, count, file.adapter)
        file.exchange(first, pages)
        if self._storage.observer is not None:
            self._storage.observer.shared(request, first, count)

    # -- Adapters -------------------------------------------------------------------------------
    def adapters_in_use(self) -> set[str]:
        """Return the identities of adapters that files need to be recomputed."""
        return self.lineages.adapters() | {
            file.adapter for file in self._files if file.adapter and file.length
        }

    # -- The executor's transfers ---------------------------------------------------------------
    @property
    def transfers_pending(self) -> bool:
        """Whether there are transfers that the executor has not been given."""
        return self.transfers.pending

    def take_transfers(self) -> list[Batch]:
        """Return the transfers to make before the next step, as batches without rows.

        Mostly one or none. Every step takes them: a frame may be in use again when the next step is
        formed.
        """
        if self.tiers.spill_tier.waiting:
            self.tiers.spill_tier.balance()
        if not self.transfers.pending:
            return []
        self._copied_slots += self.transfers.copied_slots
        return self.tiers.track_batches(self.transfers.take())

    def finish_transfers(self, batch: Batch) -> None:
        """Account for the transfers of a batch that has been computed."""
        if batch.note is not None:
            self.tiers.finish_batch(batch)

    def fail_transfers(self, batch: Batch) -> None:
        """Account for transfers that have failed: files that hold their pages answer EIO.

        The pages may hold another tenant's content. Pages that were being saved are recomputed.
        """
        self.eviction.faults += 1
        lost = self.tiers.fail_batch(batch)
        if len(lost):
            if self._storage.observer is not None:
                self._storage.observer.lost(lost)
            self.lose_pages(lost)

    def lose_pages(self, lost: Int32) -> None:
        """Make the files that hold these pages ([n]), whose content is wrong, answer EIO."""
        self.prefix_cache.evict_damaged(lost)
        for file in self._files:
            if file.error is None and np.isin(file.pages, lost).any():
                file.error = Errno.EIO

    # -- Recovery -------------------------------------------------------------------------------
    def set_observer(self, observer: PageObserver | None) -> None:
        self._storage.observer = observer
        self.prefix_cache.observer = observer

    def watch_edits(self, heard: Callable[[KVFile], None]) -> None:
        """Call `heard` with files that are gone, or that not a pred has changed."""
        self._storage.on_edited = heard

    def snapshot_roots(self) -> dict[str, object]:
        """Return the parts that recovery fills in from a snapshot, by name."""
        return {
            "pool": self.pool,
            "quotas": self.quotas,
            "prefix cache": self.prefix_cache,
            "lineages": self.lineages,
            "storage": self._storage,
        }

    def file(self, number: int) -> KVFile:
        """Return the file with this number; LookupError. Looks at each file."""
        for file in self._files:
            if file.number == number:
                return file
        raise LookupError(f"no file has the number {number}")

    def detach_device(self) -> None:
        """Replay without a device until `reset_device`: calls find frames."""
        self.prefix_cache.restore_heaps()
        self.pool.attach_imaginary_frames()
        for file in self._files:
            file.forget_frames()

    def reset_device(self, frames: int) -> None:
        """Start with an empty device: all pages are in no tier.

        Unrecomputable files answer EIO, or are loaded from disk again if they are durable.
        """
        for file in self._files:
            if not file.recomputable:
                self._lose(file)
            file.unreserve()  # these pages were for steps of the old device
            if file.ranked:
                self._storage.eviction_order.discard(file)
        self.transfers.forget()
        self.pool.reset_frames(frames)
        self.quotas.reset_device()

    def _lose(self, file: KVFile) -> None:
        if file.name is not None and file.name.durable:
            file.truncate(0)
            file.name.loaded = False
        elif file.error is None:
            file.error = Errno.EIO

    # -- Audit ----------------------------------------------------------------------------------
    def check_integrity(self, held: Mapping[KVFile, int]) -> None:
        """Compare counts with page tables; `held` has all references but those of names.

        KernelBug: references differ from the page tables, free pages are in use, a quota differs
        from what is held, or a reference points at a file that is gone.
        """
        expected = Counter(held) + Counter(self.durable_references())
        for tenant in self.tenants.values():
            expected.update(file for _, file in tenant.names.items())
        gone = set(expected) - self._files.keys()
        if gone:
            raise KernelBug(f"{len(gone)} files are referred to and do not exist")
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
        self.quotas.check_integrity(self.pool.references)
        origins = [file.origins for file in self._files if file.origins is not None]
        self.lineages.check_integrity(
            Counter(each.lineage for each in origins if each.lineage is not None)
        )
        self.tiers.check_integrity()
        self._check_quotas()
        unrecomputable = [file.pages for file in self._files if file.unrecomputable]
        self.quotas.check_unrecomputable(
            np.bincount(np.concatenate([*unrecomputable, pages[:0]]), minlength=self.pool.pages)
        )
        for file in self._files:
            if not (file.recomputable or file.unrecomputable or not file.length):
                raise KernelBug(f"a file of {file.tenant} is lost and not charged as such")

    def _check_quotas(self) -> None:
        counted = Counter(file.tenant for file in self._files if file.counted)
        for tenant in self.tenants.values():
            if tenant.files != counted[tenant.name]:
                raise KernelBug(
                    f"{tenant.name} is charged {tenant.files} files and has {counted[tenant.name]}"
                )

    def statistics(self) -> dict[str, Any]:
        """Return the counters of files, names and pages, by the names that they have as metrics."""
        pool, cache, tiers = self.pool, self.prefix_cache.statistics(), self.tiers.statistics()
        return {
            "files": len(self._files),
            "names": sum(len(tenant.names) for tenant in self.tenants.values()),
            "copies": self._copied_slots,
            "pages": pool.frames,
            "pages_free": pool.free_frames,
            "pages_shared": int((pool.references > 1).sum()),
            **{f"prefix_cache_{key}": value for key, value in cache.items()},
            **{f"tiers_{key}": value for key, value in tiers.items()},
        }
