"""The fair queue: the service bound, weights, and a LIP's share however much it forks."""

import time
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from symphony_kernel.fairness.fair_queue import FairQueue, TenantWeights
from symphony_kernel.fairness.step_cost import StepCost
from symphony_kernel.protocol.errno import Errno, KernelBug
from symphony_kernel.protocol.limits import PREFILL_QUANTUM_TOKENS, TENANT_WEIGHT_MAX
from symphony_kernel.request import Request

from tests.support.kernel.scheduling import LengthFile, Pool, make_work
from tests.support.refusals import refused

COSTS = StepCost()  # nothing is measured: a decode costs two tokens


def state(queue: FairQueue) -> tuple[int, int, int, dict[str, float]]:
    """Return waiting requests, their tokens and runs, and each active tenant's counter."""
    counters = {each.name: each.counter for each in queue._tenants.values() if each.active}
    return queue.requests, queue.tokens, queue.runs_active, counters


CHARGE_MAX = 1.1 * PREFILL_QUANTUM_TOKENS  # with what contexts add


def serve_first(queue: FairQueue, quantum: int = PREFILL_QUANTUM_TOKENS) -> tuple[Request, float]:
    """Serve the first request alone; charge its tenant what its LIP is charged."""
    request = queue.first()
    assert request is not None
    count = min(request.remaining, quantum)
    cost = COSTS.cost(request, count)
    queue.serve(count)
    queue.charge_tenant(request.tenant, cost * COSTS.service_seconds)
    return request, cost


def push(queue: FairQueue, times: int, root: int, tokens: int = 1, **given: Any) -> list[Request]:
    """Push so many preds of a LIP."""
    requests = [make_work(root, tokens, **given) for _ in range(times)]
    for request in requests:
        queue.push(request)
    return requests


@pytest.fixture
def queue() -> FairQueue:
    return FairQueue(COSTS)


@settings(max_examples=100)
@given(
    weights=st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.0]), min_size=2, max_size=4),
    sizes=st.lists(st.lists(st.integers(1, 400), min_size=1, max_size=4), min_size=4, max_size=4),
    lips=st.lists(st.integers(1, 3), min_size=4, max_size=4),
    serves=st.integers(1, 300),
    arrivals=st.lists(st.integers(0, 200), min_size=4, max_size=4),
)
def test_backlogged_tenants_differ_by_a_constant_at_most(
    weights: list[float],
    sizes: list[list[int]],
    lips: list[int],
    serves: int,
    arrivals: list[int],
) -> None:
    queue = FairQueue(COSTS)
    names = [f"tenant {i}" for i in range(len(weights))]
    for name, weight in zip(names, weights, strict=True):
        queue.set_tenant_weight(name, weight)
    made: Counter[str] = Counter()
    waiting: Counter[str] = Counter()
    service = dict.fromkeys(names, 0.0)
    since: dict[frozenset[str], dict[str, float]] = {}

    def refill(index: int) -> None:
        name = names[index]
        while waiting[name] < 2:  # always a request left: backlogged
            size = sizes[index][made[name] % len(sizes[index])]
            root = 10 * index + made[name] % lips[index]
            made[name] += 1
            waiting[name] += 1
            queue.push(make_work(root, size, tenant=name))

    for turn in range(serves):
        for index in range(len(names)):
            if turn >= arrivals[index] % serves:
                refill(index)
        if not queue.requests:
            continue
        request, cost = serve_first(queue)
        service[request.tenant] += cost
        if not request.remaining:
            waiting[request.tenant] -= 1
        charge = {name: CHARGE_MAX / weight for name, weight in zip(names, weights, strict=True)}
        active = [n for i, n in enumerate(names) if turn >= arrivals[i] % serves]
        for i, one in enumerate(active):
            for other in active[i + 1 :]:
                pair = frozenset((one, other))
                start = since.setdefault(pair, dict(service))
                gained = {
                    n: (service[n] - start[n]) / weights[names.index(n)] for n in (one, other)
                }
                bound = 2 * max(charge[one], charge[other])
                assert abs(gained[one] - gained[other]) <= bound + 1e-6


