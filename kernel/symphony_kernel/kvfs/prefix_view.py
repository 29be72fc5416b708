"""A tenant's cached prefixes as a tree for people: runs of pages, and how often each was matched.

    page 0 -- page 1 -- page 2 -- page 5          part 1: pages 0 and 1, below it parts 2 and 3
                    \\- page 8 -- page 9          part 2: pages 2 and 5; part 3: pages 8 and 9

A part ends where prefixes branch, and where a match has ended. The cost is bounded: the branches
that were used last are followed, up to a number of pages.
"""

from collections import Counter, deque
from typing import Any, NamedTuple

import numpy as np

from symphony_kernel.kvfs.pages.prefix_cache import Node, PrefixCache
from symphony_kernel.kvfs.tiers.tiers import Tier, Tiers
from symphony_kernel.protocol.limits import (
    PAGE_TOKENS,
    PREFIX_VIEW_BRANCHES_MAX,
    PREFIX_VIEW_PAGES_MAX,
    PREFIX_VIEW_TOKENS_MAX,
)

_TOKENS_AT = 8  # bytes of a node's key before its tokens
_PAGES_SHOWN = PREFIX_VIEW_TOKENS_MAX // PAGE_TOKENS  # of a part, as tokens


class _Part(NamedTuple):
    """Pages of a prefix that follow each other; `parent` 0: it begins with the first token."""

    id: int
    parent: int
    first: int  # pages before it
    nodes: list[Node]


def view_prefixes(
    cache: PrefixCache, tiers: Tiers, tenant: str, depth: int, limit: int
) -> dict[str, Any]:
    """Return a tenant's cached prefixes: {pages, complete, data}, at most `limit` parts in data.

    `complete`: all pages are counted. Then hits are exact; else those of some branches are missing.
    """
    pages, leaves = cache.branches(tenant, PREFIX_VIEW_BRANCHES_MAX)
    below = _follow(leaves)
    if not below:
        return {"pages": 0, "complete": True, "data": []}
    roots = [node for node in below if node.parent is None]  # one for each adapter
    hits = _sum_hits(roots, below)
    parts = _parts(roots, below, hits, depth, limit)
    shown = Counter(part.parent for part in parts)
    flat = np.array([node.page for part in parts for node in part.nodes], np.int32)
    starts = np.cumsum([0, *(len(part.nodes) for part in parts[:-1])])
    slowest = np.maximum.reduceat(tiers.tier_of(flat), starts).tolist()
    data = [
        {
            "id": part.id,
            "parent": part.parent or None,
            "first": part.first,
            "pages": len(part.nodes),
            "hits": hits[part.nodes[0]],
            "tier": Tier(tier).word,
            "more": part.nodes[-1].children - shown[part.id],
            "tokens": b"".join(node.key[_TOKENS_AT:] for node in part.nodes[:_PAGES_SHOWN]),
        }
        for part, tier in zip(parts, slowest, strict=True)
    ]
    return {"pages": pages, "complete": len(below) - len(roots) == pages, "data": data}


def _follow(leaves: list[Node]) -> dict[Node, list[Node]]:
    """Return the pages above these leaves, and the root, each with those of its children."""
    below: dict[Node, list[Node]] = {}
    for leaf in leaves:
        if len(below) > PREFIX_VIEW_PAGES_MAX:
            break
        node, below[leaf] = leaf, []
        while node.parent is not None:
            known = node.parent in below
            below.setdefault(node.parent, []).append(node)
            if known:
                break
            node = node.parent
    return below


def _sum_hits(roots: list[Node], below: dict[Node, list[Node]]) -> dict[Node, int]:
    """Return for each page the matches that ended at it or below it."""
    order = list(roots)
    for node in order:
        order.extend(below[node])
    hits: dict[Node, int] = {}
    for node in reversed(order):
        hits[node] = node.hits + sum(hits[child] for child in below[node])
    return hits


def _parts(
    roots: list[Node], below: dict[Node, list[Node]], hits: dict[Node, int], depth: int, limit: int
) -> list[_Part]:
    """Return parts, the upper ones and those with most hits first."""

    def ranked(nodes: list[Node]) -> list[Node]:
        return sorted(nodes, key=lambda node: (-hits[node], node.number))

    parts: list[_Part] = []
    first_pages = [node for root in roots for node in below[root]]
    waiting = deque((node, 0, 0, 1) for node in ranked(first_pages))
    while waiting and len(parts) < limit:
        node, parent, first, level = waiting.popleft()
        nodes = [node]
        while node.children == 1 and below[node] and not node.hits:
            (node,) = below[node]
            nodes.append(node)
        part = _Part(int.from_bytes(nodes[0].number, "big"), parent, first, nodes)
        parts.append(part)
        if level < depth:
            after = first + len(nodes)
            waiting.extend((each, part.id, after, level + 1) for each in ranked(below[node]))
    return parts
