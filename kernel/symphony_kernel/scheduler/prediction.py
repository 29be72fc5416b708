"""Guesses: preds that have not come, computed as soon as their tokens are known.

A program that decodes by itself makes one pred a token: the token that its last pred on the file
gave, at the file's end, with the same options. So the next one is known before the program has
seen the last one's result. The device computes it as part of a draft (`lookahead`), and nobody
hears of it until a pred comes that says the very same.

    pred at entry 7 computes     guess: entry 8, with whatever token comes of it
    it has ended: token 42       the guess is open: "42 at entry 8"; its row computes already
    pred of [42] comes           the row is its own: charged, reserved and ended as any pred's
    anything else comes          what was computed lies behind the file's end, and is written over

A guess changes nothing that a program, a quota or the journal could see: no page, no entry, no
service. An entry that begins a page is computed into a spare frame (`PagePool.take_spare`), which
whoever wants frames gets as if it were free. A file that is edited is guessed about no more.

Who is guessed about is learned: each pred that is what would have been guessed earns its LIP
credit, and each row that was computed for nothing costs many times that. A LIP begins with a
little where guessing has paid for its tenant's last ones, and with debts where it has not.
"""

from collections.abc import Container
from dataclasses import dataclass, field
from typing import Final, TypeAlias, cast

import numpy as np

from symphony_kernel.executor.base import Batch, Executor, Int32, Row
from symphony_kernel.executor.chained_batch import BLANK, Chain
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.filesystem import KVFS
from symphony_kernel.kvfs.pages.pool import PagePool
from symphony_kernel.protocol.errno import SyscallError
from symphony_kernel.protocol.limits import FILE_ENTRIES_MAX, PAGE_TOKENS
from symphony_kernel.protocol.pred_options import DEFAULT, Get, PredOptions
from symphony_kernel.request import Request
from symphony_kernel.scheduler.batcher import ONLY, Step

_BLANK: Final = BLANK  # a constant of this module's is found at once
_BEST_FIRST: Final = (Get.ARGMAX, Get.SAMPLE, Get.TOP)  # results that begin with a token
_AHEAD_MAX: Final = 2  # guesses of a file that nobody has claimed
_CREDIT_MAX: Final = 64
_CREDIT_FIRST: Final = 8  # of a LIP that begins where it has paid for the tenant's others
_CREDIT_LEAST: Final = -24
_TENANT_GAIN: Final = 1 / 4


@dataclass(frozen=True, slots=True)
class PredictionOptions:
    """What LIPs' preds are guessed from: credit, of which each that could be guessed earns one."""

    least: int = 2  # to be guessed about
    odd: int = 4  # what a pred costs that would not have been guessed
    vain: int = 24  # and a row that was computed for nothing: about 4% of rows may be


class Prediction:
    """One pred that may come: of one token, at entry `start` of its line's file."""

    __slots__ = (
        "dropped",
        "frame",
        "lookahead",
        "moved",
        "open",
        "predicted",
        "request",
        "result",
        "row",
        "start",
        "token",
    )  # fmt: skip

    def __init__(self, predicted: "PredictedFile", start: int) -> None:
        self.predicted = predicted
        self.start = start
        self.token = -1  # known when it is open
        self.open = False  # the pred before it has ended well, and the file is as it left it
        self.lookahead: LookAheadStep | None = None  # that computes it; None: nothing does
        self.row = 0  # of the draft
        self.frame = -1  # of its entry's page
        self.moved = 0  # the pool's count when its row was made
        self.request: Request | None = None  # that has claimed it
        self.result: bytes | SyscallError | None = None  # while nobody has claimed it
        self.dropped = False


Candidate: TypeAlias = Request | Prediction  # whose row it is


class LookAheadStep:
    """A step that may be; `candidates[i]` has row i of the batch."""

    __slots__ = ("alive", "batch", "candidates", "follow", "step")

    def __init__(self, candidates: list[Candidate], batch: Batch, follow: Chain) -> None:
        self.candidates = candidates
        self.batch = batch
        self.follow = follow
        self.alive = list(range(len(candidates)))  # rows behind rows computed for their works
        self.step: Step | None = None  # what it has become

    @property
    def predictions(self) -> list[tuple[int, Prediction]]:
        """Its rows that are guesses'."""
        return [
            (row, candidate)
            for row, candidate in enumerate(self.candidates)
            if isinstance(candidate, Prediction)
        ]


