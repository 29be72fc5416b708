"""Predictions: preds that the kernel computes before the program asks.

A program that decodes by itself makes one pred a token: the token that its last pred on the file
gave, at the file's end, with the same options. So the next pred is known before the program has
seen the last one's result. The device computes it in a look-ahead step (`lookahead`), and its
result is used only when a pred comes that is exactly the predicted one.

    pred at entry 7 computes     prediction: entry 8, with the token that comes of it
    it has ended: token 42       the prediction is open: "42 at entry 8"; its row computes already
    pred of [42] comes           the row is the pred's: charged, reserved and ended as any other
    another pred comes           the row's result lies behind the file's end and is overwritten

A prediction changes nothing that a program, a quota or the journal could see. An entry that begins
a page is computed into a spare frame (`PagePool.take_spare`). Whether to predict is learned, by
each run's credit (docs/how-it-works/look-ahead.md).
"""

from collections.abc import Container
from dataclasses import dataclass, field
from typing import Final, TypeAlias, cast

import numpy as np

from symphony_kernel.executor.base import Batch, Int32, Row
from symphony_kernel.executor.chained_batch import BLANK, Chain
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.pages.pool import PagePool
from symphony_kernel.protocol.errno import SyscallError
from symphony_kernel.protocol.limits import PAGE_TOKENS
from symphony_kernel.protocol.pred_options import DEFAULT, Get, PredOptions
from symphony_kernel.request import Request
from symphony_kernel.scheduler.batcher import ONLY, Step

_BLANK: Final = BLANK  # mypyc finds a constant of the same module faster
_BEST_FIRST: Final = (Get.ARGMAX, Get.SAMPLE, Get.TOP)  # results that begin with a token
_AHEAD_MAX: Final = 2  # unclaimed predictions of one file
_CREDIT_MAX: Final = 64
_CREDIT_FIRST: Final = 8  # of a new run where predictions paid for the tenant's last ones
_CREDIT_LEAST: Final = -24
_TENANT_GAIN: Final = 1 / 4


@dataclass(frozen=True, slots=True)
class PredictionOptions:
    """Credit: each pred that could be predicted earns a run one."""

    least: int = 2  # below it nothing is predicted
    odd: int = 4  # cost of a pred that would not have been predicted
    vain: int = 24  # cost of a row computed for nothing: about 4% of rows may be


class Prediction:
    """A pred of one token that may come, at entry `start` of a file."""

    __slots__ = (
        "dropped", "frame", "lookahead", "moved", "predicted", "request", "result", "row",
        "start", "token",
    )  # fmt: skip

    def __init__(self, predicted: "PredictedFile", start: int) -> None:
        self.predicted = predicted
        self.start = start
        self.token = -1  # known when the pred before it has ended; then the prediction is open
        self.lookahead: LookAheadStep | None = None  # that computes it, if any
        self.row = 0  # in that step's batch
        self.frame = -1  # of its entry's page
        self.moved = 0  # `PagePool.moved` when its row was made
        self.request: Request | None = None  # that has claimed it
        self.result: bytes | SyscallError | None = None  # until it is claimed
        self.dropped = False


Candidate: TypeAlias = Request | Prediction  # what a row of a look-ahead step is for


class LookAheadStep:
    """A step that may be adopted; row i of the batch is for `candidates[i]`."""

    __slots__ = ("alive", "batch", "candidates", "follow", "step")

    def __init__(self, candidates: list[Candidate], batch: Batch, follow: Chain) -> None:
        self.candidates = candidates
        self.batch = batch
        self.follow = follow
        self.alive = list(range(len(candidates)))  # rows that can still be adopted
        self.step: Step | None = None  # what it was adopted as

    @property
    def predictions(self) -> list[tuple[int, Prediction]]:
        return [
            (row, candidate)
            for row, candidate in enumerate(self.candidates)
            if isinstance(candidate, Prediction)
        ]


@dataclass(slots=True, eq=False)
class PredictedFile:
    """The predicted preds of one file, entry after entry."""

    file: KVFile
    root: int
    instance: int
    history: "RunHistory"
    options: PredOptions
    seed: int
    predictions: list[Prediction] = field(default_factory=list)
    spare: int = -1  # the frame of the page that the file will take next


@dataclass(slots=True)
class RunHistory:
    """How well a run's preds could be predicted."""

    tenant: str
    credit: int
    sum: int = 0  # of all credit that predicting everything would have earned and cost
    predicted_files: "dict[KVFile, PredictedFile]" = field(default_factory=dict)

    def add(self, credit: int) -> None:
        self.sum += credit
        now = self.credit + credit
        if now > _CREDIT_MAX:
            now = _CREDIT_MAX
        self.credit = now if now > _CREDIT_LEAST else _CREDIT_LEAST


