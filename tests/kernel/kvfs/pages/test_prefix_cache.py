# ruff: noqa: PT017 - a rule learns from the error which of two outcomes to check
"""The prefix cache against a plain model of it, and its edges."""

import tracemalloc
from collections import Counter, OrderedDict
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.filesystem import KVFS
from symphony_kernel.kvfs.pages.prefix_cache import FREED_PAGES_MIN
from symphony_kernel.kvfs.tenants import TenantLimits
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import PAGE_TOKENS, PREFIX_CACHE_IDLE_SECONDS

from tests.support.kernel.page_device import ManualTime, extend, make_account
from tests.support.refusals import refused

POOL_PAGES, CACHE_PAGES = 40, 12
TENANTS = st.sampled_from(("a", "b", "c"))
# A page is one token many times, a text a few of them: so texts often begin alike.
TEXTS = st.lists(st.integers(0, 2), max_size=6).map(tuple)
CHOICES = st.integers(0, 1000)

Text = tuple[int, ...]


def spelled(text: Text, more: int = 0) -> list[int]:
    return [letter for letter in text for _ in range(PAGE_TOKENS)] + [7] * more


@dataclass
class ModelTree:
    """A tenant's cached prefixes, each with its last use."""

    used: dict[Text, int] = field(default_factory=dict)
    used_s: float = 0.0

    def leaves(self) -> list[Text]:
        inner = {text[:-1] for text in self.used}
        return [text for text in self.used if text not in inner]

    def evict(self) -> Text:
        leaf = min(self.leaves(), key=lambda text: self.used[text])
        if len(leaf) > 1:
            self.used[leaf[:-1]] = max(self.used[leaf[:-1]], self.used[leaf])
        del self.used[leaf]
        return leaf


def marked(text: Text, adapter: str) -> Text:
    """Return a text of pages that an adapter has computed: no other begins like it."""
    return (text[0] + 100, *text[1:]) if adapter and text else text