def test_lip_with_a_thousand_branches_gets_one_lips_share(queue: FairQueue) -> None:
    push(queue, 1000, 1)
    for root in (2, 3):
        push(queue, 300, root)
    served = Counter(serve_first(queue)[0].root for _ in range(300))
    assert served == {1: 100, 2: 100, 3: 100}


def test_tenant_with_many_lips_gets_one_tenants_share(queue: FairQueue) -> None:
    for root in range(100):
        push(queue, 10, root, tenant="many")
    push(queue, 500, 1000, tenant="one")
    served = Counter(serve_first(queue)[0].tenant for _ in range(400))
    assert served == {"many": 200, "one": 200}


@pytest.mark.parametrize("level", ["tenant", "lip"])
def test_service_is_divided_by_weight(queue: FairQueue, level: str) -> None:
    if level == "tenant":
        queue.set_tenant_weight("a", 3.0)
    for _ in range(400):
        for root, name in ((1, "a"), (2, "b")):
            tenant = name if level == "tenant" else "t"
            weight = 3.0 if level == "lip" and root == 1 else 1.0
            queue.push(make_work(root, tenant=tenant, weight=weight))
    served = Counter(serve_first(queue)[0].root for _ in range(400))
    assert abs(served[1] - 300) <= 2


def test_idle_tenant_earns_no_credit(queue: FairQueue) -> None:
    """A late tenant is lifted to the least served: it is not served for its idle time."""
    push(queue, 2000, 1, tenant="early")
    queue.push(make_work(2, tenant="late"))
    for _ in range(1000):
        serve_first(queue)
    queue.remove_tenant("late")
    push(queue, 500, 2, tenant="late")
    served = Counter(serve_first(queue)[0].tenant for _ in range(200))
    assert abs(served["late"] - 100) <= 2


def test_service_is_remembered_over_a_moment_without_requests(queue: FairQueue) -> None:
    queue.push(make_work(1, 1000, tenant="greedy"))
    push(queue, 501, 2, tenant="other")
    first, _ = serve_first(queue, quantum=1000)
    assert first.tenant == "greedy"
    queue.push(make_work(1, 1000, tenant="greedy"))
    served = Counter(serve_first(queue)[0].tenant for _ in range(400))
    assert served == {"other": 400}


@pytest.mark.parametrize("end", ["put_back", "remove"])
def test_lip_with_requests_away_keeps_its_counter(queue: FairQueue, end: str) -> None:
    """A LIP whose requests all wait for frames is not idle."""
    push(queue, 400, 1)
    away = make_work(2, 1, instance=20)
    queue.push(away)
    queue.send_away(away)
    assert queue.away_requests(2, None) == queue.away_requests(2, 20) == [away]
    assert queue.away_requests(2, 21) == queue.away_requests(1, None) == []
    for _ in range(100):
        serve_first(queue)
    new = make_work(2, 1, instance=21)
    queue.push(new)
    assert queue.counters(2)[1] == 0.0
    assert queue.first() is new
    assert queue.remove(new)
    if end == "put_back":
        queue.put_back(away)
        assert queue.first() is away
        serve_first(queue)
    else:
        assert not queue.remove(away)
    assert queue.away_requests(2, None) == []
    queue.push(new)
    assert queue.counters(2)[1] == queue.counters(1)[1] > 100.0


def test_long_prompt_lets_its_lips_branches_run(queue: FairQueue) -> None:
    queue.push(make_work(1, 10_000))
    branch = make_work(1)
    queue.push(branch)
    assert [serve_first(queue)[0] is branch for _ in range(2)] == [False, True]


def test_requests_set_aside_return_in_order(queue: FairQueue) -> None:
    requests = [make_work(root) for root in (1, 1, 2)]
    for request in requests:
        queue.push(request)
    before = state(queue)
    seen = []
    while (request := queue.first()) is not None:  # type: ignore[assignment]
        seen.append(request)
        queue.set_aside()
    queue.restore()
    assert sorted(map(id, seen)) == sorted(map(id, requests))
    assert state(queue) == before
    assert [serve_first(queue)[0] for _ in range(3)] == [requests[0], requests[2], requests[1]]


def test_requests_of_a_run_that_came_back_are_yielded_once(queue: FairQueue) -> None:
    (first,), (second,) = push(queue, 1, 1), push(queue, 1, 2)
    queue.send_away(second)  # its run's entry stays in the heap, behind the first one's
    queue.put_back(second)
    assert list(queue.requests_of("t")) == [first, second]


