"""The prefix cache: pages that programs have offered, found again by their tokens.

Each tenant has a tree of its own, with a node for each page. A node's key is its parent's number
with the page's tokens, so that a page is only found below the very tokens that came before it:

    root of "t"  --[16 tokens]--> page 4 --[16 tokens]--> page 7
                                        \\-[16 tokens]--> page 9

Pages that an adapter has computed are below a root of that adapter. An offer adds only pages that
are new. The cache holds one reference to each of its pages. A page that only the cache holds is
charged to the cache, not to the program that computed it. Nothing is guaranteed to stay: past the
budget, or when the pool has no free page, the least recently used leaves of the tenant with most
pages are evicted; before them those of tenants that have not used theirs for long.
"""

import heapq
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Final

import numpy as np
from mypy_extensions import mypyc_attr

from symphony_kernel.executor.base import Int32, Int64
from symphony_kernel.kvfs.observer import PageObserver
from symphony_kernel.kvfs.pages.pool import PagePool
from symphony_kernel.kvfs.quotas import Quotas
from symphony_kernel.protocol.errno import KernelBug
from symphony_kernel.protocol.limits import PAGE_TOKENS, PREFIX_CACHE_IDLE_SECONDS

_PAGE_BYTES: Final = 4 * PAGE_TOKENS  # of u32 tokens
_NUMBER_BYTES: Final = 8
_GONE: Final = -1
FREED_PAGES_MIN: Final = 16  # at once, if there are so many
_UNLIMITED: Final = 1 << 62
# Which evicted pages count: all, those that only the cache held, or of these those with a frame.
_EACH: Final = 0
_FREED: Final = 1
_FREED_FRAMES: Final = 2


@mypyc_attr(allow_interpreted_subclasses=True)
class Node:
    """One cached page. Its `number` is in its children's keys, and is never reused."""

    __slots__ = ("children", "hits", "in_heap", "key", "number", "page", "parent", "used")

    def __init__(self, number: bytes, key: bytes, page: int, parent: "Node | None") -> None:
        self.number = number
        self.key = key
        self.page = page  # _GONE once it is evicted, and at the root
        self.parent = parent
        self.children = 0
        self.hits = 0  # matches that ended here, or below it on pages that are evicted
        self.used = 0
        self.in_heap = False


@mypyc_attr(allow_interpreted_subclasses=True)
class _Tree:
    """One tenant's pages. `heap` has all leaves, by their `used` or an older value."""

    __slots__ = ("heap", "pages", "roots", "used_s")

    def __init__(self, root: Node) -> None:
        self.roots = {"": root}  # by the adapter that computed what is below
        self.heap: list[tuple[int, bytes, Node]] = []
        self.pages = 0
        self.used_s = 0.0


