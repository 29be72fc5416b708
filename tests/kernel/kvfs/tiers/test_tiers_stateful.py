# ruff: noqa: PT017 - a rule learns from the error which of two outcomes to check
"""Tiers against lists: random moves, steps and failures leave the content that was written.

Entries are saved, loaded, written to disk and read by a thread that does its tasks late. Freed
frames are poisoned, and what no tier holds any more is written again, as a recompute would.
"""

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from symphony_kernel.executor.base import Int32, Int64
from symphony_kernel.kvfs.tiers.tiers import Tier
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import PAGE_TOKENS

from tests.support.kernel.file_machine import (
    CHOICES,
    SIZES,
    Entry,
    FileMachine,
    Modelled,
    Row,
    Step,
)
from tests.support.kernel.page_device import make_account
from tests.support.kernel.tier_device import JUNK, ManualRunner, make_tiered

FRAMES = 9
HOST_SLOTS = 7
DISK_SLOTS = 6
HOST_BUDGET = 5  # of each tenant
DISK_BUDGET = 4


class TiersMachine(FileMachine):
    files_max = 8
    length_max = 4 * PAGE_TOKENS

    @initialize(disk=st.booleans())
    def start(self, disk: bool) -> None:
        self.runner = ManualRunner()
        self.directory = tempfile.TemporaryDirectory()
        kvfs, store = make_tiered(
            FRAMES,
            HOST_SLOTS,
            DISK_SLOTS if disk else 0,
            Path(self.directory.name),
            self.runner,
            {"host_pages": HOST_BUDGET, "disk_pages": DISK_BUDGET},
        )
        self.set_up(kvfs, store, *((name, make_account(kvfs, name)) for name in ("a", "b")))
        self.pool, self.tiers = self.kvfs.pool, self.kvfs.tiers
        for which in (0, 0, 1):
            self.new(which)
            self.compute(len(self.files) - 1, 20)
            self.complete(keep=True)

    def any_pages(self, choice: int) -> Int32:
        """Return the pages of a file, or one of them, in an order of their own."""
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
        """All files leave the device; the device, and maybe the disk, make all transfers."""
        for number in range(len(self.files)):
            self.evict(6 * (choice + number) + 1, keep=True, host=True)
        self.catch_up()
        if disk:
            self.runner.stop()

    @rule(choice=CHOICES, n=SIZES)
    def go_on(self, choice: int, n: int) -> None:
        """Compute behind a file, though others may have to leave the device."""
        chosen = self.idle(choice)
        for _ in range(4):
            if self.bring(chosen.file.pages):
                break
            for number in range(len(self.files)):
                if self.files[number] is not chosen:
                    self.evict(6 * number + 1, keep=True, host=True)
            self.catch_up()
            self.runner.stop()
        self.compute(self.files.index(chosen), n)
        self.catch_up()

    def append_entries(self, target: Modelled, source: Modelled, chosen: Int64) -> bool:
        if not self.bring(target.file.append_reads(source.file, chosen)):
            return False
        return super().append_entries(target, source, chosen)

    # -- Steps -----------------------------------------------------------------------------------
    @precondition(lambda self: len(self.steps) < 2)
    @rule(choice=CHOICES, n=SIZES)
    def compute(self, choice: int, n: int) -> None:
        chosen = self.idle(choice)
        file = chosen.file
        if file.length + n > self.length_max or not self.bring(file.pages):
            return
        try:
            file.reserve(n)
        except SyscallError as error:
            assert error.errno in (Errno.ENOMEM, Errno.EDQUOT)
            return
        self.launch(self.row(chosen, n))

    @rule(choice=CHOICES)
    def bring_all(self, choice: int) -> None:
        self.bring(self.idle(choice).file.pages)

    def bring(self, pages: Int32) -> bool:
        """Bring pages to the device; return whether a step that is formed now has them there."""
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
        """Compute pages again; return whether they are there."""
        known = self.contents()
        if not len(pages):
            return True
        self.tiers.give_frames(pages)
        for page in pages:
            table = self.pool.frame[[page]]
            self.launch(Row(table, 0, known[page], None, np.array([page], np.int32)))
        while self.steps:
            self.complete(keep=True)
        return True

    def contents(self) -> dict[int, list[Entry]]:
        """Return each page's entries, as far as files have any there."""
        known: dict[int, list[Entry]] = {}
        for modelled in self.files:
            for index, page in enumerate(modelled.file.pages.tolist()):
                entries = modelled.entries[index * PAGE_TOKENS :][:PAGE_TOKENS]
                if len(entries) >= len(known.get(page, ())):
                    known[page] = entries
        return known

    def launch(self, *rows: Row) -> None:
        self.steps.append(Step(self.kvfs.take_transfers(), list(rows)))

    @rule()
    def catch_up(self) -> None:
        """The device makes all pending transfers."""
        self.launch()
        while self.steps:
            self.complete(keep=True)

    @precondition(lambda self: len(self.steps) == 1)
    @rule()
    def fail(self) -> None:
        """The device fails: files that hold what it wrote have an error, others are unchanged."""
        step = self.steps.pop(0)
        for batch in step.batches:
            self.store.fail(batch)
            self.kvfs.fail_transfers(batch)
        for row in step.rows:
            self.store.values[row.slots()] = JUNK
            assert row.modelled is not None
            row.modelled.busy = False
            row.modelled.file.unreserve()
        for modelled in [m for m in self.files if m.file.error is not None]:
            self.release(modelled)

    # -- What must always hold -------------------------------------------------------------------
    @invariant()
    def disk_budget_holds(self) -> None:
        assert all(tenant.account.disk <= DISK_BUDGET for tenant in self.kvfs.tenants.values())

    @invariant()
    def content_is_what_was_written(self) -> None:
        if self.steps or self.kvfs.transfers.pending:
            return
        for modelled in self.files:
            if not modelled.busy:
                self.compare(modelled)

    def compare(self, modelled: Modelled) -> None:
        self.compare_tokens(modelled.file, modelled.entries)
        frames = self.store.values.reshape(-1, PAGE_TOKENS)
        for index, page in enumerate(modelled.file.pages.tolist()):
            entries = modelled.entries[index * PAGE_TOKENS :][:PAGE_TOKENS]
            expected = [value for _, _, value in entries]
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
            self.release(modelled)
        self.runner.stop()
        self.kvfs.check_integrity({})
        assert self.pool.free_frames == FRAMES
        assert self.tiers.free_slots == HOST_SLOTS
        assert self.pool.copies == self.pool.absent == 0
        self.tiers.spill_tier.close()
        self.directory.cleanup()


TestTiers = TiersMachine.TestCase
TestTiers.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
