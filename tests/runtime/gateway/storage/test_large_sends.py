"""Memory for large messages: bounded, in turn between tenants, in order within one."""

from collections.abc import Callable
from functools import partial

from hypothesis import given
from hypothesis import strategies as st
from symphony_runtime.gateway.storage.large_sends import LargeSends

MOST = 64


def ask(
    sends: LargeSends, log: list[tuple[str, int]], tenant: str, size: int
) -> Callable[[], None]:
    return sends.ask(tenant, size, partial(log.append, (tenant, size)))


def test_tenant_alone_gets_half_and_the_rest_as_it_releases() -> None:
    sends, log = LargeSends(MOST), list[tuple[str, int]]()
    for _ in range(10):
        ask(sends, log, "a", 8)
    assert len(log) == 4
    sends.release("a", 8)
    assert len(log) == 5


def test_flood_of_a_tenant_leaves_memory_to_another() -> None:
    sends, log = LargeSends(MOST), list[tuple[str, int]]()
    for _ in range(1_000):
        ask(sends, log, "flood", 8)
    ask(sends, log, "other", 8)
    assert log[-1] == ("other", 8)


def test_messages_of_two_tenants_that_wait_are_granted_in_turn() -> None:
    sends, log = LargeSends(MOST), list[tuple[str, int]]()
    for _ in range(4):
        ask(sends, log, "first", 8)
    for tenant in ("a", "b"):
        for _ in range(3):
            ask(sends, log, tenant, 16)
    del log[:]
    sends.release("first", 32)
    assert log[:2] in ([("a", 16), ("b", 16)], [("b", 16), ("a", 16)])


def test_cancelled_message_gets_nothing_and_lets_the_next_one_go() -> None:
    sends, log = LargeSends(MOST), list[tuple[str, int]]()
    ask(sends, log, "a", 16)
    large = ask(sends, log, "a", 32)
    ask(sends, log, "a", 8)
    assert log == [("a", 16)]
    large()
    assert log == [("a", 16), ("a", 8)]
    large()  # a second time does nothing
    for size in (16, 8):
        sends.release("a", size)
    ask(sends, log, "a", MOST // 2)
    assert log[-1] == ("a", MOST // 2)


STEPS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(1, MOST // 2), st.sampled_from(range(5))),
    max_size=200,
)


@given(STEPS)
def test_bytes_granted_stay_bounded_and_every_message_is_granted_in_the_end(
    steps: list[tuple[str, int, int]],
) -> None:
    sends, held, waiting = (
        LargeSends(MOST),
        list[tuple[str, int]](),
        dict[int, Callable[[], None]](),
    )
    order: dict[str, list[int]] = {tenant: [] for tenant in "abc"}
    cancelled = set[int]()

    def granted(tenant: str, size: int, number: int) -> None:
        assert number not in cancelled
        held.append((tenant, size))
        order[tenant].append(number)
        waiting.pop(number, None)

    for number, (tenant, size, kind) in enumerate(steps):
        if kind == 0 and held:
            sends.release(*held.pop(size % len(held)))
        elif kind == 1 and waiting:
            gone = next(iter(waiting))
            cancelled.add(gone)
            waiting.pop(gone)()
        else:
            asked = len(held)
            cancel = sends.ask(tenant, size, partial(granted, tenant, size, number))
            if len(held) == asked or number not in order[tenant]:
                waiting[number] = cancel
        assert sum(each for _, each in held) <= MOST
    while held:
        sends.release(*held.pop())
    assert not waiting
    assert all(numbers == sorted(numbers) for numbers in order.values())
