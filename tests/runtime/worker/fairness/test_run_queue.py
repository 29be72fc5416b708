"""Turns of tenants, in virtual time: what a slice takes is what the test says."""

from collections import Counter
from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import cast

from symphony_runtime.worker.fairness.run_queue import SLICE_NS, TURN_NS, RunQueue, TenantShare
from symphony_runtime.worker.instance import Instance, Services
from symphony_runtime.worker.run import Run

SHORT_NS = SLICE_NS // 10  # of one that makes a call and waits


class House:
    """Instances of tenants that take turns; `had`: nanoseconds by tenant."""

    def __init__(self) -> None:
        self.turns = RunQueue()
        self.had: Counter[str] = Counter()
        self.order: list[str] = []  # whose slices, one after the other
        self.flushes: list[int] = []  # how many slices there had been
        self._ids = count(1)

    def begin(self, tenant: str, number: int = 1) -> list[Instance]:
        """Start some instances."""
        made = []
        services = cast(Services, SimpleNamespace(now=lambda: 0.0))
        for _ in range(number):
            share = self.turns.share_of(tenant)
            made.append(Instance(services, Run(1, {}, share), next(self._ids), b""))
            self.turns.add_instance(share)
            self.turns.enqueue_new(made[-1])
        return made

    def end(self, instance: Instance) -> None:
        """End one, wherever it is queued."""
        instance.ended = True
        self.turns.remove_instance(instance.run.share)

    def reply(self, instance: Instance) -> None:
        """Let one go on that waited."""
        instance.queued = True
        instance.run.share.ready.append(instance)
        if not instance.run.share.listed:
            self.turns.enlist(instance.run.share)

    def play(self, work: Callable[[Instance], int], *, replies: bool = False) -> None:
        """One turn."""

        def told(instance: Instance) -> int:
            used = work(instance)
            self.order.append(instance.run.share.tenant)
            self.had[instance.run.share.tenant] += used
            return used

        self.turns.run_turn(told, lambda: self.flushes.append(len(self.order)), replies=replies)

    def shared(self) -> bool:
        """Whether several tenants have instances."""
        return self.turns.shared

    def compute(self, instance: Instance) -> int:
        """Use up a slice and want another."""
        instance.queued = True
        instance.run.share.computing.append(instance)
        return SLICE_NS


def wait(_: Instance) -> int:
    """Make a call and wait."""
    return SHORT_NS


def test_tenants_have_the_same_time_however_many_they_have() -> None:
    house = House()
    house.begin("many", 12)
    house.begin("few")
    house.begin("some", 3)
    for _ in range(300):
        house.play(house.compute)
    assert house.had.total() >= 300 * SLICE_NS
    assert max(house.had.values()) - min(house.had.values()) <= SLICE_NS


def test_who_waits_for_replies_goes_before_all_that_compute() -> None:
    house = House()
    house.begin("loops", 50)
    instances = house.begin("streams", 4)
    for _ in range(100):
        house.play(house.compute)
    for instance in instances:
        instance.run.share.computing.clear()
    for _ in range(50):
        house.play(house.compute)
    house.order.clear()
    for instance in instances:
        house.reply(instance)
    house.play(wait, replies=True)
    assert house.order == ["streams"] * 4
    house.play(house.compute)
    assert house.order == ["streams"] * 4 + ["loops"]
    assert house.flushes[-1] == 4  # their calls had left


def test_nobody_saves_up_time() -> None:
    house = House()
    house.begin("loops", 2)
    (late,) = house.begin("late")
    late.run.share.computing.clear()
    for _ in range(1_000):
        house.play(house.compute)
    house.reply(late)
    house.had.clear()
    for _ in range(10):
        house.play(house.compute)
    assert house.had["loops"] >= 4 * SLICE_NS


def test_what_else_a_tenant_costs_counts() -> None:
    house = House()
    house.begin("starts", 4)
    house.begin("plain", 4)
    house.play(house.compute)
    house.turns.share_of("starts").used_ns += 10 * SLICE_NS  # fibers that were made meanwhile
    for _ in range(9):
        house.play(house.compute)
    assert house.had["plain"] >= 9 * SLICE_NS


