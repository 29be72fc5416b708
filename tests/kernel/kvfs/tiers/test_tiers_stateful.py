# ruff: noqa: PT017 - a rule learns from the error which of two outcomes to check
"""Tiers against lists: whatever moves, whenever steps end or fail, content is what was written.

As in `test_kvfs_stateful` each computed entry has a value of its own. Here it is also saved,
loaded, written to disk and read by a thread that does its works late; freed frames are poisoned;
and what no tier holds any more is written again, as a step would that computes it.
"""

import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from symphony_kernel.executor.base import Batch, Int32, Int64
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.tiers.tiers import Tier
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import PAGE_TOKENS

from tests.support.kernel.page_device import make_account
from tests.support.kernel.tier_device import JUNK, ManualRunner, make_tiered

FRAMES = 9
HOST_SLOTS = 7
DISK_SLOTS = 6
HOST_BUDGET = 5  # of each tenant
DISK_BUDGET = 4
FILES_MAX = 8

CHOICES = st.integers(0, 1000)
SIZES = st.sampled_from((1, 3, 16, 20))
BOUNDS = st.one_of(st.integers(0, 50), st.sampled_from((0, 16, 32)))


@dataclass(eq=False)
class Modelled:
    """A file beside the values of its entries."""

    file: KVFile
    values: list[int] = field(default_factory=list)
    busy: bool = False


@dataclass
class Row:
    """What a step computes: values into frames' slots."""

    slots: Int64
    values: list[int]
    modelled: Modelled | None  # None: entries that there were already
    pages: Int32  # unfilled ones that it fills


@dataclass
class Step:
    """Batches without rows, then rows."""

    batches: list[Batch]
    row: Row | None


