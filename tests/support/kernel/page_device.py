"""KV files without a device: a time that tests set, accounts, and files of a few tenants."""

import numpy as np
from symphony_kernel.executor.base import Int32, Int64
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.filesystem import KVFS
from symphony_kernel.kvfs.quotas import TenantUsage
from symphony_kernel.kvfs.tenants import TenantLimits
from symphony_kernel.kvfs.tiers.config import TierConfig
from symphony_kernel.protocol.limits import PAGE_TOKENS


class ManualTime:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def make_kvfs(pages: int, now: ManualTime | None = None, **limits: int) -> KVFS:
    return KVFS(pages, now or ManualTime(), TenantLimits(**{"pages": pages, **limits}))


def make_account(
    kvfs: KVFS, tenant: str = "t", pages: int = 1 << 20, entries: int = 1 << 20
) -> TenantUsage:
    return kvfs.quotas.open("account", kvfs.tenant(tenant).account, pages, entries)


def extend(file: KVFile, *tokens: int) -> None:
    """Append tokens at continuing positions, as a pred does."""
    start, n = file.length, len(tokens)
    file.reserve(n)
    file.commit(np.array(tokens, np.uint32), np.arange(start, start + n, dtype=np.int32))


class FilesRig:
    """Files of a few tenants in a KVFS whose time passes when a test says so."""

    def __init__(self, frames: int, places: TierConfig | None = None) -> None:
        self.time = ManualTime()
        self.kvfs = KVFS(frames, self.time, TenantLimits(pages=frames), places=places)
        self.files: dict[KVFile, int] = {}  # that are open, with their references
        self._accounts: dict[str, TenantUsage] = {}

    def account(self, tenant: str = "t") -> TenantUsage:
        """Return the account of a tenant's files."""
        if tenant not in self._accounts:
            self._accounts[tenant] = make_account(self.kvfs, tenant)
        return self._accounts[tenant]

    def add(self, file: KVFile) -> KVFile:
        """Note a file as open, so that `check` and `close_all` know of it."""
        self.files[file] = 1
        return file

    def create(self, tenant: str = "t") -> KVFile:
        return self.add(self.kvfs.create(tenant, self.account(tenant)))

    def file(self, entries: int, tenant: str = "t") -> KVFile:
        """Return a file of so many entries, with the tokens 100, 101 and so on."""
        file = self.create(tenant)
        if entries:
            extend(file, *range(100, 100 + entries))
        return file

    def fork(self, file: KVFile) -> KVFile:
        return self.add(self.kvfs.fork(file, self.account(file.tenant)))

    def close(self, *files: KVFile) -> None:
        for file in files:
            del self.files[file]
            self.kvfs.release(file)

    def check(self) -> None:
        self.kvfs.check_integrity(self.files)

    def close_all(self) -> None:
        self.check()
        self.close(*self.files)
        self.check()


def take_copies(kvfs: KVFS) -> list[Int64]:
    """Return the groups of slot copies that the executor would be given now."""
    return [group for batch in kvfs.take_transfers() for group in batch.copies]


def slots_of_pages(pages: Int32) -> Int64:
    return (pages.astype(np.int64)[:, None] * PAGE_TOKENS + np.arange(PAGE_TOKENS)).reshape(-1)
