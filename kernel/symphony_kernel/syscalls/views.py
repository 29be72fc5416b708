"""Requests of the gateway that show a tenant its KV files and prefixes.

    kv_pages     {tenant, path, after, limit} -> as kv_stat, with ranges of equal pages
    kv_prefixes  {tenant, depth, limit} -> the prefix cache as a tree
    kv_tokens    {tenant, path, start, count} -> {len, tokens, positions}; see `FileRequests`

Each is bounded, and its time is charged to the tenant.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from symphony_kernel.kvfs.filesystem import KVFS
from symphony_kernel.kvfs.name_tree import parse_path
from symphony_kernel.kvfs.page_view import view_lineage, view_pages
from symphony_kernel.kvfs.prefix_view import view_prefixes
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import (
    FILE_ENTRIES_MAX,
    PAGE_ITEMS_DEFAULT,
    PAGE_ITEMS_MAX,
    PAGE_TOKENS,
    PREFIX_VIEW_DEPTH_DEFAULT,
    PREFIX_VIEW_DEPTH_MAX,
)
from symphony_kernel.syscalls.names import NameCalls
from symphony_kernel.syscalls.validation import text


class ViewCalls:
    """Shows what there is; `charge` takes a tenant and seconds of `now`."""

    def __init__(
        self,
        kvfs: KVFS,
        named: NameCalls,
        charge: Callable[[str, float], None],
        now: Callable[[], float],
    ) -> None:
        self._kvfs = kvfs
        self._named = named
        self._charge = charge
        self._now = now

    def kv_pages(
        self, tenant: str, path: Any, after: Any = 0, limit: Any = PAGE_ITEMS_DEFAULT
    ) -> dict[str, Any]:
        """Return a named file with `limit` ranges of pages from page `after` on.

        Raises SyscallError: ENOENT, EINVAL, ENAMETOOLONG.
        """
        parsed = parse_path(text(path))
        first = _number("after", after, 0, FILE_ENTRIES_MAX)
        most = _number("limit", limit, 1, PAGE_ITEMS_MAX)
        with self._charged(tenant):
            file = self._kvfs.named(tenant, parsed)
            return {
                **self._named.kv_stat(tenant, parsed),
                "page_tokens": PAGE_TOKENS,
                "recomputable": not file.unrecomputable,
                "lineage": view_lineage(file),
                **view_pages(self._kvfs, tenant, parsed, first, most),
            }

    def kv_prefixes(
        self,
        tenant: str,
        depth: Any = PREFIX_VIEW_DEPTH_DEFAULT,
        limit: Any = PAGE_ITEMS_DEFAULT,
    ) -> dict[str, Any]:
        """Return `limit` parts of the tenant's cached prefixes; SyscallError EINVAL."""
        levels = _number("depth", depth, 1, PREFIX_VIEW_DEPTH_MAX)
        most = _number("limit", limit, 1, PAGE_ITEMS_MAX)
        kvfs = self._kvfs
        with self._charged(tenant):
            shown = view_prefixes(kvfs.prefix_cache, kvfs.tiers, tenant, levels, most)
            return {**shown, "page_tokens": PAGE_TOKENS}

    @contextmanager
    def _charged(self, tenant: str) -> Iterator[None]:
        began = self._now()
        try:
            yield
        finally:
            self._charge(tenant, self._now() - began)


def _number(name: str, value: Any, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise SyscallError(Errno.EINVAL, f"{name} must be from {low} to {high}")
    return value
