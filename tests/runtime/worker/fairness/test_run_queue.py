"""Turns of tenants, in virtual time: what a slice takes is what the test says."""

from collections import Counter
from collections.abc import Callable
from itertools import count

from symphony_runtime.worker.fairness.run_queue import SLICE_NS, TURN_NS, RunQueue, TenantShare
from symphony_runtime.worker.instance import Instance
from symphony_runtime.worker.run import Run

from tests.support.worker.instances import new_instance

SHORT_NS = SLICE_NS // 10  # of one that makes a call and waits


class TimedRunQueue:
    """Instances of tenants that take turns; `had`: nanoseconds by tenant."""

    def __init__(self) -> None:
        self.turns = RunQueue()
        self.had: Counter[str] = Counter()
        self.order: list[str] = []  # whose slices, one after the other
        self.flushes: list[int] = []  # how many slices there had been
        self._ids = count(1)

    def begin(self, tenant: str, number: int = 1) -> list[Instance]:
        made = [new_instance(self.turns, tenant, next(self._ids)) for _ in range(number)]
        for instance in made:
            self.turns.enqueue_new(instance)
        return made

    def end(self, instance: Instance) -> None:
        instance.ended = True
        self.turns.remove_instance(instance.run.share)

    def reply(self, instance: Instance) -> None:
        instance.queued = True
        instance.run.share.ready.append(instance)
        if not instance.run.share.listed:
            self.turns.enlist(instance.run.share)

    def play(self, work: Callable[[Instance], int], *, replies: bool = False) -> None:
        def told(instance: Instance) -> int:
            used = work(instance)
            self.order.append(instance.run.share.tenant)
            self.had[instance.run.share.tenant] += used
            return used

        self.turns.run_turn(told, lambda: self.flushes.append(len(self.order)), replies=replies)

    def shared(self) -> bool:
        return self.turns.shared

    def compute(self, instance: Instance) -> int:
        """Use up a slice and want another."""
        instance.queued = True
        instance.run.share.computing.append(instance)
        return SLICE_NS


def wait(_: Instance) -> int:
    return SHORT_NS


def test_run_queue_gives_tenants_the_same_time_for_any_instance_count() -> None:
    timed = TimedRunQueue()
    timed.begin("many", 12)
    timed.begin("few")
    timed.begin("some", 3)
    for _ in range(300):
        timed.play(timed.compute)
    assert timed.had.total() >= 300 * SLICE_NS
    assert max(timed.had.values()) - min(timed.had.values()) <= SLICE_NS


def test_run_queue_serves_replies_before_all_that_compute() -> None:
    timed = TimedRunQueue()
    timed.begin("loops", 50)
    instances = timed.begin("streams", 4)
    for _ in range(100):
        timed.play(timed.compute)
    for instance in instances:
        instance.run.share.computing.clear()
    for _ in range(50):
        timed.play(timed.compute)
    timed.order.clear()
    for instance in instances:
        timed.reply(instance)
    timed.play(wait, replies=True)
    assert timed.order == ["streams"] * 4
    timed.play(timed.compute)
    assert timed.order == ["streams"] * 4 + ["loops"]
    assert timed.flushes[-1] == 4  # their calls had left


def test_run_queue_lets_no_idle_tenant_save_up_time() -> None:
    timed = TimedRunQueue()
    timed.begin("loops", 2)
    (late,) = timed.begin("late")
    late.run.share.computing.clear()
    for _ in range(1_000):
        timed.play(timed.compute)
    timed.reply(late)
    timed.had.clear()
    for _ in range(10):
        timed.play(timed.compute)
    assert timed.had["loops"] >= 4 * SLICE_NS


def test_run_queue_charges_what_else_a_tenant_costs() -> None:
    timed = TimedRunQueue()
    timed.begin("starts", 4)
    timed.begin("plain", 4)
    timed.play(timed.compute)
    timed.turns.share_of("starts").used_ns += 10 * SLICE_NS  # fibers that were made meanwhile
    for _ in range(9):
        timed.play(timed.compute)
    assert timed.had["plain"] >= 9 * SLICE_NS


def test_run_queue_serves_computing_instances_beside_endless_replies() -> None:
    timed = TimedRunQueue()
    other = timed.begin("other")[0]
    instances = timed.begin("mine", 40)
    computing = instances.pop()
    share = computing.run.share
    share.computing.clear()
    share.computing.append(computing)
    computed = 0

    def work(instance: Instance) -> int:
        nonlocal computed
        if instance is computing or instance is other:
            computed += instance is computing
            return timed.compute(instance)
        timed.reply(instance)
        return SHORT_NS

    for instance in instances:
        timed.reply(instance)
    for _ in range(100):
        timed.play(work)
    assert 10 <= computed <= timed.had["mine"] // (2 * SLICE_NS) + 1


