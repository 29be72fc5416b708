"""Drafts: the steps that follow if nothing changes, given to the device before that is known.

    step N computes     its works are generations that go on: behind each token comes the next one
    draft 1             the same rows, one entry further; the device puts N's tokens in
    draft 2             behind draft 1, and so on
    N has ended         as ever: its works end, go on, and are in the queue again. What draft 1 has
                        begun to compute of them becomes the step that would be formed now.

A draft changes nothing: no service is charged and nothing is appended before the step before it has
ended, as without drafts. It is made while nobody else wants to run, and taken back when somebody
comes; who comes when it has begun waits for its end, as for any step's. A row whose generation has
ended meanwhile is dropped with what was computed for it.
"""

from collections.abc import Container
from dataclasses import dataclass, field
from typing import Protocol

from symphony_kernel.executor.base import Batch, Int32, Row
from symphony_kernel.executor.follow import BLANK, Follow
from symphony_kernel.protocol.errno import SyscallError
from symphony_kernel.protocol.limits import DRAFTS_MAX
from symphony_kernel.scheduler.batcher import ONLY, Batcher, Part, Step
from symphony_kernel.scheduler.fair_queue import FairQueue
from symphony_kernel.scheduler.work import Work


class Course(Protocol):
    """How a work goes on that is submitted again as soon as it has ended: a generation's."""

    @property
    def stop(self) -> Container[int]:
        """Tokens behind which it does not."""

    def goes_on(self, steps: int) -> bool:
        """Whether it will surely go on after `steps` more tokens, but for those of `stop`."""

    def position(self, entry: int) -> Int32:
        """Return the position ([1]) of its file's entry with that number."""


@dataclass(slots=True, eq=False)
class Draft:
    """A step that may be; `works[i]` is row i of the batch."""

    works: list[Work]
    batch: Batch
    follow: Follow
    alive: list[int] = field(init=False)  # rows behind rows that were computed for their works
    step: Step | None = None  # what it has become

    def __post_init__(self) -> None:
        self.alive = list(range(len(self.works)))


class Drafts:
    """The drafts behind the newest step, in order."""

    def __init__(self, queue: FairQueue, batcher: Batcher) -> None:
        self._queue = queue
        self._batcher = batcher
        self._drafts: list[Draft] = []

    def __len__(self) -> int:
        return len(self._drafts)

    def make(self, step: Step) -> Draft | None:
        """Return a draft behind `step` and the drafts there are, if all of it is known."""
        before = len(self._drafts)
        if before == DRAFTS_MAX:
            return None
        last = self._drafts[-1].works if before else [part.work for part in step.parts]
        works, rows, behind = [], [], []
        stops: list[Container[int]] = []
        for index, work in enumerate(last):
            if work.finished:  # what comes of its row is dropped
                continue
            row = _row(work, before)
            if row is None:
                return None
            works.append(work)
            rows.append(row)
            behind.append(index)
            assert work.course is not None
            stops.append(work.course.stop)
        if not works:
            return None
        follow = Follow(behind, stops)
        draft = Draft(works, Batch(rows, follow=follow), follow)
        self._drafts.append(draft)
        return draft

    def revoke(self) -> None:
        """Take back those that have not begun: somebody else wants to run."""
        drafts = self._drafts
        while drafts and drafts[-1].follow.revoke():
            drafts.pop()

    def adopt(self) -> Step | None:
        """Return what the first draft has computed of the works in the queue, as a step.

        For when the step before it has ended, and its works are in the queue again.
        """
        drafts = self._drafts
        if not drafts:
            return None
        if drafts[0].follow.revoke():  # it has not begun: nor has anything behind it
            self.revoke()
            self._drafts = []
            return None
        draft = drafts.pop(0)
        parts, rows = [], []
        for index in draft.alive:
            work = draft.works[index]
            if self._is_next(work, draft.batch.rows[index]):
                self._queue.serve_whole(work)
                parts.append(Part(work, 0, 1))
                rows.append(index)
        if not parts:  # nor is anything behind it
            self.revoke()
            self._drafts = []
            return None
        self._keep(draft, rows)
        draft.step = Step(parts, draft.batch, len(parts), adopted=rows)
        return draft.step

    def _is_next(self, work: Work, row: Row) -> bool:
        """Whether a row has computed the very entry that a work in the queue wants."""
        file = work.file
        if work.finished or work.count != 1 or file.length != row.start:
            return False
        if not self._queue.holds(work) or not self._batcher.keep(work):
            return False
        return bool(file.block_table(row.start + 1)[-1] == row.block_table[-1])

    def _keep(self, draft: Draft, rows: list[int]) -> None:
        """Of the drafts behind it, only what goes on behind these rows."""
        for following in self._drafts:
            if len(rows) == len(draft.works):
                return
            kept = set(rows)
            following.alive = [
                index for index in following.alive if following.follow.rows[index] in kept
            ]
            draft, rows = following, following.alive


def _row(work: Work, before: int) -> Row | None:
    """Return the row of a work behind so many drafts; None: nobody knows whether it goes on."""
    course, file = work.course, work.file
    if course is None or not course.goes_on(before + 1):
        return None
    new = work.count + before + 1
    try:
        file.reserve(new)
    except SyscallError:
        return None
    start = file.length + new - 1
    table = file.block_table(start + 1)
    place = course.position(start)
    return Row(BLANK, place, start, table, ONLY, work.options, None, work.seed, work.guide)
