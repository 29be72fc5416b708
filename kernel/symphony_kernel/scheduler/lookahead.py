"""Drafts: the steps that follow if nothing changes, given to the device before that is known.

    step N computes     its works go on: behind each token comes the next one
    draft 1             the same rows, one entry further; the device puts N's tokens in
    draft 2             behind draft 1, and so on
    N has ended         as ever: its works end, go on, and are in the queue again. What draft 1 has
                        begun to compute of them becomes the step that would be formed now.

Generations go on by themselves. A pred goes on when its program makes the next one, which is
guessed (`predictions`): the step that a draft has become takes it in when it comes, or keeps its result
for it. So drafts with preds are told of one by one, and no more than one is there beforehand.

A draft changes nothing: no service is charged and nothing is appended before the step before it has
ended, as without drafts. It is made while nobody else wants to run, and taken back when somebody
comes; who comes when it has begun waits for its end, as for any step's. A row whose generation has
ended meanwhile is dropped with what was computed for it.
"""

from collections.abc import Callable, Container, Iterable

from symphony_kernel.executor.base import Batch, Results, Row
from symphony_kernel.executor.chained_batch import BLANK, Chain
from symphony_kernel.fairness.fair_queue import FairQueue
from symphony_kernel.protocol.errno import SyscallError
from symphony_kernel.protocol.limits import DRAFTS_MAX
from symphony_kernel.request import Request
from symphony_kernel.scheduler.batcher import ONLY, Batcher, Chunk, Step
from symphony_kernel.scheduler.prediction import (
    Head,
    LookAheadStep,
    Prediction,
    Predictor,
    others_wait,
)