class PrefixCache:
    """Offered prefixes of all tenants, at most `pages_max` pages; `now` gives seconds."""

    def __init__(
        self, pool: PagePool, quotas: Quotas, pages_max: int, now: Callable[[], float]
    ) -> None:
        self.pages_max = pages_max
        self.references: Int32 = np.zeros(pool.pages, np.int32)  # this cache's own
        self._pool = pool
        self._quotas = quotas
        self._now = now
        self._account = quotas.open("the prefix cache", None, _UNLIMITED, _UNLIMITED)
        self._index: dict[bytes, Node] = {}
        self._trees: OrderedDict[str, _Tree] = OrderedDict()  # the longest unused first
        self._numbers = 0
        self._uses = 0
        self._queries = self._query_tokens = self._hits = self._hit_tokens = 0
        self._offered = self._evicted = self._shared_tokens = 0
        self.added = self.removed = 0  # pages so far
        self.observer: PageObserver | None = None  # of evictions that make room for others

    # -- Programs -------------------------------------------------------------------------------
    def offer(self, tenant: str, tokens: bytes, pages: Int32, adapter: str = "") -> int:
        """Add whole pages ([n], distinct) with these tokens (u32) from position 0 on.

        Return how many of them, from the first, are cached now.
        """
        count = min(len(pages), self.pages_max)
        if not count:
            return 0
        tree = self._trees.get(tenant)
        if tree is None:
            tree = self._trees[tenant] = _Tree(Node(self._number(), b"", _GONE, None))
        root = tree.roots.get(adapter)
        if root is None:
            root = tree.roots[adapter] = Node(self._number(), b"", _GONE, None)
        node, found = self._walk(root, tokens, count)
        new = pages[len(found) : count]
        self._pool.retain(new)
        self.references[new] += 1
        self._offered += len(new)
        self._uses += 1
        for index, page in enumerate(new.tolist(), len(found)):
            node = self._add(
                tree, node, tokens[index * _PAGE_BYTES : (index + 1) * _PAGE_BYTES], page
            )
        self._use(tenant, tree, node)
        self._push(tree, node)
        if len(self._index) > self.pages_max:
            self._evict(len(self._index) - self.pages_max, _EACH)
        while node.page == _GONE and count:  # evicted, in favour of another tenant
            assert node.parent is not None
            node, count = node.parent, count - 1
        return count

    def find(self, tenant: str, tokens: bytes) -> Int32:
        """Return the pages of the longest cached prefix of all tokens (u32) but the last.

        Those that no adapter has computed.
        """
        self._queries += 1
        self._query_tokens += len(tokens) // 4
        tree = self._trees.get(tenant)
        found: list[int] = []
        if tree is not None:
            root = tree.roots[""]
            node, found = self._walk(root, tokens, (len(tokens) // 4 - 1) // PAGE_TOKENS)
            if found:
                self._uses += 1
                node.hits += 1
                self._use(tenant, tree, node)
        self._hits += bool(found)
        self._hit_tokens += len(found) * PAGE_TOKENS
        return np.array(found, np.int32)

    def peek(
        self,
        tenant: str,
        tokens: bytes,
        pages_max: int,
        node: Node | None,
        first: int,
        adapter: str = "",
    ) -> tuple[Node | None, Int32]:
        """Return the last node of the longest cached prefix (u32), and its pages from `first` on.

        `node` is that of the page before `first`, None at 0. It is no use of the prefix.
        """
        tree, found = self._trees.get(tenant), list[int]()
        start = node or (tree.roots.get(adapter) if tree is not None else None)
        if start is not None:
            node, found = self._walk(start, tokens, pages_max, first)
        return node, np.array(found, np.int32)

    def use(self, tenant: str, tokens: bytes, first: int, count: int, adapter: str = "") -> Int32:
        """Return cached pages first to first + count of these tokens (u32), for a pred."""
        tree = self._trees[tenant]
        node, found = self._walk(tree.roots[adapter], tokens, first + count)
        assert len(found) == first + count, "a pred uses pages that are not cached"
        self._uses += 1
        self._use(tenant, tree, node)
        self._shared_tokens += count * PAGE_TOKENS
        return np.array(found[first:], np.int32)

    # -- KVFS -----------------------------------------------------------------------------------
    def charged_here(self, pages: Int32) -> Int32:
        """Return those of `pages` that only this cache holds."""
        return self._quotas.charged(pages, self._account)

    def charge_idle(self, pages: Int32) -> None:
        """Charge those of the released `pages` to the cache that it alone still holds."""
        if not self._index:
            return
        own = self.references[pages]
        idle = pages[(own > 0) & (self._pool.references[pages] == own)]
        if len(idle):
            self._quotas.move(np.unique(idle), self._account)

    @property
    def idle_pages(self) -> int:
        """Pages that only the cache holds."""
        return self._account.pages

    def make_free(self, pages: int, *, frames: bool = True) -> None:
        """Evict what it takes to free so many pages, or nothing if that is not possible.

        With `frames` only pages with a frame count. A few more are evicted in advance: files grow
        by a page at a time, and evicting ten costs as much as evicting one.
        """
        account = self._account
        idle = account.pages - account.absent if frames else account.pages
        if pages <= idle:
            counts = _FREED_FRAMES if frames else _FREED
            evicted = self._evict(max(pages, min(FREED_PAGES_MIN, idle)), counts)
            if self.observer is not None:
                self.observer.evicted(evicted)

    def evict_pages(self, pages: Int32) -> None:
        """Evict these pages ([n]), children before parents, as the observer recorded it."""
        nodes = {node.page: node for node in self._index.values()}
        self._remove_all([nodes[page] for page in pages.tolist()])
        self._evicted += len(pages)

    def evict_damaged(self, pages: Int32) -> None:
        """Evict `pages`, whose content is wrong, and all pages below them."""
        bad = set(pages[self.references[pages] > 0].tolist())
        gone: dict[Node, None] = {}
        for node in self._index.values() if bad else ():  # parents come before children
            if node.page in bad or node.parent in gone:
                gone[node] = None
        if gone:
            self._remove_all(list(reversed(gone)))

    def _remove_all(self, nodes: list[Node]) -> None:
        """Remove nodes, children before parents, from anywhere in the trees."""
        roots = self._roots()
        tenants = {
            root: tenant for tenant, tree in self._trees.items() for root in tree.roots.values()
        }
        dropped: list[int] = []
        for node in nodes:
            tenant = tenants[roots[node]]
            tree = self._trees[tenant]
            self._remove(tree, node, dropped)
            if not tree.pages:
                del self._trees[tenant]
        self._release(dropped)
        self.restore_heaps()

    def restore_heaps(self) -> None:
        roots = self._roots()
        trees = {root: tree for tree in self._trees.values() for root in tree.roots.values()}
        for tree in self._trees.values():
            tree.heap = []
        for node, root in roots.items():
            node.in_heap = False
            if not node.children:
                self._push(trees[root], node)

    def forget_tenant(self, tenant: str) -> int:
        """Evict all pages that a tenant's programs have offered; return how many."""
        tree = self._trees.pop(tenant, None)
        dropped: list[int] = []
        while tree is not None and tree.pages:
            self._shrink(tree, tree.pages, tree.pages, dropped, _EACH)
        self._release(dropped)
        return len(dropped)

    def forget_adapter(self, tenant: str, adapter: str) -> None:
        """Evict all pages that a tenant's programs have computed with an adapter."""
        tree = self._trees.get(tenant)
        root = tree.roots.get(adapter) if tree is not None else None
        if tree is None or root is None:
            return
        below = [node for node, above in self._roots().items() if above is root]
        self._remove_all(below[::-1])  # children were added after their parents
        del tree.roots[adapter]

    def statistics(self) -> dict[str, int]:
        """Return the pages cached now, those that only the cache holds, and counters."""
        return {
            "pages": len(self._index),
            "idle_pages": self._account.pages,
            "queries": self._queries,
            "query_tokens": self._query_tokens,
            "hits": self._hits,
            "hit_tokens": self._hit_tokens,
            "offered_pages": self._offered,
            "evicted_pages": self._evicted,
            "shared_tokens": self._shared_tokens,
        }

    def branches(self, tenant: str, looks: int) -> tuple[int, list[Node]]:
        """Return a tenant's number of pages, and its leaves, those used last first.

        At most `looks` leaves of the heap are looked at.
        """
        tree = self._trees.get(tenant)
        if tree is None:
            return 0, []
        leaves = [node for _, _, node in tree.heap[-looks:] if not node.children]
        leaves.sort(key=lambda node: node.used, reverse=True)
        return tree.pages, leaves

    # -- The trees ------------------------------------------------------------------------------
    def _number(self) -> bytes:
        self._numbers += 1
        return self._numbers.to_bytes(_NUMBER_BYTES, "big")

    def _walk(
        self, node: Node, tokens: bytes, pages_max: int, first: int = 0
    ) -> tuple[Node, list[int]]:
        """Return the last node of the longest cached prefix, and the pages on the way.

        The walk begins below `node`: a root, or what has the page before `first`.
        """
        get = self._index.get
        found: list[int] = []
        for start in range(first * _PAGE_BYTES, pages_max * _PAGE_BYTES, _PAGE_BYTES):
            child = get(node.number + tokens[start : start + _PAGE_BYTES])
            if child is None:
                break
            node = child
            found.append(node.page)
        return node, found

    def _add(self, tree: _Tree, parent: Node, tokens: bytes, page: int) -> Node:
        key = parent.number + tokens
        node = self._index[key] = Node(self._number(), key, page, parent)
        parent.children += 1
        tree.pages += 1
        self.added += 1
        node.used = self._uses
        return node

    def _use(self, tenant: str, tree: _Tree, node: Node) -> None:
        """Note a use of the prefix up to `node`; parents cannot be evicted before it."""
        node.used = self._uses
        tree.used_s = self._now()
        self._trees.move_to_end(tenant)

    def _push(self, tree: _Tree, node: Node) -> None:
        if not node.in_heap and node.page != _GONE:
            node.in_heap = True
            heapq.heappush(tree.heap, (node.used, node.number, node))

    def _remove(self, tree: _Tree, node: Node, dropped: list[int]) -> None:
        assert not node.children
        assert node.parent is not None
        del self._index[node.key]
        dropped.append(node.page)
        tree.pages -= 1
        self.removed += 1
        node.page = _GONE
        parent = node.parent
        parent.children -= 1
        parent.hits += node.hits
        parent.used = max(parent.used, node.used)  # a use of a child is a use of its parent
        if not parent.children:
            self._push(tree, parent)

    # -- Eviction -------------------------------------------------------------------------------
    def _evict(self, wanted: int, counts: int) -> Int32:
        """Evict pages until `wanted` of them count (`counts`); return all evicted."""
        dropped: list[int] = []
        while wanted > 0 and self._trees:
            tenant, tree, most = self._victim()
            wanted -= self._shrink(tree, wanted, most, dropped, counts)
            if not tree.pages:
                del self._trees[tenant]
        self._evicted += len(dropped)
        return self._release(dropped)

    def _victim(self) -> tuple[str, _Tree, int]:
        """Return the tenant and tree to evict from, and at most how many pages."""
        tenant, tree = next(iter(self._trees.items()))
        away = self._now() - tree.used_s > PREFIX_CACHE_IDLE_SECONDS
        if away or len(self._trees) == 1:
            return tenant, tree, tree.pages
        tenant, tree = max(self._trees.items(), key=lambda item: item[1].pages)
        # Down to the mean: then another tenant may have most.
        return tenant, tree, max(1, tree.pages - len(self._index) // len(self._trees))

    def _shrink(self, tree: _Tree, wanted: int, most: int, dropped: list[int], counts: int) -> int:
        """Evict at most `most` leaves of one tree; return how many count towards `wanted`."""
        heap, references, counted = tree.heap, self._pool.references, 0
        frame = self._pool.frame
        while heap and most and counted < wanted:
            used, number, node = heap[0]
            if node.children:
                heapq.heappop(heap)
                node.in_heap = False
            elif node.used != used:
                heapq.heapreplace(heap, (node.used, number, node))
            else:
                heapq.heappop(heap)
                alone = counts == _EACH or bool(references[node.page] == 1)
                counted += alone and (counts != _FREED_FRAMES or bool(frame[node.page] >= 0))
                most -= 1
                self._remove(tree, node, dropped)
        return counted

    def _release(self, dropped: list[int]) -> Int32:
        pages = np.array(dropped, np.int32)
        np.subtract.at(self.references, pages, np.int32(1))
        self._quotas.refund(self._pool.release(pages))
        return pages

    # -- Audit ----------------------------------------------------------------------------------
    def _roots(self) -> dict[Node, Node]:
        """Return the root above each node, in the order in which nodes were added."""
        roots: dict[Node, Node] = {}
        for node in self._index.values():
            assert node.parent is not None
            roots[node] = roots.get(node.parent, node.parent)
        return roots

    def check_integrity(self) -> None:
        """Compare counts with the trees; `KVFS` compares them with the pool."""
        nodes = list(self._index.values())
        held: Int64 = np.bincount([node.page for node in nodes], minlength=self._pool.pages)
        if not np.array_equal(held, self.references):
            raise KernelBug("the prefix cache miscounts its references")
        if len(nodes) > self.pages_max:
            raise KernelBug(f"{len(nodes)} pages are cached, at most {self.pages_max} may be")
        idle = np.flatnonzero((held > 0) & (self._pool.references == held)).astype(np.int32)
        if len(self.charged_here(idle)) != len(idle) or self._account.pages != len(idle):
            raise KernelBug(
                f"the prefix cache pays for {self._account.pages} pages and alone holds {len(idle)}"
            )
        children = Counter(node.parent for node in nodes)
        if any(node.children != children[node] for node in nodes):
            raise KernelBug("a cached page miscounts its children")
        sizes = Counter(self._roots().values())
        for tree in self._trees.values():
            if tree.pages != sum(sizes.pop(root, 0) for root in tree.roots.values()):
                raise KernelBug("a tenant's cached pages are miscounted")
        if sizes:
            raise KernelBug("a tenant's cached pages are miscounted")
        heaps = [entry[2] for tree in self._trees.values() for entry in tree.heap]
        waiting = set(heaps)
        if len(waiting) != len(heaps) or any(node.page == _GONE for node in heaps):
            raise KernelBug("a heap of the prefix cache has a duplicate or an evicted page")
        if any(not node.children and node not in waiting for node in nodes):
            raise KernelBug("a leaf of the prefix cache is not in its heap")
