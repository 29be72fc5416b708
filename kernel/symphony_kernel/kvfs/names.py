"""Metadata of names: the records of listings, and public names."""

from typing import NamedTuple

from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.name_tree import PUBLIC
from symphony_kernel.kvfs.pages.pool import page_count


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
