"""What an instance's preds did while it waited: throttle, queue, pages, step.

At each moment the pred that is furthest on its way counts: one that is computed, before one that
waits for pages, before one in the queue. What is left of a wait is for other things: a tool, a
message, a timer, or the worker.
"""

from bisect import bisect_right
from collections.abc import Iterable

from symphony_runtime.gateway.runs.tracing.preds import Pred, State, total

_ORDER = ("throttle", "queue", "pages", "step")  # the later counts


class InstanceWaits:
    """The states of one instance's preds over time."""

    def __init__(self, preds: Iterable[Pred]) -> None:
        marks: list[tuple[float, int, int]] = []
        for pred in preds:
            for began, ended, state in pred.states():
                rank = _ORDER.index(state)
                marks += [(began, 1, rank), (ended, -1, rank)]
        marks.sort()
        counts = [0] * len(_ORDER)
        self._times: list[float] = []
        self._states: list[str] = []  # from each of these times to the next; "": no pred
        for at, change, rank in marks:
            counts[rank] += change
            active = max((rank for rank, count in enumerate(counts) if count), default=-1)
            self._times.append(at)
            self._states.append(_ORDER[active] if active >= 0 else "")

    def split(self, began: float, ended: float) -> dict[str, float]:
        """Return the microseconds of a wait by state; none where no pred was under way."""
        found: list[State] = []
        for index in range(max(bisect_right(self._times, began) - 1, 0), len(self._times)):
            first = max(self._times[index], began)
            if first >= ended:
                break
            following = self._times[index + 1] if index + 1 < len(self._times) else ended
            last = min(following, ended)
            if self._states[index] and first < last:
                found.append((first, last, self._states[index]))
        return total(found)
