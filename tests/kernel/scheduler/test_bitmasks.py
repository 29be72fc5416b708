"""What masks may take of a step: of the rows that are in it, and of no others."""

from symphony_kernel.fairness.fair_queue import FairQueue
from symphony_kernel.grammar.source import Kind
from symphony_kernel.protocol.limits import MASKS_MS_MAX
from symphony_kernel.request import Work
from symphony_kernel.scheduler.batcher import Batcher

from tests.support.kernel.grammars import constraint, grammar_of, guide, make_vocabulary
from tests.support.kernel.scheduling import LengthFile, Pool, make_work


def test_who_waits_for_pages_takes_no_time_from_those_that_compute() -> None:
    """It was counted among the step's masks, and one that had room waited for the next step."""
    made = constraint(make_vocabulary(), Kind.REGEX, "[a-z]{300}")
    grammar_of(made).seconds = 0.45 * MASKS_MS_MAX / 1000  # two of them fit
    full, free = Pool(0), Pool(8)
    queue, batcher = FairQueue(), Batcher(pages=8)
    works: list[Work] = []
    for root, pool in enumerate((full, full, full, free, free, free), start=1):
        work = make_work(root, 1, LengthFile(pool))
        work.guide = guide(made, [])
        works.append(work)
        queue.push(work)
    formed = batcher.form(queue)
    assert formed.waiting == works[:3]
    assert formed.step is not None
    assert [part.work for part in formed.step.parts] == works[3:5]
    again = batcher.form(queue).step
    assert again is not None
    assert [part.work for part in again.parts] == works[5:]