def test_a_tenants_replies_do_not_keep_its_computing_ones_waiting_for_ever() -> None:
    house = House()
    other = house.begin("other")[0]
    instances = house.begin("mine", 40)
    computing = instances.pop()
    share = computing.run.share
    share.computing.clear()
    share.computing.append(computing)
    computed = 0

    def work(instance: Instance) -> int:
        nonlocal computed
        if instance is computing or instance is other:
            computed += instance is computing
            return house.compute(instance)
        house.reply(instance)
        return SHORT_NS

    for instance in instances:
        house.reply(instance)
    for _ in range(100):
        house.play(work)
    assert 10 <= computed <= house.had["mine"] // (2 * SLICE_NS) + 1


def test_a_turn_of_replies_has_its_end() -> None:
    house = House()
    house.begin("loops")
    instances = house.begin("streams", 100)
    instances[0].run.share.computing.clear()
    house.play(house.compute)
    house.turns.share_of("loops").used_ns += 100 * TURN_NS
    house.order.clear()
    for instance in instances:
        house.reply(instance)
    house.play(wait, replies=True)
    assert len(house.order) == TURN_NS // SHORT_NS
    assert house.turns.waiting()


def test_one_tenant_alone_is_taken_as_it_comes() -> None:
    house = House()
    first, second = house.begin("only", 2)
    turns, sole = house.turns, house.turns.sole
    assert not house.shared()
    assert sole is first.run.share
    assert list(sole.ready) == [first, second]  # beginning, too
    assert turns.first() is None
    (other,) = house.begin("other")
    assert house.shared()
    house.play(wait)
    assert sorted(house.order) == ["only", "only", "other"]
    house.reply(first)
    house.end(other)
    assert not house.shared()
    assert turns.sole is first.run.share
    assert turns.waiting()
    assert turns.sole.ready.popleft() is first
    assert not turns.waiting()


def test_ended_ones_are_passed_over_and_tenants_without_any_forgotten() -> None:
    house = House()
    (instance,) = house.begin("stays")
    ended, lives = house.begin("goes", 2)
    house.end(ended)
    house.play(wait)
    assert sorted(house.order) == ["goes", "stays"]
    house.end(lives)
    assert len(house.turns) == 1
    house.begin("second")
    for number in range(1_000):
        (passing,) = house.begin(f"tenant-{number}")
        house.play(wait)
        house.end(passing)
    assert len(house.turns) < 100
    house.end(instance)


def test_a_tenant_that_ends_all_and_comes_again_has_no_more() -> None:
    house = House()
    house.begin("plain", 2)
    house.begin("keeps", 1)
    for _ in range(300):
        (short,) = house.begin("again")
        house.play(house.compute)
        house.play(house.compute)
        house.end(short)
    assert house.had["again"] <= house.had["plain"] + SLICE_NS


def test_a_share_of_its_own_is_what_a_run_has_without_a_tenant() -> None:
    run, other = Run(1, {}), Run(2, {})
    assert isinstance(run.share, TenantShare)
    assert run.share is not other.share


def test_one_that_rests_gets_no_turn_whatever_comes_for_it() -> None:
    house = House()
    (first, second), (other,) = house.begin("rests", 2), house.begin("goes on")
    house.play(house.compute)
    share = house.turns.throttle("rests")
    assert share is not None
    assert house.turns.throttle("rests") is share, "once more says nothing new"
    house.turns.enqueue_new(first) if not first.queued else None
    for _ in range(10):
        house.play(house.compute)
    assert house.had["rests"] <= SLICE_NS
    assert house.had["goes on"] >= 9 * SLICE_NS
    house.end(other)
    assert house.turns.waiting(), "who is alone rests no more"
    assert not share.throttled
    assert {first.ended, second.ended} == {False}


def test_after_it_one_has_its_turns_and_no_more_than_others() -> None:
    house = House()
    house.begin("rests")
    house.begin("goes on")
    share = house.turns.throttle("rests")
    assert share is not None
    for _ in range(10):
        house.play(house.compute)
    house.turns.unthrottle(share)
    house.turns.unthrottle(share)
    before = house.had["goes on"]
    for _ in range(20):
        house.play(house.compute)
    assert house.had["rests"] >= 9 * SLICE_NS
    assert house.had["goes on"] - before >= 9 * SLICE_NS


def test_when_all_that_want_a_turn_rest_nobody_is_waited_for() -> None:
    house = House()
    (instance,) = house.begin("rests")
    house.begin("waits")
    house.play(lambda each: SHORT_NS if each is not instance else house.compute(each))
    house.play(lambda each: SHORT_NS if each is not instance else house.compute(each))
    share = house.turns.throttle("rests")
    assert share is not None
    assert not house.turns.waiting()
    house.turns.unthrottle(share)
    assert house.turns.waiting()
    assert house.turns.throttle("nobody") is None
