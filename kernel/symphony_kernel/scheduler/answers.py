"""Who is about to answer: LIPs whose preds were in the last step and will soon send the next.

A step with all of them costs hardly more than a step with half of them, so a short wait pays. It
must not let one LIP hold up the others: each LIP's wait ends when, by its own past, its answer was
due, and all of them end at a share of the last step's time T. With R rows ready and O owed, waiting
for w delays R rows by w, and spares O rows the rest of a step, T - w; so it pays while
w < T * O / (R + O). Otherwise a LIP whose branches once came apart would stay two groups in turn.
The same is weighed with LIPs for rows, since a thousand branches of one do not outvote the single
stream of another.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from symphony_kernel.protocol.limits import (
    BATCH_WAIT_MS_MAX,
    BATCH_WAIT_SHARE_MAX,
    DECODING_MS_MAX,
)
from symphony_kernel.scheduler.estimate import Estimate

_REMEMBERED_SECONDS_MAX = 10 * BATCH_WAIT_MS_MAX / 1000  # slower answers all count as this slow
_LONG_AGO = float("-inf")


class Ready(Protocol):
    """The part of the queue that waits matter to."""

    @property
    def works(self) -> int:
        """Works that could be launched."""

    @property
    def lips_active(self) -> int:
        """LIPs with such works."""

    def waits(self, root: int) -> bool:
        """Whether a LIP has such works."""


@dataclass(slots=True)
class _Past:
    """How long a LIP takes to answer."""

    replied: float = 0.0  # when the last step with it ended
    owed: int = 0  # replies of that step that it has not answered
    seconds: Estimate = field(default_factory=Estimate)

    def due(self) -> float | None:
        """Return when the answer to the last reply should have come; None when nothing is known."""
        past = self.seconds
        return self.replied + past.mean + 4 * past.deviation if past.known else None


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
        # The two LIPs that have had a result last, and when: they decode.
        self._decoding = [(0, _LONG_AGO), (0, _LONG_AGO)]

    def stepped(self, replies: dict[int, int], now: float, step_seconds: float) -> None:
        """A step has ended; `replies` says how many each of its LIPs got that it may answer yet."""
        self._note_decoding(replies, now)
        self._expected.clear()
        self._owed = 0
        self._ended, self._step_seconds = now, step_seconds
        for root, count in replies.items():
            past = self._lips.get(root)
            if past is None:
                past = self._lips[root] = _Past()
            past.replied, past.owed = now, max(count, 0)
            if count > 0:
                self._expected.add(root)
                self._owed += count

    def heard(self, root: int, now: float) -> None:
        """A LIP has submitted a work."""
        past = self._lips.get(root)
        if past is None or not past.owed:
            return
        seconds = now - past.replied
        past.seconds.learn(
            seconds if seconds < _REMEMBERED_SECONDS_MAX else _REMEMBERED_SECONDS_MAX
        )
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
        self._decoding = [each if each[0] != root else (0, _LONG_AGO) for each in self._decoding]

    def anybody_decodes(self, now: float, besides: int = 0) -> bool:
        """Whether a LIP has had a result lately, another than the LIP `besides`."""
        since = now - DECODING_MS_MAX / 1000
        return any(at > since and root != besides for root, at in self._decoding)

    def any_expected(self, which: Callable[[int], bool]) -> bool:
        """Whether a LIP that owes an answer is such a one."""
        return any(map(which, self._expected))

    def wait_seconds(self, now: float, ready: Ready) -> float:
        """Return how much longer a launch of what is ready should wait; 0: nobody will answer."""
        if not self._expected:
            return 0.0
        bound = self._ended + self._wait_max(ready)
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

    def _wait_max(self, ready: Ready) -> float:
        absent = sum(not ready.waits(root) for root in self._expected)
        share = max(
            self._owed / (self._owed + ready.works),
            absent / (absent + ready.lips_active),
        )
        share = min(share, BATCH_WAIT_SHARE_MAX)
        return min(self._step_seconds * share, BATCH_WAIT_MS_MAX / 1000)

    def _note_decoding(self, replies: dict[int, int], now: float) -> None:
        for root, _ in zip(replies, self._decoding, strict=False):
            before, last = self._decoding
            self._decoding = [before if root == last[0] else last, (root, now)]
