"""Who is about to answer: LIPs whose preds were in the last step and will soon send the next.

A step with all of them costs hardly more than a step with half of them, so a short wait pays. It
must not let one LIP hold up the others: each LIP's wait ends when, by its own past, its answer was
due, and all of them end at a share of the last step's time T. With R rows ready and O owed, waiting
for w delays R rows by w, and spares O rows the rest of a step, T - w; so it pays while
w < T * O / (R + O). Otherwise a LIP whose branches once came apart would stay two groups in turn.
"""

from dataclasses import dataclass

from symphony_kernel.protocol.limits import (
    BATCH_AHEAD_SHARE_MAX,
    BATCH_WAIT_MS_MAX,
    BATCH_WAIT_SHARE_MAX,
)

_REMEMBERED_SECONDS_MAX = 10 * BATCH_WAIT_MS_MAX / 1000  # slower answers all count as this slow


@dataclass(slots=True)
class _Past:
    """How long a LIP takes to answer, as TCP estimates a round trip: mean and mean deviation."""

    replied: float = 0.0  # when the last step with it ended
    owed: int = 0  # replies of that step that it has not answered
    mean: float = 0.0
    deviation: float = 0.0
    known: bool = False

    def learn(self, seconds: float) -> None:
        seconds = min(seconds, _REMEMBERED_SECONDS_MAX)
        if not self.known:
            self.mean, self.deviation, self.known = seconds, seconds / 2, True
            return
        error = seconds - self.mean
        self.mean += error / 4
        self.deviation += (abs(error) - self.deviation) / 4

    def due(self) -> float | None:
        """Return when the answer to the last reply should have come; None when nothing is known."""
        return self.replied + self.mean + 4 * self.deviation if self.known else None


class Answers:
    """The LIPs of the last step that owe an answer, and each LIP's past.

    A LIP with many branches gets many replies at once and may answer them one by one; those that it
    does not go on with are waited for no longer than its answers usually take.
    """

    def __init__(self) -> None:
        self._lips: dict[int, _Past] = {}
        self._expected: set[int] = set()
        self._owed = 0  # by the expected
        self._ended, self._step_seconds = 0.0, 0.0  # of the last step: when, and how long it took

    def stepped(self, replies: dict[int, int], now: float, step_seconds: float) -> None:
        """A step has ended; `replies` says how many each of its LIPs got."""
        self._expected, self._owed = set(replies), sum(replies.values())
        self._ended, self._step_seconds = now, step_seconds
        for root, count in replies.items():
            past = self._lips.get(root)
            if past is None:
                past = self._lips[root] = _Past()
            past.replied, past.owed = now, count

    def heard(self, root: int, now: float) -> None:
        """A LIP has submitted a work."""
        past = self._lips.get(root)
        if past is None or not past.owed:
            return
        past.learn(now - past.replied)
        past.owed -= 1
        if root in self._expected:
            self._owed -= 1
            if not past.owed:
                self._expected.discard(root)

    def forget(self, root: int) -> None:
        """A LIP has ended."""
        past = self._lips.pop(root, None)
        if past is not None and root in self._expected:
            self._owed -= past.owed
            self._expected.discard(root)

    def wait_seconds(self, now: float, ready: int, *, ahead: bool = False) -> float:
        """Return how much longer a launch of `ready` works should wait; 0 when nobody will answer.

        `ahead`: of a step that goes behind one that computes, which may wait for longer.
        """
        if not self._expected:
            return 0.0
        bound = self._ended + self._wait_max(ready, ahead)
        if now >= bound:
            return 0.0
        latest = now
        for root in self._expected:
            due = self._lips[root].due()
            if due is None:
                return bound - now
            if due <= bound:
                latest = max(latest, due)
        return latest - now

    def _wait_max(self, ready: int, ahead: bool) -> float:
        if ahead:
            return self._step_seconds * BATCH_AHEAD_SHARE_MAX
        share = min(self._owed / (self._owed + ready), BATCH_WAIT_SHARE_MAX)
        return min(self._step_seconds * share, BATCH_WAIT_MS_MAX / 1000)