def test_removed_requests_leave_nothing_behind(queue: FairQueue) -> None:
    requests = [make_work(1, 5, instance=i) for i in (1, 1, 2, 3)]
    for request in requests:
        queue.push(request)
    queue.push(make_work(9, 7, tenant="u"))
    assert queue.remove(requests[3])
    assert not queue.remove(requests[3])
    assert queue.drop_requests(1, 1) == requests[:2]
    assert queue.drop_requests(1) == [requests[2]]
    assert queue.drop_requests(1) == []
    *waiting, counters = state(queue)
    assert (waiting, list(counters)) == ([1, 7, 1], ["u"])
    queue.drop_requests(9)
    assert queue.first() is None
    assert state(queue) == (0, 0, 0, {})


@settings(max_examples=60)
@given(st.data())
def test_heaps_and_sums_hold_under_random_events(data: st.DataObject) -> None:
    queue = FairQueue()
    alive: list[Request] = []
    for _ in range(data.draw(st.integers(1, 80))):
        kinds = ["push", "serve", "aside", "prompts aside", "remove", "forget", "extend"]
        match data.draw(st.sampled_from(kinds)):
            case "push":
                root = data.draw(st.integers(1, 6))
                request = make_work(
                    root,
                    data.draw(st.integers(1, 200)),
                    tenant=f"t{root % 3}",
                    instance=10 * root + data.draw(st.integers(0, 1)),
                )
                queue.push(request)
                alive.append(request)
            case "serve" if (first := queue.first()) is not None:
                queue.serve(min(first.remaining, data.draw(st.integers(1, 100))))
                alive = [request for request in alive if request.remaining]
            case "extend" if alive:
                request = data.draw(st.sampled_from(alive))
                queue.extend(request, data.draw(st.integers(1, request.remaining)))
                alive = [request for request in alive if request.remaining]
            case "aside" if queue.first() is not None:
                queue.set_aside()
                queue.restore()
            case "prompts aside" if (first := queue.first()) is not None:
                mine = [request for request in alive if request.tenant == first.tenant]
                assert queue.skip_tenant_of_prompts() == all(request.count > 1 for request in mine)
                queue.restore()
            case "remove" if alive:
                request = data.draw(st.sampled_from(alive))
                assert queue.remove(request)
                alive.remove(request)
            case "forget":
                root = data.draw(st.integers(1, 6))
                gone = set(queue.drop_requests(root))
                assert gone == {request for request in alive if request.root == root}
                alive = [request for request in alive if request not in gone]
        assert queue.requests == len(alive)
        assert queue.tokens == sum(request.remaining for request in alive)
        assert queue.runs_active == len({request.root for request in alive})
        tenants = {request.tenant for request in alive}
        assert queue._tenants_active == len(tenants)
        assert state(queue)[3].keys() == tenants
        assert queue.decodes == sum(request.count == 1 for request in alive)
        first = queue.first()
        if first is not None:
            least = min(queue.counters(request.root) for request in alive)
            assert queue.counters(first.root)[0] == least[0], "the least served tenant comes first"


def test_removal_among_many_requests_is_fast(queue: FairQueue) -> None:
    """A program may cancel its newest pred often; the bound is fifty times what it takes.

    With a scan of all requests for each it would take a minute.
    """
    requests = push(queue, 20_000, 1)
    began = time.process_time()
    for request in reversed(requests):
        assert queue.remove(request)
    assert time.process_time() - began < 1
    assert (queue.requests, queue.first()) == (0, None)


def test_flood_of_prompts_is_skipped_at_once(queue: FairQueue) -> None:
    """A thousand LIPs with prompts for which a step has no time cost it one look."""
    prompts = [make_work(root, 100, tenant="t") for root in range(1, 1001)]
    decode = make_work(2000, tenant="u")
    for request in (*prompts, decode):
        queue.push(request)
    assert queue.first() is prompts[0]
    assert queue.skip_tenant_of_prompts()
    assert queue.first() is decode
    assert not queue.skip_tenant_of_prompts(), "it has more than prompts"
    queue.serve(1)
    assert queue.first() is None
    queue.restore()
    assert [serve_first(queue, 100)[0] for _ in prompts] == prompts