class PrefixCacheMachine(RuleBasedStateMachine):
    """Prefixes that are found, that are evicted, and their charges."""

    @initialize()
    def start(self) -> None:
        self.time = ManualTime()
        self.kvfs = KVFS(
            POOL_PAGES,
            self.time,
            TenantLimits(POOL_PAGES),
            prefix_cache_share=CACHE_PAGES / POOL_PAGES,
        )
        self.accounts = {tenant: make_account(self.kvfs, tenant) for tenant in "abc"}
        self.files: list[KVFile] = []
        self.trees: OrderedDict[str, ModelTree] = OrderedDict()
        self.clock = 0

    # -- The model -------------------------------------------------------------------------------
    def use(self, tenant: str, text: Text) -> None:
        tree = self.trees[tenant]
        tree.used[text] = self.clock
        tree.used_s = self.time()
        self.trees.move_to_end(tenant)

    def pages(self) -> int:
        return sum(len(tree.used) for tree in self.trees.values())

    def shrink(self, excess: int) -> None:
        """Drop so many, as the module's page says."""
        while excess > 0:
            tenant, tree = next(iter(self.trees.items()))
            idle = self.time() - tree.used_s > PREFIX_CACHE_IDLE_SECONDS
            if not idle:
                tenant, tree = max(self.trees.items(), key=lambda item: len(item[1].used))
            alone = idle or len(self.trees) == 1
            share = 0 if alone else self.pages() // len(self.trees)
            for _ in range(min(excess, max(1, len(tree.used) - share))):
                tree.evict()
                excess -= 1
            if not tree.used:
                del self.trees[tenant]

    # -- Rules -----------------------------------------------------------------------------------
    @rule(tenant=TENANTS)
    def forget_tenant(self, tenant: str) -> None:
        tree = self.trees.pop(tenant, ModelTree())
        assert self.kvfs.prefix_cache.forget_tenant(tenant) == len(tree.used)

    @rule(
        tenant=TENANTS, text=TEXTS, more=st.integers(0, 3), keep=st.booleans(),
        adapter=st.sampled_from(("", "", "x")),
    )  # fmt: skip
    def offer(self, tenant: str, text: Text, more: int, keep: bool, adapter: str) -> None:
        file = self.kvfs.create(tenant, self.accounts[tenant])
        file.use_adapter(adapter)
        tokens = spelled(text, more)
        text = marked(text, adapter)
        if tokens:
            needed, free = file.pages_needed(len(tokens)), self.kvfs.pool.free
            if needed > free:  # what is given up for it is the other test's subject
                self.kvfs.release(file)
                return
            extend(file, *tokens)
        taken = self.kvfs.offer(file)
        if text:
            self.clock += 1
            tree = self.trees.setdefault(tenant, ModelTree())
            for end in range(1, len(text) + 1):
                tree.used.setdefault(text[:end], self.clock)
            self.use(tenant, text)
            self.shrink(self.pages() - CACHE_PAGES)
        left = self.trees[tenant].used if tenant in self.trees else {}
        assert taken == PAGE_TOKENS * sum(text[: end + 1] in left for end in range(len(text)))
        if keep:
            self.files.append(file)
        else:
            self.kvfs.release(file)

    @rule(tenant=TENANTS, text=TEXTS, more=st.integers(0, 2))
    def match(self, tenant: str, text: Text, more: int) -> None:
        tokens = spelled(text, more)
        if not tokens:
            return
        wanted = text if more else text[:-1]
        tree = self.trees.get(tenant, ModelTree())
        known = [end for end in range(1, len(wanted) + 1) if wanted[:end] in tree.used]
        try:
            file = self.kvfs.match(tenant, np.array(tokens, np.uint32), self.accounts[tenant])
        except SyscallError as error:
            assert error.errno is Errno.ENOENT
            assert not known
            return
        assert file.tokens.tolist() == spelled(wanted[: len(known)])
        assert file.positions.tolist() == list(range(file.length))
        self.clock += 1
        self.use(tenant, wanted[: len(known)])
        self.files.append(file)

    @precondition(lambda self: self.files)
    @rule(choice=CHOICES)
    def close(self, choice: int) -> None:
        self.kvfs.release(self.files.pop(choice % len(self.files)))

    @precondition(lambda self: self.files)
    @rule(choice=CHOICES, length=st.integers(0, 90), n=st.integers(1, 20))
    def cut_and_go_on(self, choice: int, length: int, n: int) -> None:
        """Offered pages stay as they were when their file changes."""
        file = self.files[choice % len(self.files)]
        file.truncate(min(length, file.length))
        if file.pages_needed(n) <= self.kvfs.pool.free:
            extend(file, *[9] * n)

    @precondition(lambda self: self.files)
    @rule(choice=CHOICES)
    def fork(self, choice: int) -> None:
        source = self.files[choice % len(self.files)]
        self.files.append(self.kvfs.fork(source, self.accounts[source.tenant]))

    @rule(seconds=st.sampled_from((1.0, PREFIX_CACHE_IDLE_SECONDS / 2)))
    def wait(self, seconds: float) -> None:
        self.time.seconds += seconds

    @rule(share=st.floats(0, 1))
    def want_pages(self, share: float) -> None:
        """Under pressure the least used go, and all that they hold alone comes free."""
        cache, pool = self.kvfs.prefix_cache, self.kvfs.pool
        idle = cache.idle_pages
        wanted = int(share * (pool.free + idle))
        before, pages = pool.free, cache.statistics()["pages"]
        file = self.kvfs.create("a", self.accounts["a"])
        file.reserve(wanted * PAGE_TOKENS)
        self.kvfs.release(file)
        gone = pages - cache.statistics()["pages"]
        assert (gone > 0) == (wanted > before)
        if wanted <= before:
            assert pool.free == before
        else:
            assert pool.free == max(wanted, before + min(idle, FREED_PAGES_MIN))
        self.shrink(gone)

    # -- What must always hold -------------------------------------------------------------------
    @invariant()
    def exactly_the_model_s_prefixes_are_there(self) -> None:
        cache = self.kvfs.prefix_cache
        found = {}
        names = {
            root: (tenant, adapter)
            for tenant, tree in cache._trees.items()
            for adapter, root in tree.roots.items()
        }
        for node, root in cache._roots().items():
            text: Text = ()
            at = node
            while at.parent is not None:
                text = (int.from_bytes(at.key[8:12], "little"), *text)
                at = at.parent
            tenant, adapter = names[root]
            found[tenant, marked(text, adapter)] = node.used
        modelled = {(t, text): u for t, tree in self.trees.items() for text, u in tree.used.items()}
        assert found == modelled
        assert list(cache._trees) == list(self.trees)

    @invariant()
    def everything_adds_up(self) -> None:
        self.kvfs.check_integrity(Counter(self.files))
        held = {page for file in self.files for page in file.pages.tolist()}
        charged = sum(account.pages for account in self.accounts.values())
        assert charged == len(held)

    def teardown(self) -> None:
        if hasattr(self, "kvfs"):
            self.kvfs.release(*self.files)
            self.kvfs.check_integrity({})
            assert all(account.pages == 0 for account in self.accounts.values())
            idle = self.kvfs.prefix_cache.idle_pages
            assert self.kvfs.pool.free + idle == POOL_PAGES


TestPrefixCache = PrefixCacheMachine.TestCase
TestPrefixCache.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)


# --- Edges ---------------------------------------------------------------------------------------


def offered(kvfs: KVFS, tenant: str, *tokens: int) -> int:
    """Compute, offer and let go of a text; return the entries taken."""
    file = kvfs.create(tenant, kvfs.tenant(tenant).account)
    extend(file, *tokens)
    taken = kvfs.offer(file)
    kvfs.release(file)
    return taken


