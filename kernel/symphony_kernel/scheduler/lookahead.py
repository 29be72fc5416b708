"""Look-ahead steps: given to the device before the step in front of them ends.

    step N computes       its requests continue: after each token comes the next one
    look-ahead step 1     the same rows, one entry further; the device fills in N's tokens
    look-ahead step 2     behind look-ahead step 1, and so on
    N has ended           its requests end, continue and are queued again as always; the rows of
                          look-ahead step 1 that belong to them are adopted as the next step

A row's candidate comes from one of two sources. A generation continues by itself. A pred continues
when its program makes the next one, which is predicted (`prediction`): the adopted step takes the
pred in when it comes, or keeps the result for it. So the loop must learn of each step with
predictions at once, and there is at most one of them ahead.

A look-ahead step changes nothing before the step in front of it has ended. It is formed while no
other request wants to run, and revoked when one comes (docs/how-it-works/look-ahead.md).

On a device that launches steps ahead, a launched step is not revoked: new requests join the step
behind it. That one is formed while the launched one computes. It is *mixed*: rows that continue
the step in front, and behind them the chunks of queued requests, which are served at once.
"""

from collections.abc import Callable, Container, Iterable

from symphony_kernel.executor.base import Batch, Results, Row
from symphony_kernel.executor.chained_batch import BLANK, Chain
from symphony_kernel.fairness.fair_queue import FairQueue
from symphony_kernel.protocol.errno import SyscallError
from symphony_kernel.protocol.limits import LOOKAHEAD_STEPS_MAX
from symphony_kernel.request import Request
from symphony_kernel.scheduler.admission import Admission
from symphony_kernel.scheduler.batcher import ONLY, Chunk, Step
from symphony_kernel.scheduler.prediction import (
    Candidate,
    LookAheadStep,
    Prediction,
    Predictor,
    has_waiting_calls,
)


