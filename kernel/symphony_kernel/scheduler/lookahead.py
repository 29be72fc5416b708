"""Drafts: the steps that follow if nothing changes, given to the device before that is known.

    step N computes     its works go on: behind each token comes the next one
    draft 1             the same rows, one entry further; the device puts N's tokens in
    draft 2             behind draft 1, and so on
    N has ended         as ever: its works end, go on, and are in the queue again. What draft 1 has
                        begun to compute of them becomes the step that would be formed now.

Generations go on by themselves. A pred goes on when its program makes the next one, which is
predicted (`predictions`): the step that a draft has become takes it in when it comes, or keeps its result
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
    Candidate,
    LookAheadStep,
    Prediction,
    Predictor,
    has_waiting_calls,
)


class LookAhead:
    """The drafts behind the newest step, in order. `soon` says whether a LIP will soon answer."""

    def __init__(
        self,
        queue: FairQueue,
        batcher: Batcher,
        predictor: Predictor | None = None,
        answers_soon: Callable[[int], bool] = lambda _root: True,
    ) -> None:
        self._queue = queue
        self._batcher = batcher
        self._predictor = predictor
        self._answers_soon = answers_soon
        self.steps: list[LookAheadStep] = []  # to be looked at often
        self._adopted: LookAheadStep | None = None  # that has become the newest step

    def __len__(self) -> int:
        return len(self.steps)

    def form(self, step: Step) -> LookAheadStep | None:
        """Return a draft behind `step` and the drafts there are, if all of it is known."""
        before = len(self.steps)
        if before == DRAFTS_MAX or (before and not self.steps[-1].follow.lot):
            return None
        candidates: list[Candidate] = []
        rows, behind = [], []
        stops: list[Container[int]] = []
        lot, predictor = True, self._predictor
        for index, candidate in self._continuing(self._previous_rows(step), before):
            if isinstance(candidate, Request) and candidate.continuation is not None:
                row = _row(candidate, before)
                if row is None:
                    return None
                stops.append(candidate.continuation.stop)
            else:
                assert predictor is not None
                made = predictor.predict_after(candidate)
                if made is None:
                    continue
                candidate, row = made
                stops.append(predictor.ends)
                lot = False
            candidates.append(candidate)
            rows.append(row)
            behind.append(index)
        if not rows:
            return None
        follow = Chain(behind, stops, lot)
        lookahead = LookAheadStep(candidates, Batch(rows, follow=follow), follow)
        if not lot:
            for row_number, prediction in lookahead.predictions:
                prediction.lookahead, prediction.row = lookahead, row_number
        self.steps.append(lookahead)
        return lookahead

    def forget(self) -> None:
        """The device computes nothing: there are no drafts."""
        self.steps, self._adopted = [], None

    def revoke(self) -> None:
        """Take back those that have not begun: somebody else wants to run."""
        lookahead_steps = self.steps
        while lookahead_steps and lookahead_steps[-1].follow.revoke():
            self._revoked(lookahead_steps.pop())

    def adopt(self) -> Step | None:
        """Return what the first draft has computed of the works in the queue, as a step.

        For when the step before it has ended, and its works are in the queue again.
        """
        lookahead_steps = self.steps
        self._adopted = None
        if not lookahead_steps:
            return None
        if lookahead_steps[0].follow.revoke():  # it has not begun: nor has anything behind it
            self.revoke()
            self._revoked(lookahead_steps.pop(0))
            assert not lookahead_steps
            return None
        lookahead = lookahead_steps.pop(0)
        chunks, rows, kept, predicted = [], [], [], []
        for index in lookahead.alive:
            candidate = lookahead.candidates[index]
            if isinstance(candidate, Prediction):
                if not candidate.dropped:
                    kept.append(index)
                    predicted.append((candidate.predicted.history.tenant, candidate.start))
            elif self._is_next(candidate, lookahead.batch.rows[index]):
                self._queue.serve_fully(candidate)
                chunks.append(Chunk(candidate, 0, 1))
                rows.append(index)
                kept.append(index)
        if not kept:  # nor is anything behind it
            self._drop_all()
            return None
        self._keep(lookahead, kept)
        lookahead.step = Step(chunks, lookahead.batch, len(chunks), adopted=rows)
        lookahead.step.predicted = predicted
        self._adopted = lookahead
        return lookahead.step

    def add_claimed(self, prediction: Prediction, request: Request) -> None:
        """A claimed guess is a row of the step that its draft has become, which computes."""
        assert prediction.lookahead is not None
        step = prediction.lookahead.step
        assert step is not None
        assert step.adopted is not None
        self._queue.serve_new(request)
        step.chunks.append(Chunk(request, 0, 1))
        step.adopted.append(prediction.row)
        step.tokens += 1
        step.decodes += 1

    def step_ended(self, lookahead: LookAheadStep, results: Results) -> None:
        """A draft has ended, whatever has become of it; without results it was not computed."""
        predictor = self._predictor
        if predictor is not None and not lookahead.follow.lot:
            for row, prediction in lookahead.predictions:
                if prediction.lookahead is not lookahead or prediction.request is not None:
                    continue
                if results:
                    predictor.row_computed(prediction, results[row])
                else:
                    predictor.row_failed(prediction)
        if lookahead not in self.steps:
            # A guess knows its draft: with this circle each token left all that it was made of to
            # the collector, which rests everybody for milliseconds to find it.
            lookahead.candidates, lookahead.alive = [], []

    # -- Within --------------------------------------------------------------------------------
    def _previous_rows(self, step: Step) -> Iterable[tuple[int, Candidate]]:
        """Return whose rows come before the next draft, and which of the batch before they are."""
        if self.steps:
            lookahead: LookAheadStep | None = self.steps[-1]
        else:
            lookahead = self._adopted
        if lookahead is None or lookahead.step not in (None, step):
            return enumerate(chunk.request for chunk in step.chunks)
        return [(row, lookahead.candidates[row]) for row in lookahead.alive]

    def _continuing(
        self, candidates: Iterable[tuple[int, Candidate]], before: int
    ) -> list[tuple[int, Candidate]]:
        """Return those that go on; none at all where one may go on nobody knows how."""
        going: list[tuple[int, Candidate]] = []
        for index, candidate in candidates:
            if isinstance(candidate, Request):
                if (
                    candidate.finished or candidate.remaining
                ):  # what comes of its row is dropped, or a part
                    continue
                if candidate.continuation is not None:
                    if not candidate.continuation.goes_on(before + 1):
                        return []
                    going.append((index, candidate))
                    continue
                if candidate.recomputes or has_waiting_calls(candidate):
                    return []
            elif candidate.dropped or (
                candidate.request is not None and candidate.request.finished
            ):
                continue
            predictor = self._predictor
            if predictor is None or before:  # no more than one draft with guesses
                return []
            full = predictor.is_full(candidate)
            if not full and predictor.may_predict_after(candidate):
                going.append((index, candidate))
            elif self._answers_soon(
                candidate.root if isinstance(candidate, Request) else candidate.predicted.root
            ):
                return []  # it is worth waiting for
        return going

    def _is_next(self, request: Request, row: Row) -> bool:
        """Whether a row has computed the very entry that a work in the queue wants."""
        file = request.file
        if request.finished or request.count != 1 or file.length != row.start:
            return False
        if not self._queue.is_queued(request) or not self._batcher.readmit(request):
            return False
        return file.block_table(row.start + 1).item(-1) == row.block_table.item(-1)

    def _keep(self, lookahead: LookAheadStep, rows: list[int]) -> None:
        """Of the drafts behind it, only what goes on behind these rows."""
        lookahead.alive = rows
        for following in self.steps:
            if len(rows) == len(lookahead.candidates):
                return
            kept = set(rows)
            following.alive = [
                index for index in following.alive if following.follow.rows[index] in kept
            ]
            lookahead, rows = following, following.alive

    def _drop_all(self) -> None:
        self.revoke()
        self.steps = []

    def _revoked(self, lookahead: LookAheadStep) -> None:
        for _, prediction in lookahead.predictions:
            assert self._predictor is not None
            self._predictor.row_revoked(prediction)


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