class TiersMachine(RuleBasedStateMachine):
    @initialize(disk=st.booleans())
    def start(self, disk: bool) -> None:
        self.runner = ManualRunner()
        self.directory = tempfile.TemporaryDirectory()
        self.kvfs, self.store = make_tiered(
            FRAMES,
            HOST_SLOTS,
            DISK_SLOTS if disk else 0,
            Path(self.directory.name),
            self.runner,
            {"host_pages": HOST_BUDGET, "disk_pages": DISK_BUDGET},
        )
        self.pool, self.tiers = self.kvfs.pool, self.kvfs.tiers
        self.disk: dict[int, list[int]] = {}
        self.accounts = {name: make_account(self.kvfs, name) for name in ("a", "b")}
        self.files: list[Modelled] = []
        self.steps: list[Step] = []
        self.next = 0
        self.rebuilding = False
        for name in "aab":
            self.files.append(Modelled(self.kvfs.create(name, self.accounts[name])))
            self.compute(len(self.files) - 1, 20)
            self.complete(keep=True)

    # -- Choosing --------------------------------------------------------------------------------
    def idle(self, choice: int) -> Modelled:
        files = [m for m in self.files if not m.busy]
        if not files:
            self.files.append(Modelled(self.kvfs.create("a", self.accounts["a"])))
            return self.files[-1]
        return files[choice % len(files)]

    def any_pages(self, choice: int) -> Int32:
        """Pages of one file, or a page of it, in an order of their own."""
        file = self.files[choice % len(self.files)].file
        pages = file.pages.copy()
        if len(pages) and choice % 3 == 0:
            pages = pages[choice % len(pages) :][:1]
        return pages[::-1] if choice % 2 else pages

    # -- Tiers -----------------------------------------------------------------------------------
    @precondition(lambda self: self.files)
    @rule(choice=CHOICES, keep=st.booleans(), host=st.booleans())
    def evict(self, choice: int, keep: bool, host: bool) -> None:
        pages = self.any_pages(choice)
        if self.pool.unfilled[pages].any():
            return
        before = self.pool.free_frames
        left = self.tiers.evict(pages, keep, host)
        assert self.pool.free_frames == before + len(left)
        assert (self.pool.frame[left] < 0).all()
        there = np.setdiff1d(pages, left)
        if keep:
            assert (self.tiers.tier_of(left) < Tier.TOKENS).all()
        else:
            assert (self.pool.frame[there] < 0).all()

    @precondition(lambda self: self.files)
    @rule(choice=CHOICES)
    def fetch(self, choice: int) -> None:
        pages = self.any_pages(choice)
        free = self.pool.free_frames
        tiers = self.tiers.tier_of(pages)
        unfilled = self.pool.unfilled[pages]
        try:
            fetched = self.tiers.fetch(pages)
        except SyscallError as error:
            assert error.errno is Errno.ENOMEM
            wanted = pages[((tiers == Tier.HOST) | (tiers == Tier.DISK)) & ~unfilled]
            assert len(np.unique(wanted)) > free
            return
        assert set(fetched.loaded.tolist()) == set(pages[tiers == Tier.HOST].tolist())
        assert set(fetched.reading.tolist()) == set(
            pages[(tiers == Tier.DISK) & ~unfilled].tolist()
        )
        assert set(fetched.lost.tolist()) == set(pages[(tiers == Tier.TOKENS) & ~unfilled].tolist())
        assert (self.tiers.tier_of(fetched.loaded) == Tier.DEVICE).all()

    @precondition(lambda self: self.files)
    @rule(choice=CHOICES)
    def drop(self, choice: int) -> None:
        pages = self.any_pages(choice)
        for page in pages.tolist():
            self.tiers.drop_copies(page)
        lost = pages[self.pool.frame[pages] < 0]
        assert (self.tiers.tier_of(lost) == Tier.TOKENS).all()
        assert (self.tiers.host[pages] < 0).all()

    @precondition(lambda self: self.runner.works)
    @rule()
    def disk_busy(self) -> None:
        self.runner.do()

    # -- Courses of them -------------------------------------------------------------------------
    @rule(choice=CHOICES)
    def away_and_back(self, choice: int) -> None:
        if self.files:
            self.evict(choice, keep=False, host=True)
            self.fetch(choice // 3)

    @rule(choice=CHOICES, disk=st.booleans())
    def store_all(self, choice: int, disk: bool) -> None:
        """All leave the device; the device, and maybe the disk, do what they owe."""
        for number in range(len(self.files)):
            self.evict(6 * (choice + number) + 1, keep=True, host=True)
        self.catch_up()
        while disk and self.runner.works:
            self.runner.do()

    @rule(choice=CHOICES, n=SIZES)
    def go_on(self, choice: int, n: int) -> None:
        """A file goes on, whatever that takes."""
        chosen = self.idle(choice)
        for _ in range(4):
            if self.bring(chosen.file.pages):
                break
            for number in range(len(self.files)):
                if self.files[number] is not chosen:
                    self.evict(6 * number + 1, keep=True, host=True)
            self.catch_up()
            while self.runner.works:
                self.runner.do()
        self.compute(self.files.index(chosen), n)
        self.catch_up()

    # -- Files -----------------------------------------------------------------------------------
    @precondition(lambda self: len(self.files) < FILES_MAX)
    @rule(choice=CHOICES)
    def fork(self, choice: int) -> None:
        source = self.idle(choice)
        file = self.kvfs.fork(source.file, self.accounts[source.file.tenant])
        self.files.append(Modelled(file, list(source.values)))

    @rule(choice=CHOICES, length=BOUNDS)
    def truncate(self, choice: int, length: int) -> None:
        chosen = self.idle(choice)
        length = min(length, chosen.file.length)
        chosen.file.truncate(length)
        del chosen.values[length:]

    @rule(choice=CHOICES, start=BOUNDS, n=BOUNDS)
    def append(self, choice: int, start: int, n: int) -> None:
        target = self.idle(choice)
        tenant = target.file.tenant
        sources = [m for m in self.files if not m.busy and m.file.tenant == tenant]
        source = sources[choice // 7 % len(sources)]
        chosen = np.arange(min(start, source.file.length), min(start + n, source.file.length))
        if target.file.length + len(chosen) > 4 * PAGE_TOKENS:
            return
        if not self.bring(target.file.append_reads(source.file, chosen)):
            return
        added = [source.values[i] for i in chosen]
        try:
            target.file.append(source.file, chosen)
        except SyscallError as error:
            assert error.errno in (Errno.ENOMEM, Errno.EDQUOT)
            return
        target.values += added

    @precondition(lambda self: len(self.files) > FILES_MAX // 2)
    @rule(choice=CHOICES)
    def close(self, choice: int) -> None:
        self.forget(self.idle(choice))

    def forget(self, modelled: Modelled) -> None:
        self.files.remove(modelled)
        self.kvfs.release(modelled.file)

    # -- Steps -----------------------------------------------------------------------------------
    @precondition(lambda self: len(self.steps) < 2)
    @rule(choice=CHOICES, n=SIZES)
    def compute(self, choice: int, n: int) -> None:
        chosen = self.idle(choice)
        file = chosen.file
        if file.length + n > 4 * PAGE_TOKENS or not self.bring(file.pages):
            return
        try:
            file.reserve(n)
        except SyscallError as error:
            assert error.errno in (Errno.ENOMEM, Errno.EDQUOT)
            return
        values = list(range(self.next, self.next + n))
        self.next += n
        entries = np.arange(file.length, file.length + n)
        table = file.block_table(file.length + n).astype(np.int64)
        slots = table[entries // PAGE_TOKENS] * PAGE_TOKENS + entries % PAGE_TOKENS
        self.launch(Row(slots, values, chosen, np.empty(0, np.int32)))
        chosen.busy = True

    @rule(choice=CHOICES)
    def bring_all(self, choice: int) -> None:
        self.bring(self.idle(choice).file.pages)

    def bring(self, pages: Int32) -> bool:
        """Have these pages on the device, as far as a step that is formed now sees; whether."""
        if self.pool.unfilled[pages].any():
            return False
        try:
            fetched = self.tiers.fetch(pages)
            if len(fetched.reading) or not self.rebuild(fetched.lost):
                return False
        except SyscallError:
            return False
        return not len(pages) or bool((self.tiers.tier_of(pages) == Tier.DEVICE).all())

    def rebuild(self, pages: Int32) -> bool:
        """Compute pages again; whether they are there."""
        known = {page: values for page, values in self.contents().items() if page in pages}
        if not len(pages):
            return True
        self.tiers.give_frames(pages)
        table = self.pool.frame[pages].astype(np.int64)
        for page, frame in zip(pages.tolist(), table.tolist(), strict=True):
            values = known[page]
            slots = frame * PAGE_TOKENS + np.arange(len(values))
            self.launch(Row(slots, values, None, np.array([page], np.int32)))
        while self.steps:
            self.complete(keep=True)
        return True

    def contents(self) -> dict[int, list[int]]:
        """Return what each page's entries are, as far as files have any there."""
        known: dict[int, list[int]] = {}
        for modelled in self.files:
            for index, page in enumerate(modelled.file.pages.tolist()):
                values = modelled.values[index * PAGE_TOKENS :][:PAGE_TOKENS]
                if len(values) >= len(known.get(page, ())):
                    known[page] = values
        return known

    def launch(self, row: Row | None) -> None:
        self.steps.append(Step(self.kvfs.take_transfers(), row))

    @precondition(lambda self: self.steps)
    @rule(keep=st.booleans())
    def complete(self, keep: bool) -> None:
        step = self.steps.pop(0)
        for batch in step.batches:
            self.store.do(batch)
            self.kvfs.finish_transfers(batch)
        row = step.row
        if row is None:
            return
        self.store.values[row.slots] = row.values
        if len(row.pages):
            self.tiers.mark_filled(row.pages)
        if row.modelled is None:
            return
        row.modelled.busy = False
        if not keep:
            row.modelled.file.unreserve()
            return
        start, n = row.modelled.file.length, len(row.values)
        row.modelled.file.commit(
            np.array(row.values, np.uint32), np.arange(start, start + n, dtype=np.int32)
        )
        row.modelled.values += row.values

    @rule()
    def catch_up(self) -> None:
        """The device does all that it owes."""
        self.launch(None)
        while self.steps:
            self.complete(keep=True)

    @precondition(lambda self: len(self.steps) == 1)
    @rule()
    def fail(self) -> None:
        """The device fails: files that hold what it wrote know, and all others are as they were."""
        step = self.steps.pop(0)
        for batch in step.batches:
            self.store.fail(batch)
            self.kvfs.fail_transfers(batch)
        if step.row is not None:
            self.store.values[step.row.slots] = JUNK
            assert step.row.modelled is not None
            step.row.modelled.busy = False
            step.row.modelled.file.unreserve()
        for modelled in [m for m in self.files if m.file.error is not None]:
            self.forget(modelled)

    # -- What must always hold -------------------------------------------------------------------
    @invariant()
    def everything_adds_up(self) -> None:
        self.kvfs.check_integrity(Counter(m.file for m in self.files))
        for tenant in self.kvfs.tenants.values():
            assert tenant.account.disk <= DISK_BUDGET

    @invariant()
    def content_is_what_was_written(self) -> None:
        if self.steps or self.kvfs.transfers.pending:
            return
        for modelled in self.files:
            if not modelled.busy:
                self.compare(modelled)

    def compare(self, modelled: Modelled) -> None:
        file = modelled.file
        assert file.length == len(modelled.values)
        assert file.tokens.tolist() == modelled.values
        frames = self.store.values.reshape(-1, PAGE_TOKENS)
        for index, page in enumerate(file.pages.tolist()):
            expected = modelled.values[index * PAGE_TOKENS :][:PAGE_TOKENS]
            (tier,) = self.tiers.tier_of(np.array([page], np.int32)).tolist()
            if tier == Tier.DEVICE:
                found = frames[self.pool.frame[page]]
                assert found[: len(expected)].tolist() == expected
            if self.tiers.host[page] >= 0:
                found = self.store.host[self.tiers.host[page]]
                assert found[: len(expected)].tolist() == expected

    def teardown(self) -> None:
        if not hasattr(self, "kvfs"):
            return
        while self.steps:
            self.complete(keep=True)
        for modelled in list(self.files):
            self.forget(modelled)
        self.runner.stop()
        self.kvfs.check_integrity({})
        assert self.pool.free_frames == FRAMES
        assert self.tiers.free_slots == HOST_SLOTS
        assert self.pool.copies == self.pool.absent == 0
        self.tiers.spill_tier.close()
        self.directory.cleanup()


TestTiers = TiersMachine.TestCase
TestTiers.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