class LookAhead:
    """The look-ahead steps behind the newest step, in order.

    `answers_soon` tells whether a run usually sends its next pred soon.
    """

    def __init__(
        self,
        queue: FairQueue,
        admission: Admission,
        predictor: Predictor | None = None,
        answers_soon: Callable[[int], bool] = lambda _root: True,
        launches_ahead: bool = False,
    ) -> None:
        self._queue = queue
        self._admission = admission
        self._predictor = predictor
        self._answers_soon = answers_soon
        self._launches_ahead = launches_ahead
        self.steps: list[LookAheadStep] = []  # public because it is read once per request
        self._adopted: LookAheadStep | None = None  # that has become the newest step

    def __len__(self) -> int:
        return len(self.steps)

    def form(self, step: Step) -> LookAheadStep | None:
        """Return a step behind `step` and the look-ahead steps, if all of it is known."""
        ahead = len(self.steps)
        if ahead == LOOKAHEAD_STEPS_MAX or (ahead and not self.steps[-1].follow.may_batch_delivery):
            return None
        candidates: list[Candidate] = []
        rows, previous = [], []
        stops: list[Container[int]] = []
        batched, predictor = True, self._predictor
        for index, candidate in self._continuing(self._previous_rows(step), ahead):
            if isinstance(candidate, Request) and candidate.continuation is not None:
                row = _generation_row(candidate, ahead)
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
                batched = False
            candidates.append(candidate)
            rows.append(row)
            previous.append(index)
        if not rows:
            return None
        follow = Chain(previous, stops, batched)
        lookahead = LookAheadStep(candidates, Batch(rows, chain=follow), follow)
        if not batched:
            for row_number, prediction in lookahead.predictions:
                prediction.lookahead, prediction.row = lookahead, row_number
        self.steps.append(lookahead)
        return lookahead

    def continuing_generations(self, step: Step) -> list[tuple[int, Request]] | None:
        """Return the generations that continue `step`: batch index and request.

        None: another row may continue soon, in a way that is not known.
        """
        found: list[tuple[int, Request]] = []
        for index, candidate in self._previous_rows(step):
            if not isinstance(candidate, Request):
                return None
            if candidate.finished or candidate.remaining:  # its next chunk is in the queue
                continue
            continuation = candidate.continuation
            if continuation is None:
                if candidate.recomputes or self._answers_soon(candidate.root):
                    return None
            elif continuation.continues(1):
                found.append((index, candidate))
            elif not continuation.ends(1):
                return None
        return found

    def join(
        self, before: Step, continuing: list[tuple[int, Request]], step: Step
    ) -> LookAheadStep:
        """Return a formed step as the mixed step behind the newest one, `before`."""
        candidates: list[Candidate] = []
        rows, previous = [], []
        stops: list[Container[int]] = []
        for index, request in continuing:
            row = _generation_row(request, 0)
            if row is None:  # it is in the step behind
                continue
            assert request.continuation is not None
            candidates.append(request)
            rows.append(row)
            previous.append(index)
            stops.append(request.continuation.stop)
        count = len(rows)
        follow = Chain(previous, stops, may_batch_delivery=False, before=before.batch)
        step.batch = Batch([*rows, *step.batch.rows], chain=follow)
        candidates.extend(chunk.request for chunk in step.chunks)
        step.adopted = list(range(count, len(candidates)))
        step.own = len(step.chunks)
        lookahead = LookAheadStep(candidates, step.batch, follow)
        lookahead.step = step
        self.steps.append(lookahead)
        return lookahead

    def forget(self) -> None:
        """Drop all look-ahead steps: the device computes nothing."""
        self.steps, self._adopted = [], None

    def revoke(self) -> None:
        """Revoke the steps that the device has not started: another request wants to run."""
        steps = self.steps
        while steps and steps[-1].follow.revoke():
            self._revoked(steps.pop())

    def adopt(self) -> Step | None:
        """Return the rows of the first look-ahead step that queued requests want.

        Called when the step in front of it has ended and its requests are in the queue again.
        """
        steps = self.steps
        self._adopted = None
        if not steps:
            return None
        if steps[0].follow.revoke():  # the device has not started it, nor anything behind it
            while steps:
                steps[-1].follow.revoke()
                self._revoked(steps.pop())
            return None
        lookahead = steps.pop(0)
        chunks, rows, kept, predicted = [], [], [], []
        following = len(lookahead.follow.rows)
        for index in lookahead.alive:
            if index >= following:  # of a mixed step's own
                kept.append(index)
                continue
            candidate = lookahead.candidates[index]
            if isinstance(candidate, Prediction):
                if not candidate.dropped:
                    kept.append(index)
                    predicted.append((candidate.predicted.history.tenant, candidate.start))
            elif self._is_wanted(candidate, lookahead.batch.rows[index]):
                self._queue.extend(candidate, candidate.remaining)
                chunks.append(Chunk(candidate, 0, 1))
                rows.append(index)
                kept.append(index)
        if not kept:  # so nothing behind it is wanted, either
            self.revoke()
            self.steps = []
            return None
        self._keep_rows(lookahead, kept)
        self._adopted = lookahead
        mixed = lookahead.step
        if mixed is not None:
            assert mixed.adopted is not None
            mixed.chunks += chunks
            mixed.adopted += rows
            mixed.tokens += len(chunks)
            return mixed
        lookahead.step = Step(chunks, lookahead.batch, len(chunks), adopted=rows)
        lookahead.step.predicted = predicted
        return lookahead.step

    def add_claimed(self, prediction: Prediction, request: Request) -> None:
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
        """Keep the results of unclaimed predictions; no results: it was not computed."""
        predictor = self._predictor
        if predictor is not None and not lookahead.follow.may_batch_delivery:
            for row, prediction in lookahead.predictions:
                if prediction.lookahead is not lookahead or prediction.request is not None:
                    continue
                if results:
                    predictor.row_computed(prediction, results[row])
                else:
                    predictor.row_failed(prediction)
        if lookahead not in self.steps:
            # Break the cycle of a prediction and its step. Each token left one to the garbage
            # collector, which then stopped the kernel for milliseconds.
            lookahead.candidates, lookahead.alive = [], []

    # -- Internal ------------------------------------------------------------------------------
    def _previous_rows(self, step: Step) -> Iterable[tuple[int, Candidate]]:
        """Return the rows in front of the next look-ahead step: batch index and candidate."""
        lookahead = self.steps[-1] if self.steps else self._adopted
        if lookahead is None or lookahead.step not in (None, step):
            return enumerate(chunk.request for chunk in step.chunks)
        return [(row, lookahead.candidates[row]) for row in lookahead.alive]

    def _continuing(
        self, rows: Iterable[tuple[int, Candidate]], ahead: int
    ) -> list[tuple[int, Candidate]]:
        """Return the rows that continue; none where one may continue in an unknown way."""
        continuing: list[tuple[int, Candidate]] = []
        for index, candidate in rows:
            if isinstance(candidate, Request):
                if candidate.finished or candidate.remaining:  # its result is dropped, or partial
                    continue
                if candidate.continuation is not None:
                    if not candidate.continuation.continues(ahead + 1):
                        if self._launches_ahead and candidate.continuation.ends(ahead + 1):
                            continue  # the others do not wait for what its program does then
                        return []
                    continuing.append((index, candidate))
                    continue
                if candidate.recomputes or has_waiting_calls(candidate):
                    return []
                root = candidate.root
            elif candidate.dropped or (candidate.request and candidate.request.finished):
                continue
            else:
                root = candidate.predicted.root
            predictor = self._predictor
            if predictor is None or ahead:  # at most one look-ahead step has predictions
                return []
            if predictor.may_predict_after(candidate):
                continuing.append((index, candidate))
            elif self._answers_soon(root):
                return []  # waiting for its pred costs less than a step without it
        return continuing

    def _is_wanted(self, request: Request, row: Row) -> bool:
        """Whether a row has computed the entry that a queued request wants."""
        file = request.file
        if request.finished or request.count != 1 or file.length != row.start:
            return False
        if not self._queue.is_queued(request) or not self._admission.readmit(request):
            return False
        return file.block_table(row.start + 1).item(-1) == row.block_table.item(-1)

    def _keep_rows(self, lookahead: LookAheadStep, rows: list[int]) -> None:
        """Keep only these rows, and in the steps behind only what follows them."""
        lookahead.alive = rows
        for following in self.steps:
            if len(rows) == len(lookahead.candidates):
                return
            kept = set(rows)
            following.alive = [
                index for index in following.alive if following.follow.rows[index] in kept
            ]
            lookahead, rows = following, following.alive

    def _revoked(self, lookahead: LookAheadStep) -> None:
        for _, prediction in lookahead.predictions:
            assert self._predictor is not None
            self._predictor.row_revoked(prediction)


def _generation_row(request: Request, ahead: int) -> Row | None:
    """Return a generation's row behind so many look-ahead steps; None: it has no room."""
    continuation, file = request.continuation, request.file
    assert continuation is not None
    new = request.count + ahead + 1
    try:
        file.reserve(new)
    except SyscallError:
        return None
    start = file.length + new - 1
    table = file.block_table(start + 1)
    position = continuation.position(start)
    return Row(
        BLANK, position, start, table, ONLY, request.options, None, request.seed, request.matcher
    )
