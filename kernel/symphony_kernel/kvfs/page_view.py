"""A named file for people: its pages by tier with the files that share them, and its lineage.

The cost is bounded by the `KV_VIEW_` limits. Files are named only to the tenant that owns them. All
other holders of a page are a number.
"""

from typing import Any, NamedTuple

import numpy as np

from symphony_kernel.executor.base import Int32, Int64
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.filesystem import KVFS
from symphony_kernel.kvfs.pages.pool import page_count
from symphony_kernel.kvfs.tiers.tiers import Tier
from symphony_kernel.protocol.limits import (
    KV_VIEW_FILES_MAX,
    KV_VIEW_NAMES_MAX,
    KV_VIEW_PAGES_MAX,
    KV_VIEW_PARTS_MAX,
    KV_VIEW_TABLE_PAGES_MAX,
)


class _Sharers(NamedTuple):
    """The named files that hold pages: for each page ([n]) the index of its files in `sets`."""

    which: Int64
    sets: list[tuple[str, ...]]
    complete: bool = True  # all named files were compared


def view_pages(kvfs: KVFS, tenant: str, path: str, first: int, limit: int) -> dict[str, Any]:
    """Return ranges of equal pages from page `first` on: {data, next, complete}; ENOENT.

    `next` is the page behind the last range, or None. `complete`: all of the tenant's named files
    were compared with these pages.
    """
    file = kvfs.named(tenant, path)
    assert file.name is not None
    if not file.name.loaded:
        left = page_count(file.name.entries) - first
        return {
            "data": [_range(first, left, Tier.DISK)] * (left > 0),
            "next": None,
            "complete": True,
        }
    pages = file.pages[first : first + KV_VIEW_PAGES_MAX]
    cached = kvfs.prefix_cache.references[pages]
    holders = kvfs.pool.references[pages] - cached - 1
    if file.tenant != tenant:  # what its owner's programs have offered is the owner's matter
        cached = np.zeros_like(cached)
    sharers = _find_sharers(kvfs, tenant, file, pages, int(holders.sum()))
    tiers = kvfs.tiers.tier_of(pages)
    facts = np.stack((tiers, holders, cached > 0, sharers.which), axis=1)
    changes = (facts[1:] != facts[:-1]).any(axis=1)
    starts = np.flatnonzero(np.concatenate((np.ones(min(len(pages), 1), np.bool_), changes)))
    ends = [*starts[1:].tolist(), len(pages)]
    data = [
        _range(first + start, end - start, Tier(tier), held, bool(offered), sharers.sets[which])
        for start, end, (tier, held, offered, which) in zip(
            starts[:limit].tolist(), ends, facts[starts[:limit]].tolist(), strict=False
        )
    ]
    behind = first + (int(starts[limit]) if len(starts) > limit else len(pages))
    following = behind if behind < len(file.pages) else None
    return {"data": data, "next": following, "complete": sharers.complete}


def _range(
    first: int,
    pages: int,
    tier: Tier,
    holders: int = 0,
    cached: bool = False,
    files: tuple[str, ...] = (),
) -> dict[str, Any]:
    return {
        "first": first,
        "pages": pages,
        "tier": tier.word,
        "holders": holders,
        "cached": cached,
        "files": list(files),
    }


def _find_sharers(kvfs: KVFS, tenant: str, file: KVFile, pages: Int32, held: int) -> _Sharers:
    """Compare the tenant's named files with `pages` ([n]), which others hold `held` times."""
    sets: list[tuple[str, ...]] = [()]
    which = np.zeros(len(pages), np.int64)
    if not held:
        return _Sharers(which, sets)
    place = np.zeros(kvfs.pool.pages, np.int32)  # of a page in `pages`, from 1 on
    place[pages] = np.arange(1, len(pages) + 1)
    looked, complete = 0, True
    for count, (path, other) in enumerate(kvfs.tenant(tenant).names.items()):
        if not held:
            break
        complete = count < KV_VIEW_NAMES_MAX and looked < KV_VIEW_TABLE_PAGES_MAX
        if not complete or len(sets) > KV_VIEW_PAGES_MAX:
            return _Sharers(which[place[pages] - 1], sets, False)
        if other is file:
            continue
        looked += len(other.pages)
        found = place[other.pages]
        found = found[found > 0] - 1
        held -= len(found)
        before = which[found]
        for known in np.unique(before).tolist():
            if len(sets[known]) < KV_VIEW_FILES_MAX:
                which[found[before == known]] = len(sets)
                sets.append((*sets[known], path))
    return _Sharers(which[place[pages] - 1], sets)  # a page may be in the file twice


def view_lineage(file: KVFile) -> dict[str, Any] | None:
    """Return how the first entries were computed; None if each saw exactly those before it."""
    trail, origins = file.lineage, file.origins
    if trail is None or origins is None or origins.lineage is None:
        return None
    kept, parts = origins.lineage.kept, trail.parts()
    return {
        "len": trail.length,
        "computed": kept.entries,
        "spans": kept.spans,
        "scratch_pages": kept.scratch_pages,
        "lost": kept.lost,
        "parts": [
            {
                "first": part.first,
                "len": part.length - part.first,
                "of": part.span.length,
                "tree": part.span.parents is not None,
                "lost": part.span.lost,
            }
            for part in parts[:KV_VIEW_PARTS_MAX]
        ],
    }
