"""What a name is besides the file that has it: listed, shared, kept on disk, for how long."""

import heapq
from typing import Final, NamedTuple

from mypy_extensions import mypyc_attr

from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.name_tree import PUBLIC
from symphony_kernel.kvfs.pages.pool import page_count

_STALE_MAX: Final = 64  # moments that hold no more, besides as many as do


class NamedFile(NamedTuple):
    """What a listing says of a named file; made by the thousand, which a dataclass is slow at."""

    path: str
    len: int
    pages: int
    tier: str
    durable: bool
    public: bool = False
    expires_ms: int = 0

    def view(self) -> dict[str, str | int]:
        """Return it as a map, made by hand: for thousands of files `asdict` takes far longer."""
        return {
            "path": self.path,
            "len": self.len,
            "pages": self.pages,
            "tier": self.tier,
            "durable": self.durable,
            "public": self.public,
            "expires_ms": self.expires_ms,
        }


def describe(path: str, file: KVFile) -> NamedFile:
    """Return what a listing says of a file that is called `path` there."""
    name = file.name
    assert name is not None, "a file in the tree of names has one"
    if not name.loaded:
        pages = page_count(name.entries)
        return NamedFile(
            path, name.entries, pages, "disk", name.durable, name.public, file.expires_ms
        )
    return NamedFile(
        path,
        file.length,
        len(file.pages),
        file.tier.word,
        name.durable,
        name.public,
        file.expires_ms,
    )


def split_public(path: str) -> tuple[str, str]:
    """Return the tenant and the path or prefix behind `public/`; "" where there is none."""
    tenant, _, rest = path.removeprefix(PUBLIC).removeprefix("/").partition("/")
    return tenant, rest


@mypyc_attr(allow_interpreted_subclasses=True)
class NameExpiries:
    """When names end, in Unix milliseconds."""

    def __init__(self) -> None:
        self._ends: dict[tuple[str, str], int] = {}
        self._heap: list[tuple[int, str, str]] = []  # with moments that hold no more

    def __len__(self) -> int:
        """Return how many moments are remembered: of names, and some that hold no more."""
        return len(self._heap)

    def set(self, expires_ms: int, tenant: str, path: str) -> None:
        """Remember when a name ends, in place of what was said before; 0: never, or it is gone."""
        if expires_ms:
            self._ends[tenant, path] = expires_ms
            heapq.heappush(self._heap, (expires_ms, tenant, path))
        else:
            self._ends.pop((tenant, path), None)
        # A name may be given again and again long before it ends: what is remembered is bounded.
        if len(self._heap) > 2 * len(self._ends) + _STALE_MAX:
            self._heap = [(moment, *name) for name, moment in self._ends.items()]
            heapq.heapify(self._heap)

    @property
    def next_ms(self) -> int | None:
        """The next moment at which a name may end."""
        return self._heap[0][0] if self._heap else None

    def due(self, now_ms: float) -> list[tuple[int, str, str]]:
        """Take out what has come due: (moment, tenant, path) each."""
        found = []
        while self._heap and self._heap[0][0] <= now_ms:
            moment, *name = entry = heapq.heappop(self._heap)
            if self._ends.get((name[0], name[1])) == moment:
                del self._ends[name[0], name[1]]
                found.append(entry)
        return found
