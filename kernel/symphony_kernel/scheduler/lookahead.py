"""Drafts: the steps that follow if nothing changes, given to the device before that is known.

    step N computes     its works go on: behind each token comes the next one
    draft 1             the same rows, one entry further; the device puts N's tokens in
    draft 2             behind draft 1, and so on
    N has ended         as ever: its works end, go on, and are in the queue again. What draft 1 has
                        begun to compute of them becomes the step that would be formed now.

Generations go on by themselves. A pred goes on when its program makes the next one, which is
guessed (`guesses`): the step that a draft has become takes it in when it comes, or keeps its result
for it. So drafts with preds are told of one by one, and no more than one is there beforehand.

A draft changes nothing: no service is charged and nothing is appended before the step before it has
ended, as without drafts. It is made while nobody else wants to run, and taken back when somebody
comes; who comes when it has begun waits for its end, as for any step's. A row whose generation has
ended meanwhile is dropped with what was computed for it.
"""

from collections.abc import Callable, Container, Iterable

from symphony_kernel.executor.base import Batch, Results, Row
from symphony_kernel.executor.chained_batch import BLANK, Follow
from symphony_kernel.fairness.fair_queue import FairQueue
from symphony_kernel.protocol.errno import SyscallError
from symphony_kernel.protocol.limits import DRAFTS_MAX
from symphony_kernel.request import Work
from symphony_kernel.scheduler.batcher import ONLY, Batcher, Part, Step
from symphony_kernel.scheduler.prediction import Draft, Guess, Guesses, Head, others_wait


