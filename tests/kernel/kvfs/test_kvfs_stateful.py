# ruff: noqa: PT017 - a rule learns from the error which of two outcomes to check
"""KVFS against lists: random operations, steps and cancels leave the same content.

Freed pages are overwritten with junk as soon as no step that was promised them can read them.
"""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from symphony_kernel.executor.base import Batch, Int64
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.pages.prefix_cache import FREED_PAGES_MIN
from symphony_kernel.kvfs.tiers.page_transfers import group_copies
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import PAGE_TOKENS

from tests.support.kernel.file_machine import (
    BOUNDS,
    CHOICES,
    SIZES,
    Entry,
    FileMachine,
    Modelled,
    Step,
)
from tests.support.kernel.page_device import make_account
from tests.support.kernel.tier_device import Store, make_tiered

POOL_PAGES = 20
ACCOUNT_PAGES = 12
PATHS = ("a", "b/c")
TENANTS = st.sampled_from(("t", "other"))


class KVFSMachine(FileMachine):
    @initialize()
    def start(self) -> None:
        kvfs, store = make_tiered(POOL_PAGES, 0, pages_a_frame=1)
        self.set_up(
            kvfs,
            store,
            ("t", make_account(kvfs, "t", ACCOUNT_PAGES)),
            ("t", make_account(kvfs, "t")),
            ("other", make_account(kvfs, "other")),
        )
        self.names: dict[tuple[str, str], list[Entry]] = {}
        # Tenant and tokens up to the end of a page -> what that page held when it was offered.
        self.offered: dict[tuple[str, tuple[int, ...]], list[list[Entry]]] = {}
        self.latest: Modelled | None = None  # that entries were appended to
        for which, length in enumerate((21, 40, 5)):
            self.launch_rows([(self.new(which), length)])
            self.complete(keep=True)

    # -- Files -----------------------------------------------------------------------------------
    @precondition(lambda self: len(self.files) < self.files_max)
    @rule(which=st.integers(0, 2))
    def create(self, which: int) -> None:
        self.new(which)

    @precondition(lambda self: len(self.files) < self.files_max)
    @rule(choice=CHOICES, ranges=st.lists(st.tuples(BOUNDS, BOUNDS), max_size=3))
    def extract(self, choice: int, ranges: list[tuple[int, int]]) -> None:
        source = self.idle(choice)
        tenant, length = source.file.tenant, source.file.length
        chosen = [i for pair in ranges for i in range(min(pair), min(max(pair), length))]
        new = Modelled(self.kvfs.create(tenant, self.account(choice, tenant)))
        self.files.append(new)
        self.append_entries(new, source, np.array(chosen, np.int64))

    def append_entries(self, target: Modelled, source: Modelled, chosen: Int64) -> bool:
        appended = super().append_entries(target, source, chosen)
        if appended:
            self.latest = target
        return appended

    @rule(choice=CHOICES, n=BOUNDS)
    def append_what_was_appended(self, choice: int, n: int) -> None:
        """Append entries whose own copies have not been made yet."""
        if self.latest is not None and self.latest in self.files and not self.latest.busy:
            target = self.peer(choice, self.latest)
            length = self.latest.file.length
            if target.file.length <= 4 * PAGE_TOKENS:
                self.append_entries(target, self.latest, np.arange(max(0, length - n), length))

    # -- Names -----------------------------------------------------------------------------------
    @rule(choice=CHOICES, path=st.sampled_from(PATHS), replace=st.booleans())
    def save(self, choice: int, path: str, replace: bool) -> None:
        chosen = self.idle(choice)
        name = (chosen.file.tenant, path)
        try:
            self.kvfs.save(chosen.file, path, replace)
        except SyscallError as error:
            assert error.errno is Errno.EEXIST
            assert name in self.names
            assert not replace
        else:
            assert replace or name not in self.names
            self.names[name] = list(chosen.entries)

    @precondition(lambda self: len(self.files) < self.files_max)
    @rule(choice=CHOICES, path=st.sampled_from(PATHS), tenant=TENANTS)
    def open(self, choice: int, path: str, tenant: str) -> None:
        try:
            file = self.kvfs.open(tenant, path, self.account(choice, tenant))
        except SyscallError as error:
            assert error.errno is Errno.ENOENT
            assert (tenant, path) not in self.names
        else:
            self.files.append(Modelled(file, list(self.names[tenant, path])))

    @rule(path=st.sampled_from(PATHS), tenant=TENANTS)
    def remove(self, path: str, tenant: str) -> None:
        try:
            self.kvfs.remove(tenant, path)
        except SyscallError as error:
            assert error.errno is Errno.ENOENT
            assert (tenant, path) not in self.names
        else:
            del self.names[tenant, path]

    # -- Prefixes --------------------------------------------------------------------------------
    @rule(choice=CHOICES)
    def offer(self, choice: int) -> None:
        chosen = self.idle(choice)
        try:
            taken = self.kvfs.offer(chosen.file)
        except SyscallError as error:
            assert error.errno is Errno.EINVAL
            assert chosen.file.plain < chosen.file.length
            return
        assert [position for _, position, _ in chosen.entries] == list(range(chosen.file.length))
        assert taken <= chosen.file.length
        for end in range(PAGE_TOKENS, taken + 1, PAGE_TOKENS):
            tokens = tuple(token for token, _, _ in chosen.entries[:end])
            pages = self.offered.setdefault((chosen.file.tenant, tokens), [])
            pages.append(chosen.entries[end - PAGE_TOKENS : end])

    @rule(choice=CHOICES, which=st.integers(0, 2))
    def offer_and_match(self, choice: int, which: int) -> None:
        self.offer(choice)
        self.match(choice, 60, which)

    @precondition(lambda self: len(self.files) < self.files_max and self.offered)
    @rule(choice=CHOICES, n=BOUNDS, which=st.integers(0, 2))
    def match(self, choice: int, n: int, which: int) -> None:
        """Tokens that were offered and one more, for a tenant that may not be theirs."""
        if len(self.files) == self.files_max or not self.offered:
            return
        tokens = sorted(self.offered)[choice % len(self.offered)][1][:n]
        tenant, account = self.accounts[which]
        free = self.kvfs.pool.free
        try:
            file = self.kvfs.match(tenant, np.array([*tokens, 98], np.uint32), account)
        except SyscallError as error:
            if error.errno is Errno.ENOENT:
                return
            assert (error.errno, which) == (Errno.EDQUOT, 0)
            return
        assert self.kvfs.pool.free == free
        assert file.length == file.plain == len(file.pages) * PAGE_TOKENS <= len(tokens)
        modelled = Modelled(file)
        ahead = self.ahead()
        for start in range(0, file.length, PAGE_TOKENS):
            end = start + PAGE_TOKENS
            values = ahead.values[file.slots(np.arange(start, end))].tolist()
            known = self.offered[tenant, tokens[:end]]
            (found,) = [page for page in known if [value for _, _, value in page] == values][:1]
            modelled.entries += found
        self.files.append(modelled)

    # -- Steps -----------------------------------------------------------------------------------
    @precondition(lambda self: len(self.steps) < 2)
    @rule(rows=st.lists(st.tuples(CHOICES, SIZES), max_size=3))
    def launch(self, rows: list[tuple[int, int]]) -> None:
        wanted = {self.idle(choice): n for choice, n in rows}
        self.launch_rows([(m, n) for m, n in wanted.items() if self.reserve(m, n)])

    @rule(rows=st.lists(st.tuples(CHOICES, SIZES), min_size=1, max_size=3))
    def compute(self, rows: list[tuple[int, int]]) -> None:
        """A step that runs to its end, after those under way."""
        while self.steps:
            self.complete(keep=True)
        self.launch(rows)
        self.complete(keep=True)

    def launch_rows(self, rows: list[tuple[Modelled, int]]) -> None:
        for modelled, n in rows:
            modelled.file.reserve(n)
        # The kernel takes the transfers once all rows have their room.
        batches = self.kvfs.take_transfers()
        self.steps.append(Step(batches, [self.row(modelled, n) for modelled, n in rows]))

    def reserve(self, modelled: Modelled, n: int) -> bool:
        state, needed = self.snapshot(modelled), modelled.file.pages_needed(n)
        free, idle = self.kvfs.pool.free, self.kvfs.prefix_cache.idle_pages
        try:
            modelled.file.reserve(n)
        except SyscallError as error:
            assert self.snapshot(modelled) == state
            assert error.errno is Errno.EDQUOT or needed > free + idle
            return False
        more = self.kvfs.pool.free - max(free - needed, 0)
        # A last page that the cache gave up, too, is free when it has been replaced.
        assert more == 0 if needed <= free else 0 <= more <= FREED_PAGES_MIN
        assert modelled.file.pages_needed(n) == 0
        return True

    @precondition(lambda self: any(step.rows for step in self.steps))
    @rule(choice=CHOICES)
    def cancel(self, choice: int) -> None:
        """The file is free at once, while the step still writes where it had room."""
        rows = [row for step in self.steps for row in step.rows if not row.cancelled]
        if rows:
            row = rows[choice % len(rows)]
            assert row.modelled is not None
            row.cancelled = True
            row.modelled.file.unreserve()
            row.modelled.busy = False

    # -- What must always hold -------------------------------------------------------------------
    def snapshot(self, modelled: Modelled) -> tuple[int, ...]:
        copied = self.kvfs.transfers.copied_slots
        return *super().snapshot(modelled), self.kvfs.pool.free, copied

    def ahead(self) -> Store:
        """Return the device as it will be once all that is under way has been computed."""
        ahead = Store(POOL_PAGES, 0)
        ahead.values = self.store.values.copy()
        for step in self.steps:
            for batch in step.batches:
                ahead.do(batch)
            for row in step.rows:
                row.run(ahead)
        ahead.do(Batch([], group_copies(self.kvfs.transfers.copies)))
        return ahead

    @invariant()
    def content_is_what_was_written(self) -> None:
        ahead = self.ahead()
        for modelled in self.files:
            self.compare(ahead, modelled.file, modelled.entries)
        for (tenant, path), entries in self.names.items():
            self.compare(ahead, self.kvfs.named(tenant, path), entries)

    def compare(self, store: Store, file: KVFile, entries: list[Entry]) -> None:
        self.compare_tokens(file, entries)
        values = store.values[file.slots(np.arange(file.length))]
        assert values.tolist() == [value for _, _, value in entries]

    @invariant()
    def quota_holds(self) -> None:
        assert self.accounts[0][1].pages <= ACCOUNT_PAGES

    def teardown(self) -> None:
        if not hasattr(self, "kvfs"):
            return
        for modelled in self.files:
            self.kvfs.release(modelled.file)
        for tenant, path in self.names:
            self.kvfs.remove(tenant, path)
        self.kvfs.check_integrity({})
        self.kvfs.prefix_cache.make_free(self.kvfs.prefix_cache.idle_pages)
        self.kvfs.check_integrity({})
        assert self.kvfs.pool.free == POOL_PAGES


TestKVFS = KVFSMachine.TestCase
TestKVFS.settings = settings(max_examples=50, stateful_step_count=50, deadline=None)
