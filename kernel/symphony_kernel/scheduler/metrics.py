"""Scheduler metrics: counted once a step over its rows, nothing a token.

    first token     from a run's first pred, submitted, to the first of its preds that gave a
                    distribution or a token: queue, prefill and step; once a run
    between tokens  from the end of a file's pred to the end of its next one of a single token:
                    what a reader of one stream waits, the program's own part included
    step            rows, new tokens and seconds of each step

Most rows of a step have files that were last computed in the same step. These rows are one
observation, so a step costs a few bisections, however many rows it has.
"""

from symphony_kernel.protocol.histogram import (
    BETWEEN_TOKENS_SECONDS,
    FIRST_TOKEN_SECONDS,
    STEP_ROWS,
    STEP_SECONDS,
    STEP_TOKENS,
    Histogram,
)
from symphony_kernel.protocol.pred_options import Get
from symphony_kernel.request import Request
from symphony_kernel.scheduler.batcher import Step


class SchedulerMetrics:
    """Counters and histograms since the start. Times are clock seconds."""

    def __init__(self) -> None:
        self.steps = 0
        self.rows = 0
        self.decode_rows = 0
        self.decode_steps = 0  # with at least one decode row
        self.prefill_tokens = 0
        self.preds = 0  # that ended without an error
        self.starved = 0  # that ended with ENOMEM so that others could run
        self.step_seconds = 0.0
        self.histograms = {
            "time_to_first_token_seconds": Histogram(FIRST_TOKEN_SECONDS),
            "inter_token_latency_seconds": Histogram(BETWEEN_TOKENS_SECONDS),
            "step_rows": Histogram(STEP_ROWS),
            "step_tokens": Histogram(STEP_TOKENS),
            "step_seconds": Histogram(STEP_SECONDS),
        }
        self.runs: set[int] = set()  # that have submitted a pred
        self._first: dict[int, float] = {}  # runs without a first token: when they submitted
        self._now = 0.0
        self._gaps: dict[float, int] = {}  # rows of this step by when their files were computed
        self._before, self._rows = 0.0, 0  # the newest of these: most rows have the same

    def submitted(self, root: int, now: float) -> None:
        self.runs.add(root)
        self._first[root] = now

    def forget_run(self, root: int) -> None:
        self.runs.discard(root)
        self._first.pop(root, None)

    def completing(self, now: float) -> None:
        """Start counting a step that has ended: `finished` follows, then `stepped`."""
        self._now = now

    def finished(self, request: Request) -> None:
        file = request.file
        if request.count == 1:
            before = file.computed_at
            if before:
                if before != self._before:
                    self._note_gap()
                    self._before = before
                self._rows += 1
        file.computed_at = self._now
        self.preds += 1
        if self._first and request.options.get is not Get.NONE:
            since = self._first.pop(request.root, None)
            if since is not None:
                self.histograms["time_to_first_token_seconds"].add(self._now - since)

    def predicted(self, request: Request) -> None:
        assert request.count == 1
        self.rows += 1
        self.decode_rows += 1

    def stepped(self, step: Step, seconds: float) -> None:
        self._note_gap()
        for before, rows in self._gaps.items():
            self.histograms["inter_token_latency_seconds"].add(self._now - before, rows)
        self._gaps.clear()
        self.steps += 1
        self.rows += len(step.chunks)
        self.decode_rows += step.decodes
        self.decode_steps += step.decodes > 0
        self.prefill_tokens += step.tokens - step.decodes
        self.step_seconds += seconds
        self.histograms["step_rows"].add(len(step.chunks))
        self.histograms["step_tokens"].add(step.tokens)
        self.histograms["step_seconds"].add(seconds)

    def _note_gap(self) -> None:
        if self._rows:
            self._gaps[self._before] = self._gaps.get(self._before, 0) + self._rows
            self._rows = 0
