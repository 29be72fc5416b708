"""What masks may take of a step: of the rows that are in it, and of no others."""

from symphony_kernel.fairness.fair_queue import FairQueue
from symphony_kernel.grammar.source import GrammarKind
from symphony_kernel.kvfs.filesystem import KVFS
from symphony_kernel.protocol.limits import MASKS_MS_MAX
from symphony_kernel.request import Request
from symphony_kernel.scheduler.admission import Admission
from symphony_kernel.scheduler.batcher import Batcher

from tests.support.kernel.grammars import constraint, grammar_of, make_vocabulary, matcher
from tests.support.kernel.page_device import ManualTime, make_account
from tests.support.kernel.scheduling import make_work


def test_request_waiting_for_pages_takes_no_bitmask_time() -> None:
    """Once it was counted among the step's bitmasks, and another waited for the next step."""
    made = constraint(make_vocabulary(), GrammarKind.REGEX, "[a-z]{300}")
    grammar_of(made).seconds = 0.45 * MASKS_MS_MAX / 1000  # two of them fit
    kvfs, queue = KVFS(8, ManualTime()), FairQueue()
    admission = Admission(queue, kvfs.eviction, lambda request, errno: None)
    batcher = Batcher(queue, admission)
    requests: list[Request] = []
    for root in range(1, 7):
        request = make_work(root, 1, kvfs.create("t", make_account(kvfs)))
        request.matcher = matcher(made, [])
        if root > 3:
            admission.reserve_ahead(request)
        requests.append(request)
        queue.push(request)
    kvfs.pool.take_scratch_frames(kvfs.pool.free_frames)
    formed = batcher.form()
    assert list(admission.memory_queue) == requests[:3]
    assert formed.step is not None
    assert [part.request for part in formed.step.chunks] == requests[3:5]
    again = batcher.form().step
    assert again is not None
    assert [part.request for part in again.chunks] == requests[5:]