@dataclass(slots=True, eq=False)
class PredictedFile:
    """What the next preds on a file are expected to be: one entry behind the other."""

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
    """How well a LIP's preds could be guessed."""

    tenant: str
    credit: int
    sum: int = 0  # of all that it would have earned and cost if all of it had been guessed
    predicted_files: "dict[KVFile, PredictedFile]" = field(default_factory=dict)

    def add(self, credit: int) -> None:
        """Add what a pred, or the lack of one, has shown."""
        self.sum += credit
        now = self.credit + credit
        if now > _CREDIT_MAX:
            now = _CREDIT_MAX
        self.credit = now if now > _CREDIT_LEAST else _CREDIT_LEAST


class Predictor:
    """All files' lines. `entries_max` is of any file; tokens of `ends` are not gone on behind."""

    def __init__(
        self,
        pool: PagePool,
        entries_max: int,
        ends: Container[int] = (),
        options: PredictionOptions | None = None,
    ) -> None:
        self._pool = pool
        self._options = options or PredictionOptions()
        self._positions: Int32 = np.arange(entries_max, dtype=np.int32)
        self._positions.flags.writeable = False
        self.ends = ends
        self._predicted_files: dict[KVFile, PredictedFile] = {}
        self._histories: dict[int, RunHistory] = {}  # of LIPs
        self._tenants: dict[str, float] = {}  # whether it paid for their last LIPs, in [-1, 1]
        self.hits = 0  # preds that were computed before they came
        self.misses = 0  # rows that were computed for none

    @classmethod
    def for_executor(
        cls, executor: Executor, kvfs: KVFS, options: PredictionOptions | None
    ) -> "Predictor | None":
        """Return what guesses preds on these files; None where the device goes from step to step
        on nobody's behalf, or without `options`.
        """
        if options is None or not getattr(executor, "follows", False):
            return None
        model = executor.model
        entries_max = min(FILE_ENTRIES_MAX, model.max_context)
        predictor = cls(kvfs.pool, entries_max, frozenset(model.eos), options)
        kvfs.hear_of_edits(predictor.drop_file)
        return predictor

    # -- What preds show ------------------------------------------------------------------------
    def expect_next(self, request: Request, result: bytes) -> None:
        """A pred has ended well: what is expected behind it has its token now."""
        file = cast(KVFile, request.file)
        predicted = self._predicted_files.get(file)
        if predicted is None:
            if not _is_predictable(request):
                return
            predicted = self._new_file(request)
        if not predicted.predictions:
            predicted.predictions.append(Prediction(predicted, file.length))
        prediction = predicted.predictions[0]
        assert not prediction.open
        prediction.token = result[0] | result[1] << 8 | result[2] << 16 | result[3] << 24
        prediction.open = True

    def claim(self, request: Request) -> Prediction | None:
        """Return the guess that computes a pred which has just come, if there is one.

        Either way the pred is no longer expected.
        """
        predicted = self._predicted_files.get(cast(KVFile, request.file))
        if predicted is None:
            return None
        prediction = predicted.predictions[0] if predicted.predictions else None
        if prediction is None or not (prediction.open and _is_predicted(prediction, request)):
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
        ) or prediction.moved != self._pool.moved:
            self._drop_predictions(predicted)
            return None
        del predicted.predictions[0]
        prediction.request = request
        return prediction

    def settle(self, prediction: Prediction) -> bool:
        """The file of a claimed guess has room for it: see that it lies where it was computed."""
        predicted, file = prediction.predicted, prediction.predicted.file
        if predicted.spare >= 0 and prediction.frame == predicted.spare:
            predicted.spare = -1
            return file.use_spare(prediction.frame, predicted)
        return file.frame_of(prediction.start) == prediction.frame

    def claimed(self) -> None:
        """A claimed guess is a pred's from now on: its line goes on when that has ended."""
        self.hits += 1

    def not_settled(self, prediction: Prediction) -> None:
        """A claimed guess was computed for nothing: the pred has to be computed as any."""
        prediction.request = None
        prediction.predicted.predictions.insert(0, prediction)
        self._drop_predictions(prediction.predicted)

    def _new_file(self, request: Request) -> PredictedFile:
        file = cast(KVFile, request.file)
        history = self._history(request)
        predicted = PredictedFile(
            file, request.root, request.instance, history, request.options, request.seed
        )
        self._predicted_files[file] = history.predicted_files[file] = predicted
        return predicted

    # -- Rows -----------------------------------------------------------------------------------
    def may_predict_after(self, before: Request | Prediction) -> bool:
        """Whether the pred behind another one, or behind a guess, is to be guessed."""
        if isinstance(before, Prediction):
            predicted, start = before.predicted, before.start + 1
            history = predicted.history
        else:
            if not _is_predictable(before):
                return False
            history, start = self._history(before), before.file.length + before.count
        return history.credit >= self._options.least and start < len(self._positions)

    def is_full(self, before: Request | Prediction) -> bool:
        """Whether enough was guessed behind what has come."""
        return (
            isinstance(before, Prediction)
            and before.request is None
            and len(before.predicted.predictions) >= (_AHEAD_MAX)
        )

    def predict_after(self, before: Request | Prediction) -> tuple[Prediction, Row] | None:
        """Return a guess behind another one or a pred in a step, and its row.

        None: its entry has no place.
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
        prediction.frame, prediction.moved = table.item(-1), self._pool.moved
        position = self._positions[start : start + 1]
        return prediction, Row(_BLANK, position, start, table, ONLY, options, None, seed)

    def _table(self, predicted: PredictedFile, start: int) -> Int32 | None:
        """Return the frames for the entries up to `start`, that one included."""
        file = predicted.file
        if self._pool.absent and len(file.absent_pages()):
            return None
        there = file._count  # noqa: SLF001 - of `pages`, of which no array is wanted
        if there > start // PAGE_TOKENS:
            return file.block_table(start + 1)
        if predicted.spare < 0:
            spare = self._pool.take_spare(predicted)
            if spare is None:
                return None
            predicted.spare = spare
        elif not self._pool.has_spare(predicted.spare, predicted):
            return None  # somebody wanted it, and what is behind this guess would be computed there
        frames = file.block_table(there * PAGE_TOKENS)
        return np.append(frames, np.int32(predicted.spare))

    # -- Drafts ---------------------------------------------------------------------------------
    def row_revoked(self, prediction: Prediction) -> None:
        """The draft that was to compute a guess will not: the pred is expected all the same."""
        prediction.lookahead = None
        predicted = prediction.predicted
        if prediction.dropped:
            predicted.history.add(self._options.vain)
            return
        if predicted.predictions[0] is not prediction:
            predicted.predictions.remove(prediction)
        elif predicted.spare >= 0:
            self._pool.leave_spare(predicted.spare, predicted)
            predicted.spare = -1

    def row_computed(self, prediction: Prediction, result: bytes | SyscallError) -> None:
        """The draft of a guess that nobody has claimed has ended."""
        if prediction.dropped:
            self.misses += 1
        else:
            prediction.result = result

    def row_failed(self, prediction: Prediction) -> None:
        """The device has failed at the draft of a guess."""
        if prediction.request is None and not prediction.dropped:
            self._drop_predictions(prediction.predicted)

    # -- Ends -----------------------------------------------------------------------------------
    def drop_file(self, file: object) -> None:
        """Nothing more is known of a file's next preds."""
        predicted = self._predicted_files.get(cast(KVFile, file))
        if predicted is not None:
            self._drop_predictions(predicted)

    def drop_requests(self, root: int, instance: int | None = None) -> None:
        """An instance, or a whole LIP, has ended."""
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
            if prediction.lookahead is not None:  # unless that is taken back
                predicted.history.add(-self._options.vain)
            else:  # as it would have been
                predicted.history.sum -= self._options.vain
            self.misses += prediction.result is not None
        predicted.predictions.clear()
        self._forget_if_empty(predicted)

    def _forget_if_empty(self, predicted: PredictedFile) -> None:
        """Forget a line without guesses."""
        if not predicted.predictions:
            if predicted.spare >= 0:
                self._pool.leave_spare(predicted.spare, predicted)
                predicted.spare = -1
            self._predicted_files.pop(predicted.file, None)
            predicted.history.predicted_files.pop(predicted.file, None)


def _is_predictable(request: Request) -> bool:
    """Whether a pred could be one of a course: its token is the next one's, where it ends."""
    options = request.options
    if request.continuation is not None or request.recomputes or request.matcher is not None:
        return False
    if options is DEFAULT:  # as most
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
    """Whether a pred that has come is the one that was expected."""
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
    """Whether other calls wait behind a pred on its file: they come before any that is guessed."""
    queue = cast(KVFile, request.file).queue
    return queue is not None and len(queue) > 1
