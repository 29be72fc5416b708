# ruff: noqa: PT017 - a rule learns from the error which of two outcomes to check
"""KVFS against lists: any course of operations, steps and cancels leaves the same content.

Every computed entry has a value of its own, written into the slot that the file's block table names
when the step runs, and moved only by the copies that KVFS asks for. Pages that come back are
overwritten with junk as soon as no step that was promised them can read them. So a file that sees
another's value, or junk, or its own value at a wrong place, is caught by comparing values.
"""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from symphony_kernel.executor.base import Int32, Int64
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.filesystem import KVFS
from symphony_kernel.kvfs.pages.prefix_cache import FREED_PAGES_MIN
from symphony_kernel.kvfs.quotas import TenantUsage
from symphony_kernel.kvfs.tenants import TenantLimits
from symphony_kernel.kvfs.tiers.page_transfers import group_copies
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import PAGE_TOKENS

from tests.support.kernel.page_device import (
    DeviceRow,
    DeviceStep,
    SlotStore,
    make_account,
    slots_of_pages,
    take_copies,
)

POOL_PAGES = 20
ACCOUNT_PAGES = 12
FILES_MAX = 12
PATHS = ("a", "b/c")

CHOICES = st.integers(0, 1000)
TENANTS = st.sampled_from(("t", "other"))
SIZES = st.sampled_from((1, 1, 3, 16, 20))
BOUNDS = st.one_of(st.integers(0, 60), st.sampled_from((0, 16, 32)))

Entry = tuple[int, int, int]  # token, position, value


@dataclass(eq=False)
class Modelled:
    """A file beside the list that it must equal."""

    file: KVFile
    entries: list[Entry] = field(default_factory=list)
    busy: bool = False


@dataclass
class Pending:
    """One row of a step that has not completed."""

    modelled: Modelled
    entries: list[Entry]
    cancelled: bool = False


class KVFSMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.freed: set[int] = set()
        self.kvfs = KVFS(
            POOL_PAGES,
            lambda: 0.0,
            TenantLimits(POOL_PAGES),
            on_freed=lambda frames: self.freed.update(frames.tolist()),
        )
        self.accounts = [
            make_account(self.kvfs, "t", ACCOUNT_PAGES),
            make_account(self.kvfs, "t"),
            make_account(self.kvfs, "other"),
        ]
        self.tenants = ["t", "t", "other"]
        self.store = SlotStore(POOL_PAGES)
        self.files: list[Modelled] = []
        self.names: dict[tuple[str, str], list[Entry]] = {}
        # Tenant and tokens up to the end of a page -> what that page held when it was offered.
        self.offered: dict[tuple[str, tuple[int, ...]], list[list[Entry]]] = {}
        self.steps: list[tuple[DeviceStep, list[Pending]]] = []
        self.values = 0
        self.latest: Modelled | None = None
        for which, length in enumerate((21, 40, 5)):
            file = self.kvfs.create(self.tenants[which], self.accounts[which])
            self.files.append(Modelled(file))
            self.launch_rows([(self.files[-1], length)])
            self.complete(keep=True)

    # -- Choosing --------------------------------------------------------------------------------
    def idle(self, choice: int) -> Modelled:
        files = [m for m in self.files if not m.busy]
        if not files:
            self.files.append(Modelled(self.kvfs.create("t", self.accounts[1])))
            return self.files[-1]
        return files[choice % len(files)]

    def peer(self, choice: int, of: Modelled) -> Modelled:
        """An idle file of the same tenant: itself, maybe."""
        files = [m for m in self.files if not m.busy and m.file.tenant == of.file.tenant]
        return files[choice % len(files)]

    def account(self, choice: int, tenant: str) -> TenantUsage:
        mine = [a for a, t in zip(self.accounts, self.tenants, strict=True) if t == tenant]
        return mine[choice % len(mine)]

    # -- Files -----------------------------------------------------------------------------------
    @precondition(lambda self: len(self.files) < FILES_MAX)
    @rule(which=st.integers(0, 2))
    def create(self, which: int) -> None:
        file = self.kvfs.create(self.tenants[which], self.accounts[which])
        self.files.append(Modelled(file))

    @precondition(lambda self: len(self.files) < FILES_MAX)
    @rule(choice=CHOICES)
    def fork(self, choice: int) -> None:
        source = self.idle(choice)
        before = self.kvfs.pool.free
        file = self.kvfs.fork(source.file, self.account(choice, source.file.tenant))
        assert self.kvfs.pool.free == before
        self.files.append(Modelled(file, list(source.entries)))

    @precondition(lambda self: len(self.files) < FILES_MAX)
    @rule(choice=CHOICES, ranges=st.lists(st.tuples(BOUNDS, BOUNDS), max_size=3))
    def extract(self, choice: int, ranges: list[tuple[int, int]]) -> None:
        source = self.idle(choice)
        tenant, length = source.file.tenant, source.file.length
        chosen = [i for pair in ranges for i in range(min(pair), min(max(pair), length))]
        new = Modelled(self.kvfs.create(tenant, self.account(choice, tenant)))
        self.files.append(new)
        self.append_entries(new, source, chosen)

    @rule(choice=CHOICES, start=BOUNDS, n=BOUNDS)
    def append(self, choice: int, start: int, n: int) -> None:
        target = self.idle(choice)
        source = self.peer(choice // 7, target)
        chosen = range(min(start, source.file.length), min(start + n, source.file.length))
        if target.file.length + len(chosen) <= 6 * PAGE_TOKENS:
            self.append_entries(target, source, list(chosen))

    def append_entries(self, target: Modelled, source: Modelled, chosen: list[int]) -> None:
        added = [source.entries[i] for i in chosen]
        state = self.snapshot(target)
        try:
            target.file.append(source.file, np.array(chosen, np.int64))
        except SyscallError as error:
            assert error.errno in (Errno.ENOMEM, Errno.EDQUOT)
            assert self.snapshot(target) == state
        else:
            target.entries += added
            self.latest = target

    @rule(choice=CHOICES, n=BOUNDS)
    def append_what_was_appended(self, choice: int, n: int) -> None:
        """Copies of what has not been copied yet."""
        if self.latest is not None and self.latest in self.files and not self.latest.busy:
            target = self.peer(choice, self.latest)
            length = self.latest.file.length
            if target.file.length <= 4 * PAGE_TOKENS:
                self.append_entries(target, self.latest, list(range(max(0, length - n), length)))

    @rule(choice=CHOICES, length=BOUNDS)
    def truncate(self, choice: int, length: int) -> None:
        chosen = self.idle(choice)
        length = min(length, chosen.file.length)
        chosen.file.truncate(length)
        del chosen.entries[length:]

    @precondition(lambda self: len(self.files) > FILES_MAX // 2)
    @rule(choice=CHOICES)
    def close(self, choice: int) -> None:
        chosen = self.idle(choice)
        self.files.remove(chosen)
        self.kvfs.release(chosen.file)

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

    @precondition(lambda self: len(self.files) < FILES_MAX)
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

    @precondition(lambda self: len(self.files) < FILES_MAX and self.offered)
    @rule(choice=CHOICES, n=BOUNDS, which=st.integers(0, 2))
    def match(self, choice: int, n: int, which: int) -> None:
        """Tokens that were offered and one more, for a tenant that may not be theirs."""
        if len(self.files) == FILES_MAX or not self.offered:
            return
        tokens = sorted(self.offered)[choice % len(self.offered)][1][:n]
        tenant = self.tenants[which]
        free = self.kvfs.pool.free
        try:
            file = self.kvfs.match(tenant, np.array([*tokens, 98], np.uint32), self.accounts[which])
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
        # The kernel takes the copies once all rows have their room.
        free = sorted(f for f in self.freed if self.kvfs.pool.page[f] < 0)
        self.freed.clear()
        step = DeviceStep(take_copies(self.kvfs), slots_of_pages(np.array(free, np.int32)))
        self.steps.append((step, [self.start_row(step, modelled, n) for modelled, n in rows]))

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

    def start_row(self, step: DeviceStep, modelled: Modelled, n: int) -> Pending:
        file = modelled.file
        start = file.length
        entries = []
        for j in range(n):
            self.values += 1
            entries.append((self.values % 97, start + j, self.values))
        values = np.array([value for _, _, value in entries], np.int64)
        row = DeviceRow(file.block_table(start + n), start, values)
        assert len(set(row.slots().tolist())) == n
        pool = self.kvfs.pool
        assert (pool.references[pool.page[row.slots() // PAGE_TOKENS]] == 1).all()
        step.rows.append(row)
        modelled.busy = True
        return Pending(modelled, entries)

    @precondition(lambda self: self.steps)
    @rule(keep=st.booleans())
    def complete(self, keep: bool) -> None:
        step, pending = self.steps.pop(0)
        self.store.run(step)
        for row in pending:
            if row.cancelled:
                continue
            if keep:
                tokens = np.array([token for token, _, _ in row.entries], np.uint32)
                positions = np.array([position for _, position, _ in row.entries], np.int32)
                row.modelled.file.commit(tokens, positions)
                row.modelled.entries += row.entries
            else:
                row.modelled.file.unreserve()
            row.modelled.busy = False

    @precondition(lambda self: any(row for _, rows in self.steps for row in rows))
    @rule(choice=CHOICES)
    def cancel(self, choice: int) -> None:
        """The file goes on at once, while the step still writes where it had room."""
        rows = [row for _, rows in self.steps for row in rows if not row.cancelled]
        if rows:
            row = rows[choice % len(rows)]
            row.cancelled = True
            row.modelled.file.unreserve()
            row.modelled.busy = False

    # -- What must always hold -------------------------------------------------------------------
    def snapshot(self, modelled: Modelled) -> tuple[int, list[int], int, int]:
        file, storage = modelled.file, self.kvfs.transfers.copied_slots
        return file.length, file.pages.tolist(), self.kvfs.pool.free, storage

    def ahead(self) -> SlotStore:
        """The device once everything that is under way has been computed."""
        ahead = self.store.copy()
        for step, _ in self.steps:
            ahead.run(step)
        ahead.apply_copies(group_copies(self.kvfs.transfers.copies))
        return ahead

    @invariant()
    def content_is_what_was_written(self) -> None:
        ahead = self.ahead()
        for modelled in self.files:
            self.compare(ahead.values, modelled.file, modelled.entries)
        for (tenant, path), entries in self.names.items():
            self.compare(ahead.values, self.kvfs.named(tenant, path), entries)

    def compare(self, values: Int64, file: KVFile, entries: list[Entry]) -> None:
        assert file.length == len(entries)
        found: list[tuple[Int64 | Int32 | np.ndarray[tuple[int], np.dtype[np.uint32]], int]] = [
            (file.tokens, 0),
            (file.positions, 1),
            (values[file.slots(np.arange(file.length))], 2),
        ]
        for array, part in found:
            assert array.tolist() == [entry[part] for entry in entries]

    @invariant()
    def everything_adds_up(self) -> None:
        self.kvfs.check_integrity(Counter(m.file for m in self.files))
        assert self.accounts[0].pages <= ACCOUNT_PAGES

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
