"""A tenant in KVFS: its names, what is charged to it, and its limits."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mypy_extensions import mypyc_attr

from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.name_tree import NameTree
from symphony_kernel.kvfs.quotas import UNLIMITED, TenantUsage
from symphony_kernel.protocol.errno import Errno, LimitError
from symphony_kernel.protocol.limits import (
    PAGE_TOKENS,
    TENANT_DURABLE_BYTES_MAX,
    TENANT_FILES_MAX,
    TENANT_HANDLES_MAX,
    TENANT_NAMES_MAX,
)

# Names of `limit_table` -> fields of `TenantLimits`; those in tokens are rounded down to pages.
_FIELDS = {
    "kv_device_tokens": "pages",
    "kv_host_tokens": "host_pages",
    "kv_disk_tokens": "disk_pages",
    "kv_files": "files",
    "kv_names": "names",
    "disk_bytes": "disk_bytes",
    "kv_durable_bytes": "durable_bytes",
    "tenant_handles": "handles",
    "tokens_per_minute": "tokens_per_minute",
}


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """What a tenant's instances and names may hold together; `pages`: on the device."""

    pages: int
    host_pages: int = UNLIMITED
    disk_pages: int = UNLIMITED
    files: int = TENANT_FILES_MAX
    handles: int = TENANT_HANDLES_MAX
    names: int = TENANT_NAMES_MAX
    disk_bytes: int = UNLIMITED  # in the disk tier; the gateway counts its own bytes
    durable_bytes: int = TENANT_DURABLE_BYTES_MAX
    tokens_per_minute: int = UNLIMITED  # that the device computes for it

    def changed(self, values: Mapping[str, int | None]) -> "TenantLimits":
        """Return these limits changed, by names of `limit_table`; None: same; KeyError."""
        given = {
            _FIELDS[name]: value // PAGE_TOKENS if name.endswith("_tokens") else value
            for name, value in values.items()
            if value is not None
        }
        return replace(self, **given)


@mypyc_attr(allow_interpreted_subclasses=True)
class Tenant:
    """One tenant's names, and what is charged to it."""

    def __init__(self, name: str, account: TenantUsage, limits: TenantLimits) -> None:
        self.name = name
        self.account = account
        self.limits = limits
        self.names: NameTree[KVFile] = NameTree()
        self.files = 0
        self.handles = 0
        self.durable_bytes = 0  # on disk, of its names

    def charge_file(self) -> None:
        """Count one more file; SyscallError EDQUOT."""
        if self.files >= self.limits.files:
            raise self.refusal("kv_files", f"{self.name} has {self.files} files")
        self.files += 1

    def charge_handle(self) -> None:
        """Count one more handle; SyscallError EDQUOT."""
        if self.handles >= self.limits.handles:
            raise self.refusal("tenant_handles", f"{self.name} has {self.handles} handles")
        self.handles += 1

    def refusal(self, limit: str, detail: str) -> LimitError:
        """Count that a limit was reached; return the error to raise."""
        self.account.hit(limit)
        return LimitError(Errno.EDQUOT, limit, detail)
