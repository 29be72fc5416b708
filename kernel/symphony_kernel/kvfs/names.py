"""Metadata of names: the records of listings, public names, and expiry."""

import heapq
from typing import Final, NamedTuple

from mypy_extensions import mypyc_attr

from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.name_tree import PUBLIC
from symphony_kernel.kvfs.pages.pool import page_count

_STALE_MAX: Final = 64  # stale entries of the heap, in addition to as many as are valid


class NamedFile(NamedTuple):
    """A listing's record of a named file: a tuple, because listings make thousands."""

    path: str
    len: int
    pages: int
    tier: str
    durable: bool
    public: bool = False
    expires_ms: int = 0


def describe(path: str, file: KVFile) -> NamedFile:
    """Return a listing's record of a file that it calls `path`."""
    name = file.name
    assert name is not None, "a file in the tree of names has a name"
    if name.loaded:
        entries, pages, tier = file.length, len(file.pages), file.tier.word
    else:
        entries, pages, tier = name.entries, page_count(name.entries), "disk"
    return NamedFile(path, entries, pages, tier, name.durable, name.public, file.expires_ms)


def split_public(path: str) -> tuple[str, str]:
    """Return the tenant, and the path or prefix, behind `public/`; "" if missing."""
    tenant, _, rest = path.removeprefix(PUBLIC).removeprefix("/").partition("/")
    return tenant, rest


@mypyc_attr(allow_interpreted_subclasses=True)
class NameExpiries:
    """When names expire, in Unix milliseconds."""

    def __init__(self) -> None:
        self._ends: dict[tuple[str, str], int] = {}
        self._heap: list[tuple[int, str, str]] = []  # with stale entries

    def __len__(self) -> int:
        """Return the number of entries, stale ones included."""
        return len(self._heap)

    def set(self, expires_ms: int, tenant: str, path: str) -> None:
        """Set a name's expiry in place of an earlier one; 0: never, or it is removed."""
        if expires_ms:
            self._ends[tenant, path] = expires_ms
            heapq.heappush(self._heap, (expires_ms, tenant, path))
        else:
            self._ends.pop((tenant, path), None)
        # A name may be saved again and again long before it expires: bound the stale entries.
        if len(self._heap) > 2 * len(self._ends) + _STALE_MAX:
            self._heap = [(moment, *name) for name, moment in self._ends.items()]
            heapq.heapify(self._heap)

    @property
    def next_ms(self) -> int | None:
        """When the next name may expire, or None."""
        return self._heap[0][0] if self._heap else None

    def due(self, now_ms: float) -> list[tuple[int, str, str]]:
        """Take out the names that have expired: (expiry, tenant, path) each."""
        found = []
        while self._heap and self._heap[0][0] <= now_ms:
            moment, *name = entry = heapq.heappop(self._heap)
            if self._ends.get((name[0], name[1])) == moment:
                del self._ends[name[0], name[1]]
                found.append(entry)
        return found
