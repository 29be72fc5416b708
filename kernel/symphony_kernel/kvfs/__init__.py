"""KVFS: KV caches as files. Pages below, files in them, names over them, handles to hold them.

Lifetime: a file lives while it has references (see `filesystem`), a page while files hold it.
Nothing here is thread-safe: all of it runs on the kernel's event loop. Nothing here checks a
guest's arguments, and nothing here knows of instances or of the scheduler.
"""

from symphony_kernel.kvfs.files import KVFile
from symphony_kernel.kvfs.filesystem import KVFS, KVFSStatistics
from symphony_kernel.kvfs.handles import Handle, HandleTable
from symphony_kernel.kvfs.names import parse_path, parse_prefix
from symphony_kernel.kvfs.naming import Name, NamedFile
from symphony_kernel.kvfs.pages import PagePool, PoolStatistics, page_count
from symphony_kernel.kvfs.prefix_cache import PrefixCacheStatistics
from symphony_kernel.kvfs.quotas import Account, Ledger
from symphony_kernel.kvfs.tenants import Tenant, TenantLimits

__all__ = [
    "KVFS",
    "Account",
    "Handle",
    "HandleTable",
    "KVFSStatistics",
    "KVFile",
    "Ledger",
    "Name",
    "NamedFile",
    "PagePool",
    "PoolStatistics",
    "PrefixCacheStatistics",
    "Tenant",
    "TenantLimits",
    "page_count",
    "parse_path",
    "parse_prefix",
]
