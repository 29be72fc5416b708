"""What a run's instances hold together: none is refused before the sum is full."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from symphony_kernel.protocol.errno import Errno, LimitError
from symphony_runtime.worker.limit_pool import LimitLease, LimitPool

MOST, EACH, LOT = 20, 12, 4


class Holder:
    """An instance that holds so many."""

    def __init__(self, pool: LimitPool) -> None:
        self.held = 0
        self.lease = LimitLease(pool, lambda: self.held)

    def take(self) -> None:
        if self.held >= self.lease.granted:
            self.lease.extend(self.held + 1)
        self.held += 1


def pool_of(most: int = MOST) -> LimitPool:
    return LimitPool("tickets", Errno.EAGAIN, most, EACH, LOT)


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=120))
def test_limit_pool_refuses_only_past_its_limit_or_the_sum(steps: list[tuple[int, bool]]) -> None:
    pool = pool_of()
    holders = [Holder(pool) for _ in range(4)]
    for index, takes in steps:
        holder = holders[index]
        if not takes:
            holder.held = max(0, holder.held - 1)
            continue
        total = sum(each.held for each in holders)
        if holder.held == EACH or total == MOST:
            with pytest.raises(LimitError) as refused:
                holder.take()
            assert (refused.value.errno, refused.value.limit) == (Errno.EAGAIN, "tickets")
        else:
            holder.take()
        assert sum(each.lease.granted for each in holders) <= MOST
        assert all(each.held <= EACH for each in holders)


def test_limit_pool_gives_others_what_an_ended_instance_held() -> None:
    pool = pool_of(most=EACH)
    first, second = Holder(pool), Holder(pool)
    for _ in range(EACH):
        first.take()
    with pytest.raises(LimitError):
        second.take()
    first.lease.release()
    for _ in range(EACH):
        second.take()
    assert pool.leases == {second.lease}


def test_limit_pool_names_the_lower_limit() -> None:
    holder = Holder(pool_of(most=3))
    for _ in range(3):
        holder.take()
    with pytest.raises(LimitError, match="at most 3"):
        holder.take()