def test_lip_whose_requests_cannot_run_is_skipped(queue: FairQueue) -> None:
    """A thousand requests that wait for pages cost a step as much as a few; none is lost."""
    requests = push(queue, 1000, 1)
    other = make_work(2)
    queue.push(other)
    looks = 0
    while (first := queue.first()) is not None:
        looks += 1
        if first is other:
            queue.serve(1)
        else:
            queue.set_aside()
    assert other.placed == 1
    assert looks < 100
    queue.restore()
    order = []
    while (first := queue.first()) is not None:
        order.append(first)
        queue.serve(1)
    assert order == requests


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.integers(1, 5), st.sampled_from("abc"), st.sampled_from([1, 1, 9]), st.booleans()
        ),
        max_size=40,
    )
)
def test_request_served_at_once_costs_as_queued(requests: list[tuple[int, str, int, bool]]) -> None:
    """`serve_new` equals `push` and `serve_fully`, whichever requests wait."""
    counters = []
    for at_once in (False, True):
        queue = FairQueue()
        queue.set_tenant_weight("b", 3.0)
        for root, tenant, size, waits in requests:
            number = 10 * root + ord(tenant)
            request = make_work(
                number, 1 if not waits else size, LengthFile(Pool(), 30), tenant=tenant
            )
            if waits:
                queue.push(request)
            elif at_once:
                queue.serve_new(request)
            else:
                queue.push(request)
                queue.extend(request, request.remaining)
            if not waits:
                assert request.remaining == 0
                assert not queue.is_queued(request)
        served = {10 * root + ord(tenant) for root, tenant, _, waits in requests if not waits}
        counters.append([state(queue), {root: queue.counters(root) for root in served}])
    assert counters[0] == counters[1]


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("tenants", [("t", "t"), ("t", "u")])
def test_run_charged_beside_its_requests_is_served_less(
    queue: FairQueue, waits: bool, tenants: tuple[str, str]
) -> None:
    queue.push(make_work(2, 400, tenant=tenants[1]))
    if waits:
        queue.push(make_work(1, 400, tenant=tenants[0]))
    queue.charge_run(1, tenants[0], 1.0, 0.1)
    queue.charge_tenant(tenants[0], 0.1)
    if not waits:
        queue.push(make_work(1, 400, tenant=tenants[0]))
    served: Counter[int] = Counter()
    while served[1] < 50:
        request, cost = serve_first(queue, 10)
        served[request.root] += round(cost)
    assert served[1] == 50
    assert 140 <= served[2] <= 160
    assert queue.counters(1)[1] == pytest.approx(150, rel=0.01)
    queue.drop_requests(1)
    queue.drop_requests(2)
    assert queue.first() is None


@pytest.mark.parametrize("cost", [float("nan"), float("inf"), -1.0])
def test_invalid_cost_is_not_charged(queue: FairQueue, cost: float) -> None:
    request = make_work(1)
    queue.push(request)
    with pytest.raises(KernelBug):
        queue.charge_run(request.root, request.tenant, 1.0, cost)
    assert queue.first() is request


def weight_of(queue: FairQueue, tenant: str) -> float:
    return queue._tenant(tenant).weight


def test_operators_weight_overrides_the_option_until_unset(queue: FairQueue) -> None:
    shares = TenantWeights(queue.set_tenant_weight, {"research": 2.0})
    assert [weight_of(queue, tenant) for tenant in ("research", "acme")] == [2.0, 1.0]
    shares.set("research", 8)
    shares.set("acme", 0.5)
    assert [weight_of(queue, tenant) for tenant in ("research", "acme")] == [8, 0.5]
    assert queue.tenant_weight("new") == 1.0
    shares.set("research", None)
    shares.set("acme", None)
    assert [weight_of(queue, tenant) for tenant in ("research", "acme")] == [2.0, 1.0]


@pytest.mark.parametrize("weight", [0, -1, float("nan"), 5e-324, TENANT_WEIGHT_MAX, "2", True, [2]])
def test_invalid_weight_is_refused(queue: FairQueue, weight: object) -> None:
    shares = TenantWeights(queue.set_tenant_weight, {})
    assert refused(shares.set, "acme", weight) is Errno.EINVAL
    assert weight_of(queue, "acme") == 1.0