class Drafts:
    """The drafts behind the newest step, in order. `soon` says whether a LIP will soon answer."""

    def __init__(
        self,
        queue: FairQueue,
        batcher: Batcher,
        guesses: Guesses | None = None,
        soon: Callable[[int], bool] = lambda _root: True,
    ) -> None:
        self._queue = queue
        self._batcher = batcher
        self._guesses = guesses
        self._soon = soon
        self.there: list[Draft] = []  # to be looked at often
        self._present: Draft | None = None  # that has become the newest step

    def __len__(self) -> int:
        return len(self.there)

    def make(self, step: Step) -> Draft | None:
        """Return a draft behind `step` and the drafts there are, if all of it is known."""
        before = len(self.there)
        if before == DRAFTS_MAX or (before and not self.there[-1].follow.lot):
            return None
        heads: list[Head] = []
        rows, behind = [], []
        stops: list[Container[int]] = []
        lot, guesses = True, self._guesses
        for index, head in self._going_on(self._heads(step), before):
            if isinstance(head, Work) and head.course is not None:
                row = _row(head, before)
                if row is None:
                    return None
                stops.append(head.course.stop)
            else:
                assert guesses is not None
                made = guesses.behind(head)
                if made is None:
                    continue
                head, row = made
                stops.append(guesses.ends)
                lot = False
            heads.append(head)
            rows.append(row)
            behind.append(index)
        if not rows:
            return None
        follow = Follow(behind, stops, lot)
        draft = Draft(heads, Batch(rows, follow=follow), follow)
        if not lot:
            for row_number, guess in draft.guesses:
                guess.draft, guess.row = draft, row_number
        self.there.append(draft)
        return draft

    def forget(self) -> None:
        """The device computes nothing: there are no drafts."""
        self.there, self._present = [], None

    def revoke(self) -> None:
        """Take back those that have not begun: somebody else wants to run."""
        drafts = self.there
        while drafts and drafts[-1].follow.revoke():
            self._taken_back(drafts.pop())

    def adopt(self) -> Step | None:
        """Return what the first draft has computed of the works in the queue, as a step.

        For when the step before it has ended, and its works are in the queue again.
        """
        drafts = self.there
        self._present = None
        if not drafts:
            return None
        if drafts[0].follow.revoke():  # it has not begun: nor has anything behind it
            self.revoke()
            self._taken_back(drafts.pop(0))
            assert not drafts
            return None
        draft = drafts.pop(0)
        parts, rows, kept, guessed = [], [], [], []
        for index in draft.alive:
            head = draft.heads[index]
            if isinstance(head, Guess):
                if not head.dropped:
                    kept.append(index)
                    guessed.append((head.line.past.tenant, head.start))
            elif self._is_next(head, draft.batch.rows[index]):
                self._queue.serve_whole(head)
                parts.append(Part(head, 0, 1))
                rows.append(index)
                kept.append(index)
        if not kept:  # nor is anything behind it
            self._drop_all()
            return None
        self._keep(draft, kept)
        draft.step = Step(parts, draft.batch, len(parts), adopted=rows)
        draft.step.guessed = guessed
        self._present = draft
        return draft.step

    def take_in(self, guess: Guess, work: Work) -> None:
        """A claimed guess is a row of the step that its draft has become, which computes."""
        assert guess.draft is not None
        step = guess.draft.step
        assert step is not None
        assert step.adopted is not None
        self._queue.serve_at_once(work)
        step.parts.append(Part(work, 0, 1))
        step.adopted.append(guess.row)
        step.tokens += 1
        step.decodes += 1

    def ended(self, draft: Draft, results: Results) -> None:
        """A draft has ended, whatever has become of it; without results it was not computed."""
        guesses = self._guesses
        if guesses is not None and not draft.follow.lot:
            for row, guess in draft.guesses:
                if guess.draft is not draft or guess.work is not None:
                    continue
                if results:
                    guesses.computed(guess, results[row])
                else:
                    guesses.lost(guess)
        if draft not in self.there:
            # A guess knows its draft: with this circle each token left all that it was made of to
            # the collector, which rests everybody for milliseconds to find it.
            draft.heads, draft.alive = [], []

    # -- Within --------------------------------------------------------------------------------
    def _heads(self, step: Step) -> Iterable[tuple[int, Head]]:
        """Return whose rows come before the next draft, and which of the batch before they are."""
        if self.there:
            draft: Draft | None = self.there[-1]
        else:
            draft = self._present
        if draft is None or draft.step not in (None, step):
            return enumerate(part.work for part in step.parts)
        return [(row, draft.heads[row]) for row in draft.alive]

    def _going_on(self, heads: Iterable[tuple[int, Head]], before: int) -> list[tuple[int, Head]]:
        """Return those that go on; none at all where one may go on nobody knows how."""
        going: list[tuple[int, Head]] = []
        for index, head in heads:
            if isinstance(head, Work):
                if head.finished or head.remaining:  # what comes of its row is dropped, or a part
                    continue
                if head.course is not None:
                    if not head.course.goes_on(before + 1):
                        return []
                    going.append((index, head))
                    continue
                if head.rebuilds or others_wait(head):
                    return []
            elif head.dropped or (head.work is not None and head.work.finished):
                continue
            guesses = self._guesses
            if guesses is None or before:  # no more than one draft with guesses
                return []
            full = guesses.is_full(head)
            if not full and guesses.may_follow(head):
                going.append((index, head))
            elif self._soon(head.root if isinstance(head, Work) else head.line.root):
                return []  # it is worth waiting for
        return going

    def _is_next(self, work: Work, row: Row) -> bool:
        """Whether a row has computed the very entry that a work in the queue wants."""
        file = work.file
        if work.finished or work.count != 1 or file.length != row.start:
            return False
        if not self._queue.holds(work) or not self._batcher.keep(work):
            return False
        return file.block_table(row.start + 1).item(-1) == row.block_table.item(-1)

    def _keep(self, draft: Draft, rows: list[int]) -> None:
        """Of the drafts behind it, only what goes on behind these rows."""
        draft.alive = rows
        for following in self.there:
            if len(rows) == len(draft.heads):
                return
            kept = set(rows)
            following.alive = [
                index for index in following.alive if following.follow.rows[index] in kept
            ]
            draft, rows = following, following.alive

    def _drop_all(self) -> None:
        self.revoke()
        self.there = []

    def _taken_back(self, draft: Draft) -> None:
        for _, guess in draft.guesses:
            assert self._guesses is not None
            self._guesses.taken_back(guess)


def _row(work: Work, before: int) -> Row | None:
    """Return the row of a work behind so many drafts; None: nobody knows whether it goes on."""
    course, file = work.course, work.file
    assert course is not None
    new = work.count + before + 1
    try:
        file.reserve(new)
    except SyscallError:
        return None
    start = file.length + new - 1
    table = file.block_table(start + 1)
    place = course.position(start)
    return Row(BLANK, place, start, table, ONLY, work.options, None, work.seed, work.guide)
