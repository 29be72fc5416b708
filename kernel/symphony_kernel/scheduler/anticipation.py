"""Anticipation: a short wait for runs that are about to send their next pred.

A step with all runs costs hardly more than a step with half of them, so a short wait pays. It must
not let one run delay the others. Each run's wait ends when its answer was due, judged by its past,
and all waits end at a share of the last step's time T. With R rows ready and O rows owed, waiting
for w more delays R rows by w and spares O rows the rest of a step, T - w. So it pays while w < T *
O / (R + O), where the rows that a run owes count by the odds that it answers soon. Otherwise a run
whose branches once came apart would stay two groups in alternate steps. The same is weighed with
runs in place of rows, since a thousand branches of one run do not outvote the single stream of
another.

A run's past is two things: how often it answers soon, within the longest wait, and how long it
takes when it does. So neither a run that sometimes thinks for long nor one that always does
misleads.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Final

from symphony_kernel.fairness.fair_queue import FairQueue
from symphony_kernel.protocol.limits import BATCH_WAIT_MS_MAX, BATCH_WAIT_SHARE_MAX, DECODING_MS_MAX

_ODDS_GAIN: Final = 1 / 4
_ODDS_EVEN: Final = 1 / 2
_TIMER_SECONDS: Final = 2e-6  # by which a timer may fire before an answer that is due
_MEAN_GAIN: Final = 1 / 4
_OUTLIER: Final = 8.0  # times the mean: larger values count as this


@dataclass(slots=True)
class _RunHistory:
    """How long a run takes to answer, estimated as TCP estimates round trips."""

    replied: float = 0.0  # when the last step with it ended
    owed: int = 0  # results of that step that it has not followed with a pred
    odds: float = 1.0  # that it answers soon
    mean: float = 0.0  # seconds that it takes when it does
    deviation: float = 0.0  # their mean deviation
    known: bool = False

    def learn(self, value: float) -> None:
        """Add a measurement. Negative and infinite ones count as 0.

        Clocks that are read in another order give them; below 0 the mean would grow without end.
        """
        if not 0.0 <= value < inf:
            value = 0.0
        if not self.known:
            self.mean, self.deviation, self.known = value, value / 2, True
            return
        if self.mean:
            value = min(value, self.mean * _OUTLIER)
        error = value - self.mean
        self.mean += error * _MEAN_GAIN
        self.deviation += (abs(error) - self.deviation) * _MEAN_GAIN


class Anticipation:
    """The runs of the last step that owe an answer, and each run's past.

    A run with many branches gets many results at once and may answer them one by one. The branches
    that it does not continue are waited for no longer than its answers usually take.
    """

    def __init__(self) -> None:
        self._runs: dict[int, _RunHistory] = {}  # in the order of their last results
        self._expected: set[int] = set()
        self._ended, self._step_seconds = 0.0, 0.0  # of the last step: when, and how long it took
        self._soon = 0.0  # the longest wait, in seconds after it

    def step_ended(self, replies: dict[int, int], now: float, step_seconds: float) -> None:
        """Record how many results each run got, by root, that it may answer yet."""
        self._expected.clear()
        self._ended, self._step_seconds = now, step_seconds
        self._soon = min(step_seconds * BATCH_WAIT_SHARE_MAX, BATCH_WAIT_MS_MAX / 1000)
        for root, count in replies.items():
            history = self._runs.pop(root) if root in self._runs else _RunHistory()
            self._runs[root] = history
            history.replied, history.owed = now, max(count, 0)
            if count > 0:
                self._expected.add(root)

    def request_arrived(self, root: int, now: float) -> None:
        history = self._runs.get(root)
        if history is None or not history.owed:
            return
        seconds = now - history.replied
        if seconds <= self._soon:
            history.odds += (1 - history.odds) * _ODDS_GAIN
            history.learn(seconds)
        else:
            history.odds -= history.odds * _ODDS_GAIN
        history.owed -= 1
        if not history.owed:
            self._expected.discard(root)

    def replied(self, root: int, now: float) -> None:
        history = self._runs.pop(root) if root in self._runs else _RunHistory()
        self._runs[root] = history
        history.replied = now
        history.owed += 1
        self._expected.add(root)

    def answers_soon(self, root: int) -> bool:
        history = self._runs.get(root)
        return history is None or history.odds >= _ODDS_EVEN

    def forget_run(self, root: int) -> None:
        self._runs.pop(root, None)
        self._expected.discard(root)

    def any_decoding(self, now: float, besides: int = 0) -> bool:
        """Whether a run other than `besides` has had a result lately."""
        for root, history in reversed(self._runs.items()):
            if root != besides:
                return history.replied > now - DECODING_MS_MAX / 1000
        return False

    def any_expected(self, which: Callable[[int], bool]) -> bool:
        return any(map(which, self._expected))

    def wait_seconds(self, now: float, ready: FairQueue) -> float:
        """Return how much longer the launch should wait for answers; 0: not at all."""
        bound = self._ended + self._soon
        if not self._expected or now >= bound:
            return 0.0
        new, soon = False, []  # runs that may answer in time
        for root in self._expected:
            history = self._runs[root]
            if not history.known:  # it has never answered soon, or never at all
                new = new or history.odds == 1.0
                continue
            likely = history.replied + history.mean + history.deviation
            if likely <= bound:
                soon.append((likely, history.deviation))
        if not (new or soon):
            return 0.0
        worth = self._step_seconds * self._share(ready)
        latest = min(self._ended + worth, bound) if new else now
        for likely, deviation in soon:
            if likely - now <= worth:
                due = likely + 3 * deviation + _TIMER_SECONDS
                latest = max(latest, min(due, bound, now + worth))
        return max(latest - now, 0.0)

    def _share(self, ready: FairQueue) -> float:
        """Return the share of a step for which it pays to wait from now on."""
        rows = runs = 0.0
        for root in self._expected:
            history = self._runs[root]
            rows += history.owed * history.odds
            if not ready.has_requests(root):
                runs += history.odds
        return max(rows / (rows + ready.requests), runs / (runs + ready.runs_active))
