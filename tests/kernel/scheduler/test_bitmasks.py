"""What masks may take of a step: of the rows that are in it, and of no others."""

from symphony_kernel.fairness.fair_queue import FairQueue
from symphony_kernel.grammar.source import GrammarKind
from symphony_kernel.protocol.limits import MASKS_MS_MAX
from symphony_kernel.request import Request
from symphony_kernel.scheduler.batcher import Batcher

from tests.support.kernel.grammars import constraint, grammar_of, make_vocabulary, matcher
from tests.support.kernel.scheduling import LengthFile, Pool, make_work


def test_request_waiting_for_pages_takes_no_bitmask_time() -> None:
    """Once it was counted among the step's bitmasks, and another waited for the next step."""
    made = constraint(make_vocabulary(), GrammarKind.REGEX, "[a-z]{300}")
    grammar_of(made).seconds = 0.45 * MASKS_MS_MAX / 1000  # two of them fit
    full, free = Pool(0), Pool(8)
    queue = FairQueue()
    batcher = Batcher(queue, pages=8)
    requests: list[Request] = []
    for root, pool in enumerate((full, full, full, free, free, free), start=1):
        request = make_work(root, 1, LengthFile(pool))
        request.matcher = matcher(made, [])
        requests.append(request)
        queue.push(request)
    formed = batcher.form()
    assert formed.waiting == requests[:3]
    assert formed.step is not None
    assert [part.request for part in formed.step.chunks] == requests[3:5]
    again = batcher.form().step
    assert again is not None
    assert [part.request for part in again.chunks] == requests[5:]