class Predictor:
    """Predicts the preds of all files.

    `entries_max` is the longest file. No pred is predicted after a token in `ends`.
    """

    def __init__(
        self,
        pool: PagePool,
        entries_max: int,
        ends: Container[int],
        options: PredictionOptions,
    ) -> None:
        self._pool = pool
        self._options = options
        self._positions: Int32 = np.arange(entries_max, dtype=np.int32)
        self._positions.flags.writeable = False
        self.ends = ends
        self._predicted_files: dict[KVFile, PredictedFile] = {}
        self._histories: dict[int, RunHistory] = {}  # by root
        self._tenants: dict[str, float] = {}  # whether it paid for their last runs, in [-1, 1]
        self.hits = 0  # preds whose result was computed before they came
        self.misses = 0  # rows computed for nothing

    # -- Preds that come and end ----------------------------------------------------------------
    def expect_next(self, request: Request, result: bytes) -> None:
        """Open the prediction after a pred that has ended: its token is known now."""
        file = cast(KVFile, request.file)
        predicted = self._predicted_files.get(file)
        if predicted is None:
            if not _is_predictable(request):
                return
            predicted = self._new_file(request)
        if not predicted.predictions:
            predicted.predictions.append(Prediction(predicted, file.length))
        prediction = predicted.predictions[0]
        assert prediction.token < 0
        prediction.token = result[0] | result[1] << 8 | result[2] << 16 | result[3] << 24

    def claim(self, request: Request) -> Prediction | None:
        """Return the prediction that computes a new pred, if there is one.

        In any case the pred is no longer predicted. `settle` must follow.
        """
        predicted = self._predicted_files.get(cast(KVFile, request.file))
        if predicted is None:
            return None
        prediction = predicted.predictions[0] if predicted.predictions else None
        if prediction is None or not _is_predicted(prediction, request):
            predicted.history.add(-self._options.odd)
            self._drop_predictions(predicted)
            return None
        predicted.history.add(1)
        lookahead = prediction.lookahead
        if lookahead is None:
            predicted.predictions.clear()
            self._forget_if_empty(predicted)
            return None
        if (
            lookahead.step is None and prediction.result is None
        ) or prediction.moved != self._pool.frame_version:
            self._drop_predictions(predicted)
            return None
        del predicted.predictions[0]
        prediction.request = request
        return prediction

    def settle(self, prediction: Prediction, *, admitted: bool) -> bool:
        """Give a claimed prediction to its pred; return whether its result is valid.

        `admitted`: the pred's file has room for its entry. When it is not valid the pred must be
        computed.
        """
        if admitted and self._is_in_place(prediction):
            self.hits += 1
            return True
        prediction.request = None
        prediction.predicted.predictions.insert(0, prediction)
        self._drop_predictions(prediction.predicted)
        return False

    def _is_in_place(self, prediction: Prediction) -> bool:
        """Return whether the file's reserved entry is in the frame that the row wrote to.

        A spare frame becomes the file's.
        """
        predicted, file = prediction.predicted, prediction.predicted.file
        if predicted.spare >= 0 and prediction.frame == predicted.spare:
            predicted.spare = -1
            return file.use_spare(prediction.frame, predicted)
        return file.frame_of(prediction.start) == prediction.frame

    def _new_file(self, request: Request) -> PredictedFile:
        file = cast(KVFile, request.file)
        history = self._history(request)
        predicted = PredictedFile(
            file, request.root, request.instance, history, request.options, request.seed
        )
        self._predicted_files[file] = history.predicted_files[file] = predicted
        return predicted

    # -- Rows -----------------------------------------------------------------------------------
    def may_predict_after(self, before: Candidate) -> bool:
        """Whether the pred after another pred or prediction is worth predicting."""
        if isinstance(before, Prediction):
            predicted, start = before.predicted, before.start + 1
            history = predicted.history
            if before.request is None and len(predicted.predictions) >= _AHEAD_MAX:
                return False
        else:
            if not _is_predictable(before):
                return False
            history, start = self._history(before), before.file.length + before.count
        return history.credit >= self._options.least and start < len(self._positions)

    def predict_after(self, before: Candidate) -> tuple[Prediction, Row] | None:
        """Return the prediction after a row in a step, and its own row.

        None: there is no frame for its entry.
        """
        if isinstance(before, Prediction):
            start, seed, options = before.start + 1, before.predicted.seed, before.predicted.options
            file, request = before.predicted.file, before.request
        else:
            file, request = cast(KVFile, before.file), before
            start, seed, options = file.length + before.count, before.seed, before.options
        predicted = self._predicted_files.get(file)
        if predicted is None:
            assert request is not None
            predicted = self._new_file(request)
        table = self._table(predicted, start)
        if table is None:
            self._forget_if_empty(predicted)
            return None
        prediction = predicted.predictions[-1] if predicted.predictions else None
        if prediction is None or prediction.start != start:
            prediction = Prediction(predicted, start)
            predicted.predictions.append(prediction)
        prediction.frame, prediction.moved = table.item(-1), self._pool.frame_version
        position = self._positions[start : start + 1]
        return prediction, Row(_BLANK, position, start, table, ONLY, options, None, seed)

    def _table(self, predicted: PredictedFile, start: int) -> Int32 | None:
        file = predicted.file
        if self._pool.absent and len(file.absent_pages()):
            return None
        there = file._count  # noqa: SLF001 - of `pages`, without an array
        if there > start // PAGE_TOKENS:
            return file.block_table(start + 1)
        if predicted.spare < 0:
            spare = self._pool.take_spare(predicted)
            if spare is None:
                return None
            predicted.spare = spare
        elif not self._pool.has_spare(predicted.spare, predicted):
            return None  # it was taken; rows behind this one would be computed into it
        frames = file.block_table(there * PAGE_TOKENS)
        return np.append(frames, np.int32(predicted.spare))

    # -- Look-ahead steps -----------------------------------------------------------------------
    def row_revoked(self, prediction: Prediction) -> None:
        """Record that no device will compute a prediction; its pred is still expected."""
        prediction.lookahead = None
        predicted = prediction.predicted
        if prediction.dropped:
            predicted.history.add(self._options.vain)
            return
        if predicted.predictions[0] is not prediction:
            predicted.predictions.remove(prediction)
        elif predicted.spare >= 0:
            self._pool.free_spare(predicted.spare, predicted)
            predicted.spare = -1

    def row_computed(self, prediction: Prediction, result: bytes | SyscallError) -> None:
        if prediction.dropped:
            self.misses += 1
        else:
            prediction.result = result

    def row_failed(self, prediction: Prediction) -> None:
        if prediction.request is None and not prediction.dropped:
            self._drop_predictions(prediction.predicted)

    # -- Ends -----------------------------------------------------------------------------------
    def drop_file(self, file: object) -> None:
        predicted = self._predicted_files.get(cast(KVFile, file))
        if predicted is not None:
            self._drop_predictions(predicted)

    def drop_requests(self, root: int, instance: int | None = None) -> None:
        history = self._histories.get(root)
        if history is None:
            return
        for predicted in list(history.predicted_files.values()):
            if instance in (None, predicted.instance):
                self._drop_predictions(predicted)
        if instance is not None:
            return
        del self._histories[root]
        if history.sum:
            before = self._tenants.get(history.tenant, 0.0)
            paid = 1.0 if history.sum > 0 else -1.0
            self._tenants[history.tenant] = before + (paid - before) * _TENANT_GAIN

    def _history(self, request: Request) -> RunHistory:
        history = self._histories.get(request.root)
        if history is None:
            paid = self._tenants.get(request.tenant, 0.0)
            first = _CREDIT_FIRST if paid > 0 else _CREDIT_LEAST if paid < 0 else 0
            history = self._histories[request.root] = RunHistory(request.tenant, first)
        return history

    def _drop_predictions(self, predicted: PredictedFile) -> None:
        for prediction in predicted.predictions:
            prediction.dropped = True
            if prediction.lookahead is not None:  # `row_revoked` gives it back
                predicted.history.add(-self._options.vain)
            else:  # what it would have cost
                predicted.history.sum -= self._options.vain
            self.misses += prediction.result is not None
        predicted.predictions.clear()
        self._forget_if_empty(predicted)

    def _forget_if_empty(self, predicted: PredictedFile) -> None:
        if not predicted.predictions:
            if predicted.spare >= 0:
                self._pool.free_spare(predicted.spare, predicted)
                predicted.spare = -1
            self._predicted_files.pop(predicted.file, None)
            predicted.history.predicted_files.pop(predicted.file, None)


def _is_predictable(request: Request) -> bool:
    """Whether a pred's result determines the next pred."""
    options = request.options
    if request.continuation is not None or request.recomputes or request.matcher is not None:
        return False
    if options is DEFAULT:  # as most are
        return True
    if options.at != "last" or not options.keep:
        return False
    if options.get not in _BEST_FIRST or options.parents is not None:
        return False
    if options.get is Get.TOP and not options.top:
        return False
    sampling = options.sampling
    return not (options.get is Get.SAMPLE and sampling is not None and sampling.seed is None)


def _is_predicted(prediction: Prediction, request: Request) -> bool:
    predicted = prediction.predicted
    return (
        request.count == 1
        and request.continuation is None
        and request.file.length == prediction.start
        and (request.token if request.token >= 0 else request.tokens.item()) == prediction.token
        and (request.position if request.token >= 0 else request.positions.item())
        == prediction.start
        and (request.options is predicted.options or request.options == predicted.options)
        and request.seed == predicted.seed
    )


def has_waiting_calls(request: Request) -> bool:
    """Whether calls wait behind a pred on its file: they come before its next pred."""
    queue = cast(KVFile, request.file).queue
    return queue is not None and len(queue) > 1
