"""Rules of the random tests of KV files, for any device.

Each computed entry has a value of its own. A step writes it into the slot that the file's block
table names when the step runs, and only the copies that KVFS asks for move it. So comparing values
finds a file that sees another file's value, junk, or its own value at a wrong place.
"""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from symphony_kernel.executor.base import Batch, Int32, Int64
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.filesystem import KVFS
from symphony_kernel.kvfs.quotas import TenantUsage
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import PAGE_TOKENS

from tests.support.kernel.tier_device import Store

CHOICES = st.integers(0, 1000)
SIZES = st.sampled_from((1, 1, 3, 16, 20))
BOUNDS = st.one_of(st.integers(0, 60), st.sampled_from((0, 16, 32)))

Entry = tuple[int, int, int]  # token, position, value


@dataclass(eq=False)
class Modelled:
    """A file, and the list that it must equal."""

    file: KVFile
    entries: list[Entry] = field(default_factory=list)
    busy: bool = False


@dataclass
class Row:
    """Entries that a step computes. The table is a view, as executors get it, read at run time."""

    block_table: Int32
    start: int
    entries: list[Entry]
    modelled: Modelled | None  # None: the file has the entries already
    unfilled: Int32 = field(default_factory=lambda: np.empty(0, np.int32))  # pages that it fills
    cancelled: bool = False

    def slots(self) -> Int64:
        indices = np.arange(self.start, self.start + len(self.entries))
        frames = self.block_table[indices // PAGE_TOKENS].astype(np.int64)
        return frames * PAGE_TOKENS + indices % PAGE_TOKENS

    def run(self, store: Store) -> None:
        store.values[self.slots()] = [value for _, _, value in self.entries]


@dataclass
class Step:
    """Batches without rows, then rows."""

    batches: list[Batch]
    rows: list[Row]


class FileMachine(RuleBasedStateMachine):
    """Files of some accounts over a store, and steps on their way."""

    files_max = 12
    length_max = 6 * PAGE_TOKENS  # past which nothing is appended

    def set_up(self, kvfs: KVFS, store: Store, *accounts: tuple[str, TenantUsage]) -> None:
        self.kvfs, self.store, self.accounts = kvfs, store, accounts
        self.files: list[Modelled] = []
        self.steps: list[Step] = []
        self.values = 0

    # -- Choosing --------------------------------------------------------------------------------
    def new(self, which: int) -> Modelled:
        """Return an empty file of an account."""
        self.files.append(Modelled(self.kvfs.create(*self.accounts[which])))
        return self.files[-1]

    def idle(self, choice: int) -> Modelled:
        files = [m for m in self.files if not m.busy]
        return files[choice % len(files)] if files else self.new(1)

    def peer(self, choice: int, of: Modelled) -> Modelled:
        """Return an idle file of the same tenant, which may be the same file."""
        files = [m for m in self.files if not m.busy and m.file.tenant == of.file.tenant]
        return files[choice % len(files)]

    def account(self, choice: int, tenant: str) -> TenantUsage:
        mine = [account for name, account in self.accounts if name == tenant]
        return mine[choice % len(mine)]

    # -- Files -----------------------------------------------------------------------------------
    @precondition(lambda self: len(self.files) < self.files_max)
    @rule(choice=CHOICES)
    def fork(self, choice: int) -> None:
        source = self.idle(choice)
        before = self.kvfs.pool.free
        file = self.kvfs.fork(source.file, self.account(choice, source.file.tenant))
        assert self.kvfs.pool.free == before
        self.files.append(Modelled(file, list(source.entries)))

    @rule(choice=CHOICES, length=BOUNDS)
    def truncate(self, choice: int, length: int) -> None:
        chosen = self.idle(choice)
        length = min(length, chosen.file.length)
        chosen.file.truncate(length)
        del chosen.entries[length:]

    @rule(choice=CHOICES, start=BOUNDS, n=BOUNDS)
    def append(self, choice: int, start: int, n: int) -> None:
        target = self.idle(choice)
        source = self.peer(choice // 7, target)
        length = source.file.length
        chosen = np.arange(min(start, length), min(start + n, length))
        if target.file.length + len(chosen) <= self.length_max:
            self.append_entries(target, source, chosen)

    def append_entries(self, target: Modelled, source: Modelled, chosen: Int64) -> bool:
        """Append the chosen entries of a file; return whether that succeeded."""
        added = [source.entries[i] for i in chosen]
        state = self.snapshot(target)
        try:
            target.file.append(source.file, chosen)
        except SyscallError as error:
            assert error.errno in (Errno.ENOMEM, Errno.EDQUOT)  # noqa: PT017 - either may come
            assert self.snapshot(target) == state
            return False
        target.entries += added
        return True

    @precondition(lambda self: len(self.files) > self.files_max // 2)
    @rule(choice=CHOICES)
    def close(self, choice: int) -> None:
        self.release(self.idle(choice))

    def release(self, modelled: Modelled) -> None:
        self.files.remove(modelled)
        self.kvfs.release(modelled.file)

    # -- Steps -----------------------------------------------------------------------------------
    def row(self, modelled: Modelled, n: int) -> Row:
        """Return a row of n new entries of a file that has room for them."""
        start, entries = modelled.file.length, []
        for position in range(start, start + n):
            self.values += 1
            entries.append((self.values % 97, position, self.values))
        row = Row(modelled.file.block_table(start + n), start, entries, modelled)
        slots = row.slots()
        assert len(set(slots.tolist())) == n
        pool = self.kvfs.pool
        assert (pool.references[pool.page[slots // PAGE_TOKENS]] == 1).all()
        modelled.busy = True
        return row

    @precondition(lambda self: self.steps)
    @rule(keep=st.booleans())
    def complete(self, keep: bool) -> None:
        step = self.steps.pop(0)
        for batch in step.batches:
            self.store.do(batch)
            self.kvfs.finish_transfers(batch)
        for row in step.rows:
            row.run(self.store)
            if len(row.unfilled):
                self.kvfs.tiers.mark_filled(row.unfilled)
            if row.modelled is None or row.cancelled:
                continue
            row.modelled.busy = False
            if not keep:
                row.modelled.file.unreserve()
                continue
            tokens, positions, _ = zip(*row.entries, strict=True)
            row.modelled.file.commit(np.array(tokens, np.uint32), np.array(positions, np.int32))
            row.modelled.entries += row.entries

    # -- What must always hold -------------------------------------------------------------------
    def snapshot(self, modelled: Modelled) -> tuple[int, ...]:
        """Return what a call that fails must not change."""
        return modelled.file.length, *modelled.file.pages.tolist()

    def compare_tokens(self, file: KVFile, entries: list[Entry]) -> None:
        assert file.length == len(entries)
        assert file.tokens.tolist() == [token for token, _, _ in entries]
        assert file.positions.tolist() == [position for _, position, _ in entries]

    @invariant()
    def everything_adds_up(self) -> None:
        self.kvfs.check_integrity(Counter(m.file for m in self.files))