def test_cache_without_room_keeps_nothing() -> None:
    kvfs = KVFS(40, ManualTime(), prefix_cache_share=0.0)
    assert offered(kvfs, "t", *range(64)) == 0
    assert kvfs.pool.free == 40
    kvfs.check_integrity({})


def test_text_longer_than_the_budget_is_kept_in_part() -> None:
    kvfs = KVFS(40, ManualTime(), prefix_cache_share=0.1)
    assert offered(kvfs, "t", *range(160)) == 64
    assert kvfs.prefix_cache.statistics()["pages"] == 4
    kvfs.check_integrity({})


def test_match_is_charged_and_refused_past_the_quota() -> None:
    kvfs = KVFS(40, ManualTime())
    offered(kvfs, "t", *range(64))
    poor = make_account(kvfs, "t", pages=3)
    files = kvfs.tenant("t").files
    assert refused(kvfs.match, "t", np.arange(65, dtype=np.uint32), poor) is Errno.EDQUOT
    assert (poor.pages, kvfs.tenant("t").files) == (0, files)
    file = kvfs.match("t", np.arange(49, dtype=np.uint32), poor)
    assert poor.pages == 3
    kvfs.check_integrity({file: 1})
    kvfs.release(file)
    assert poor.pages == 0
    kvfs.check_integrity({})


def test_small_tenant_keeps_its_share_of_the_cache() -> None:
    kvfs = KVFS(80, ManualTime(), prefix_cache_share=0.5)
    for start in range(5):
        offered(kvfs, "small", *[start + 1] * 32)
    for start in range(200):
        offered(kvfs, "large", *[start] * 64)
    account = kvfs.tenant("small").account
    for start in range(5):
        tokens = np.array([start + 1] * 33, np.uint32)
        assert kvfs.match("small", tokens, account).length == 32
    assert kvfs.prefix_cache.statistics()["pages"] == 40


def test_idle_tenants_prefixes_are_evicted() -> None:
    time = ManualTime()
    kvfs = KVFS(80, time, prefix_cache_share=0.5)
    offered(kvfs, "away", *range(160))
    time.seconds += PREFIX_CACHE_IDLE_SECONDS + 1
    for start in range(10):
        offered(kvfs, "here", *[start] * 64)
    account = kvfs.tenant("away").account
    with pytest.raises(SyscallError):
        kvfs.match("away", np.arange(161, dtype=np.uint32), account)
    assert kvfs.prefix_cache.statistics()["pages"] == 40


def test_lost_page_is_dropped_with_all_behind_it() -> None:
    kvfs = KVFS(40, ManualTime())
    account = kvfs.tenant("t").account
    file = kvfs.create("t", account)
    extend(file, *range(64))
    kvfs.offer(file)
    lost = file.pages[1:2].astype(np.int64) * PAGE_TOKENS
    kvfs.transfers.copy(lost, lost)
    (batch,) = kvfs.take_transfers()
    kvfs.fail_transfers(batch)
    assert file.error is Errno.EIO
    assert kvfs.match("t", np.arange(65, dtype=np.uint32), account).length == PAGE_TOKENS
    assert kvfs.prefix_cache.statistics()["pages"] == 1
    kvfs.prefix_cache.check_integrity()


def test_index_is_as_large_as_what_is_cached() -> None:
    """Thousands of tenants that offered once leave nothing once others have taken their place."""
    kvfs = KVFS(64, ManualTime())
    account = kvfs.quotas.open("all", None, 1 << 30, 1 << 30)

    def offers(first: int, last: int) -> int:
        for number in range(first, last):
            file = kvfs.create("t", account)
            extend(file, *[number % 50_000] * 32, *[number // 50_000] * 16)
            kvfs.prefix_cache.offer(f"tenant {number}", file.page_tokens(3), file.pages)
            kvfs.release(file)
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = offers(0, 500)
        grown = offers(500, 5_000) - before
    finally:
        tracemalloc.stop()
    assert grown < 20_000, f"{grown} bytes more after 4,500 further tenants"
    cache = kvfs.prefix_cache
    assert len(cache._index) == cache.statistics()["pages"] <= 32
    assert len(cache._trees) <= 32
    assert sum(len(tree.heap) for tree in cache._trees.values()) <= 2 * 32


def test_index_does_not_grow_with_use() -> None:
    kvfs = KVFS(64, ManualTime())
    account = kvfs.tenant("t").account
    kept = kvfs.create("t", account)
    extend(kept, *range(160))
    for length in (160, 32, 96) * 300:
        file = kvfs.fork(kept, account)
        file.truncate(length)
        kvfs.offer(file)
        kvfs.release(file, kvfs.match("t", np.arange(length, dtype=np.uint32), account))
    (tree,) = kvfs.prefix_cache._trees.values()
    assert len(tree.heap) <= len(kvfs.prefix_cache._index) == 10