class LookAhead:
    """The drafts behind the newest step, in order. `soon` says whether a LIP will soon answer."""

    def __init__(
        self,
        queue: FairQueue,
        batcher: Batcher,
        predictions: Predictor | None = None,
        soon: Callable[[int], bool] = lambda _root: True,
    ) -> None:
        self._queue = queue
        self._batcher = batcher
        self._predictions = predictions
        self._soon = soon
        self.there: list[LookAheadStep] = []  # to be looked at often
        self._present: LookAheadStep | None = None  # that has become the newest step

    def __len__(self) -> int:
        return len(self.there)

    def make(self, step: Step) -> LookAheadStep | None:
        """Return a draft behind `step` and the drafts there are, if all of it is known."""
        before = len(self.there)
        if before == DRAFTS_MAX or (before and not self.there[-1].follow.may_batch_delivery):
            return None
        heads: list[Head] = []
        rows, behind = [], []
        stops: list[Container[int]] = []
        may_batch_delivery, predictions = True, self._predictions
        for index, head in self._going_on(self._heads(step), before):
            if isinstance(head, Request) and head.continuation is not None:
                row = _row(head, before)
                if row is None:
                    return None
                stops.append(head.continuation.stop)
            else:
                assert predictions is not None
                made = predictions.behind(head)
                if made is None:
                    continue
                head, row = made
                stops.append(predictions.ends)
                may_batch_delivery = False
            heads.append(head)
            rows.append(row)
            behind.append(index)
        if not rows:
            return None
        follow = Chain(behind, stops, may_batch_delivery)
        lookahead = LookAheadStep(heads, Batch(rows, chain=follow), follow)
        if not may_batch_delivery:
            for row_number, prediction in lookahead.predictions:
                prediction.lookahead, prediction.row = lookahead, row_number
        self.there.append(lookahead)
        return lookahead

    def forget(self) -> None:
        """The device computes nothing: there are no drafts."""
        self.there, self._present = [], None

    def revoke(self) -> None:
        """Take back those that have not begun: somebody else wants to run."""
        lookaheads = self.there
        while lookaheads and lookaheads[-1].follow.revoke():
            self._taken_back(lookaheads.pop())

    def adopt(self) -> Step | None:
        """Return what the first draft has computed of the works in the queue, as a step.

        For when the step before it has ended, and its works are in the queue again.
        """
        lookaheads = self.there
        self._present = None
        if not lookaheads:
            return None
        if lookaheads[0].follow.revoke():  # it has not begun: nor has anything behind it
            self.revoke()
            self._taken_back(lookaheads.pop(0))
            assert not lookaheads
            return None
        lookahead = lookaheads.pop(0)
        chunks, rows, kept, guessed = [], [], [], []
        for index in lookahead.alive:
            head = lookahead.heads[index]
            if isinstance(head, Prediction):
                if not head.dropped:
                    kept.append(index)
                    guessed.append((head.predicted.history.tenant, head.start))
            elif self._is_next(head, lookahead.batch.rows[index]):
                self._queue.serve_whole(head)
                chunks.append(Chunk(head, 0, 1))
                rows.append(index)
                kept.append(index)
        if not kept:  # nor is anything behind it
            self._drop_all()
            return None
        self._keep(lookahead, kept)
        lookahead.step = Step(chunks, lookahead.batch, len(chunks), adopted=rows)
        lookahead.step.guessed = guessed
        self._present = lookahead
        return lookahead.step

    def take_in(self, prediction: Prediction, request: Request) -> None:
        """A claimed guess is a row of the step that its draft has become, which computes."""
        assert prediction.lookahead is not None
        step = prediction.lookahead.step
        assert step is not None
        assert step.adopted is not None
        self._queue.serve_at_once(request)
        step.chunks.append(Chunk(request, 0, 1))
        step.adopted.append(prediction.row)
        step.tokens += 1
        step.decodes += 1

    def ended(self, lookahead: LookAheadStep, results: Results) -> None:
        """A draft has ended, whatever has become of it; without results it was not computed."""
        predictions = self._predictions
        if predictions is not None and not lookahead.follow.may_batch_delivery:
            for row, prediction in lookahead.predictions:
                if prediction.lookahead is not lookahead or prediction.request is not None:
                    continue
                if results:
                    predictions.computed(prediction, results[row])
                else:
                    predictions.lost(prediction)
        if lookahead not in self.there:
            # A guess knows its draft: with this circle each token left all that it was made of to
            # the collector, which rests everybody for milliseconds to find it.
            lookahead.heads, lookahead.alive = [], []

    # -- Within --------------------------------------------------------------------------------
    def _heads(self, step: Step) -> Iterable[tuple[int, Head]]:
        """Return whose rows come before the next draft, and which of the batch before they are."""
        if self.there:
            lookahead: LookAheadStep | None = self.there[-1]
        else:
            lookahead = self._present
        if lookahead is None or lookahead.step not in (None, step):
            return enumerate(chunk.request for chunk in step.chunks)
        return [(row, lookahead.heads[row]) for row in lookahead.alive]

    def _going_on(self, heads: Iterable[tuple[int, Head]], before: int) -> list[tuple[int, Head]]:
        """Return those that go on; none at all where one may go on nobody knows how."""
        going: list[tuple[int, Head]] = []
        for index, head in heads:
            if isinstance(head, Request):
                if head.finished or head.remaining:  # what comes of its row is dropped, or a part
                    continue
                if head.continuation is not None:
                    if not head.continuation.goes_on(before + 1):
                        return []
                    going.append((index, head))
                    continue
                if head.recomputes or others_wait(head):
                    return []
            elif head.dropped or (head.request is not None and head.request.finished):
                continue
            predictions = self._predictions
            if predictions is None or before:  # no more than one draft with guesses
                return []
            full = predictions.is_full(head)
            if not full and predictions.may_follow(head):
                going.append((index, head))
            elif self._soon(head.root if isinstance(head, Request) else head.predicted.root):
                return []  # it is worth waiting for
        return going

    def _is_next(self, request: Request, row: Row) -> bool:
        """Whether a row has computed the very entry that a work in the queue wants."""
        file = request.file
        if request.finished or request.count != 1 or file.length != row.start:
            return False
        if not self._queue.holds(request) or not self._batcher.keep(request):
            return False
        return file.block_table(row.start + 1).item(-1) == row.block_table.item(-1)

    def _keep(self, lookahead: LookAheadStep, rows: list[int]) -> None:
        """Of the drafts behind it, only what goes on behind these rows."""
        lookahead.alive = rows
        for following in self.there:
            if len(rows) == len(lookahead.heads):
                return
            kept = set(rows)
            following.alive = [
                index for index in following.alive if following.follow.rows[index] in kept
            ]
            lookahead, rows = following, following.alive

    def _drop_all(self) -> None:
        self.revoke()
        self.there = []

    def _taken_back(self, lookahead: LookAheadStep) -> None:
        for _, prediction in lookahead.predictions:
            assert self._predictions is not None
            self._predictions.taken_back(prediction)


def _row(request: Request, before: int) -> Row | None:
    """Return the row of a work behind so many drafts; None: nobody knows whether it goes on."""
    continuation, file = request.continuation, request.file
    assert continuation is not None
    new = request.count + before + 1
    try:
        file.reserve(new)
    except SyscallError:
        return None
    start = file.length + new - 1
    table = file.block_table(start + 1)
    place = continuation.position(start)
    return Row(
        BLANK, place, start, table, ONLY, request.options, None, request.seed, request.matcher
    )
