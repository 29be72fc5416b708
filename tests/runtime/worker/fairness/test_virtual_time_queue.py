"""Start-time fair queueing: its bound, for any arrivals, services and weights."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from symphony_runtime.worker.fairness.virtual_time_queue import Entry, VirtualTimeQueue

LONGEST_NS = 50


class Tenant(Entry):
    """A tenant with so much work left, each a service in nanoseconds."""

    def __init__(self, name: str, weight: float = 1.0) -> None:
        super().__init__()
        self.name, self.weight = name, weight
        self.work: list[int] = []

    def waits(self) -> bool:
        return bool(self.work)


def serve(queue: VirtualTimeQueue[Tenant]) -> tuple[str, int] | None:
    tenant = queue.first()
    if tenant is None:
        return None
    spent = tenant.work.pop(0)
    tenant.used_ns += int(spent / tenant.weight)
    return tenant.name, spent


@settings(max_examples=300, deadline=None)
@given(
    weights=st.lists(st.sampled_from([0.5, 1.0, 2.0, 10.0]), min_size=2, max_size=5),
    works=st.lists(st.integers(1, LONGEST_NS), min_size=150, max_size=150),
)
def test_queue_tenants_with_work_shares_differ_by_a_service(
    weights: list[float], works: list[int]
) -> None:
    queue: VirtualTimeQueue[Tenant] = VirtualTimeQueue()
    tenants = [Tenant(str(index), weight) for index, weight in enumerate(weights)]
    for tenant in tenants:
        tenant.work = list(works)
        queue.add(tenant)
    had: Counter[str] = Counter()
    for _ in range(100):
        served = serve(queue)
        assert served is not None
        had[served[0]] += served[1]
        for a in tenants:
            for b in tenants:
                apart = had[a.name] / a.weight - had[b.name] / b.weight
                # And what rounding to whole nanoseconds takes of each of 100 services.
                assert apart <= LONGEST_NS / a.weight + LONGEST_NS / b.weight + 100


@settings(max_examples=300, deadline=None)
@given(
    pauses=st.lists(st.tuples(st.integers(1, 40), st.integers(1, LONGEST_NS)), max_size=20),
    slack=st.integers(0, 20),
)
def test_queue_after_any_pauses_newcomer_waits_for_one_service(
    pauses: list[tuple[int, int]], slack: int
) -> None:
    """A tenant that comes and goes neither saves up time nor loses any."""
    queue: VirtualTimeQueue[Tenant] = VirtualTimeQueue(slack)
    busy, light = Tenant("busy"), Tenant("light")
    busy.work = [LONGEST_NS] * 10_000
    queue.add(busy)
    for pause, spent in pauses:
        for _ in range(pause):
            assert serve(queue) is not None
        light.work.append(spent)
        queue.add(light)
        before = busy.used_ns
        while light.work:
            served = serve(queue)
            assert served is not None
        assert busy.used_ns - before <= LONGEST_NS + spent
    # What it saved up by its pauses is the slack at most.
    light.work = [1] * 500
    queue.add(light)
    row = 0
    while (served := serve(queue)) == ("light", 1):
        row += 1
    assert row <= slack + LONGEST_NS + 1


def test_queue_refused_entry_keeps_its_place() -> None:
    queue: VirtualTimeQueue[Tenant] = VirtualTimeQueue()
    first, second = Tenant("first"), Tenant("second")
    for tenant in (first, second):
        tenant.work = [10] * 9
        queue.add(tenant)
    for _ in range(3):
        assert queue.first(lambda tenant: tenant is second) is second
        second.used_ns += 10
        second.work.pop()
    assert queue.first(lambda _: False) is None
    assert queue.first() is first
    assert [serve(queue), serve(queue), serve(queue)] == [("first", 10)] * 3


def test_queue_entry_without_work_is_dropped_and_may_return() -> None:
    queue: VirtualTimeQueue[Tenant] = VirtualTimeQueue()
    tenant, other = Tenant("tenant"), Tenant("other")
    tenant.work = [5]
    queue.add(tenant)
    queue.add(tenant)  # once
    assert serve(queue) == ("tenant", 5)
    assert (queue.first(), tenant.listed) == (None, False)
    other.work = [1]
    queue.add(other)
    assert other.used_ns == 5, "an idle queue owes nothing"
    queue.remove(other)
    assert (queue.first(), other.listed) == (None, False)