def test_run_queue_turn_of_replies_is_bounded() -> None:
    timed = TimedRunQueue()
    timed.begin("loops")
    instances = timed.begin("streams", 100)
    instances[0].run.share.computing.clear()
    timed.play(timed.compute)
    timed.turns.share_of("loops").used_ns += 100 * TURN_NS
    timed.order.clear()
    for instance in instances:
        timed.reply(instance)
    timed.play(wait, replies=True)
    assert len(timed.order) == TURN_NS // SHORT_NS
    assert timed.turns.waiting()


def test_run_queue_of_one_tenant_is_served_in_order() -> None:
    timed = TimedRunQueue()
    first, second = timed.begin("only", 2)
    turns, sole = timed.turns, timed.turns.sole
    assert not timed.shared()
    assert sole is first.run.share
    assert list(sole.ready) == [first, second]  # beginning, too
    assert turns.first() is None
    (other,) = timed.begin("other")
    assert timed.shared()
    timed.play(wait)
    assert sorted(timed.order) == ["only", "only", "other"]
    timed.reply(first)
    timed.end(other)
    assert not timed.shared()
    assert turns.sole is first.run.share
    assert turns.waiting()
    assert turns.sole.ready.popleft() is first
    assert not turns.waiting()


def test_run_queue_skips_ended_instances_and_forgets_empty_tenants() -> None:
    timed = TimedRunQueue()
    (instance,) = timed.begin("stays")
    ended, lives = timed.begin("goes", 2)
    timed.end(ended)
    timed.play(wait)
    assert sorted(timed.order) == ["goes", "stays"]
    timed.end(lives)
    assert len(timed.turns) == 1
    timed.begin("second")
    for number in range(1_000):
        (passing,) = timed.begin(f"tenant-{number}")
        timed.play(wait)
        timed.end(passing)
    assert len(timed.turns) < 100
    timed.end(instance)


def test_run_queue_gives_a_returning_tenant_no_extra_time() -> None:
    timed = TimedRunQueue()
    timed.begin("plain", 2)
    timed.begin("keeps", 1)
    for _ in range(300):
        (short,) = timed.begin("again")
        timed.play(timed.compute)
        timed.play(timed.compute)
        timed.end(short)
    assert timed.had["again"] <= timed.had["plain"] + SLICE_NS


def test_run_without_a_tenant_has_a_share_of_its_own() -> None:
    run, other = Run(1, {}), Run(2, {})
    assert isinstance(run.share, TenantShare)
    assert run.share is not other.share


def test_run_queue_gives_a_throttled_tenant_no_turn() -> None:
    timed = TimedRunQueue()
    (first, second), (other,) = timed.begin("rests", 2), timed.begin("goes on")
    timed.play(timed.compute)
    share = timed.turns.throttle("rests")
    assert share is not None
    assert timed.turns.throttle("rests") is share, "a second time changes nothing"
    timed.turns.enqueue_new(first) if not first.queued else None
    for _ in range(10):
        timed.play(timed.compute)
    assert timed.had["rests"] <= SLICE_NS
    assert timed.had["goes on"] >= 9 * SLICE_NS
    timed.end(other)
    assert timed.turns.waiting(), "a tenant that is alone is not throttled"
    assert not share.throttled
    assert not first.ended
    assert not second.ended


def test_run_queue_gives_an_unthrottled_tenant_its_fair_turns() -> None:
    timed = TimedRunQueue()
    timed.begin("rests")
    timed.begin("goes on")
    share = timed.turns.throttle("rests")
    assert share is not None
    for _ in range(10):
        timed.play(timed.compute)
    timed.turns.unthrottle(share)
    timed.turns.unthrottle(share)
    before = timed.had["goes on"]
    for _ in range(20):
        timed.play(timed.compute)
    assert timed.had["rests"] >= 9 * SLICE_NS
    assert timed.had["goes on"] - before >= 9 * SLICE_NS


def test_run_queue_of_throttled_tenants_waits_for_none() -> None:
    timed = TimedRunQueue()
    (instance,) = timed.begin("rests")
    timed.begin("waits")
    for _ in range(2):
        timed.play(lambda each: SHORT_NS if each is not instance else timed.compute(each))
    share = timed.turns.throttle("rests")
    assert share is not None
    assert not timed.turns.waiting()
    timed.turns.unthrottle(share)
    assert timed.turns.waiting()
    assert timed.turns.throttle("nobody") is None
