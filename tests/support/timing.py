"""Times that hold a claim on a machine that others use.

A claim is of a median. Other work only makes times longer, so the least median of some rounds
decides: what takes twice the bound by itself does so in each round. Where a processor's time is
claimed, measure that; `machine_factor` discounts a slower machine.
"""

import statistics
import time
from collections.abc import Awaitable, Callable

COUNT = 21
ROUNDS = 3
REFERENCE_MS = 1.45  # of `_reference` on the machine of the published figures


async def check_median(
    measure: Callable[[], Awaitable[float]], below: float, count: int = COUNT
) -> None:
    """Fail unless the median of `count` measurements is below a bound, in one of some rounds.

    A round ends as soon as more than half of them are below it, or are not: the rest decides
    nothing.
    """
    assert count % 2, count
    medians = []
    for _ in range(ROUNDS):
        found: list[float] = []
        fast = 0
        while 2 * max(fast, len(found) - fast) < count:
            found.append(await measure())
            fast += found[-1] < below
        if 2 * fast > count:
            return
        medians.append(statistics.median(found))
    raise AssertionError(f"the medians {medians} of {count} each are not below {below}")


def machine_factor() -> float:
    """Return how much longer Python takes here than where the figures were made; at least 1."""
    took = statistics.median(_reference() for _ in range(COUNT))
    return max(1.0, 1000 * took / REFERENCE_MS)


def _reference() -> float:
    began = time.thread_time()
    kept = {}
    for number in range(20_000):
        kept[number & 255] = (number, str(number))
    return time.thread_time() - began
