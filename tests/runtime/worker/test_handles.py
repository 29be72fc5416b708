"""The worker's tables of handles and tickets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from symphony_kernel.protocol.errno import SyscallError
from symphony_kernel.protocol.limits import (
    INSTANCE_HANDLES_MAX,
    RUN_RESULT_BYTES_MAX,
    RUN_TICKETS_MAX,
)
from symphony_runtime.worker.handles import APPEND, READ, Handles
from symphony_runtime.worker.run import Run
from symphony_runtime.worker.tickets import NUMBER_MAX, Tickets


def tickets_of(run: Run) -> Tickets:
    return Tickets(run.tickets, run.results)


def test_handle_numbers_are_positive_and_have_a_generation() -> None:
    handles = Handles(Run(1, {}).handles)
    assert [handles.allocate(31) for _ in range(3)] == [0x10000, 0x10001, 0x10002]
    handles.close(0x10001)
    assert handles.allocate(1) == 0x10003  # a closed index rests as long as there are others


def test_handle_index_is_reused_with_the_next_generation() -> None:
    handles = Handles(Run(1, {}).handles)
    numbers = [handles.allocate(31) for _ in range(INSTANCE_HANDLES_MAX)]
    with pytest.raises(SyscallError, match="EDQUOT"):
        handles.allocate(31)
    handles.close(numbers[7])
    handles.close(numbers[3])
    assert [handles.allocate(31), handles.allocate(31)] == [2 << 16 | 7, 2 << 16 | 3]
    for _ in range(40_000):  # generations wrap around and never give 0 or a negative number
        handles.close(number := next(iter(handles.rights)))
        assert 0 < handles.allocate(31) < 1 << 31
        assert number not in handles.rights


@given(st.lists(st.integers(0, 31), max_size=20), st.integers(0, 31))
def test_handle_without_the_needed_rights_is_eacces(masks: list[int], needed: int) -> None:
    handles = Handles(Run(1, {}).handles)
    for mask in masks:
        number = handles.allocate(mask)
        if needed & ~mask:
            with pytest.raises(SyscallError, match="EACCES"):
                handles.require(number, needed)
        else:
            assert handles.require(number, needed) == mask


def test_handle_that_is_not_open_is_ebadf() -> None:
    handles = Handles(Run(1, {}).handles)
    number = handles.allocate(READ | APPEND)
    handles.close(number)
    for bad in (number, 0, -1, number + 1, 1 << 40):
        for touch in (handles.close, lambda n: handles.require(n, 0)):
            with pytest.raises(SyscallError, match="EBADF"):
                touch(bad)
    assert not handles.rights


def test_tickets_are_limited_in_number_and_in_room_for_results() -> None:
    tickets = tickets_of(Run(1, {}))
    first = tickets.issue(held=RUN_RESULT_BYTES_MAX)
    with pytest.raises(SyscallError, match="ENOMEM"):
        tickets.issue(held=1)
    tickets.free(first)
    made = [tickets.issue() for _ in range(RUN_TICKETS_MAX)]
    with pytest.raises(SyscallError, match="EAGAIN"):
        tickets.issue()
    assert len({ticket.number for ticket in made}) == RUN_TICKETS_MAX == len(tickets.live)


def test_ticket_numbers_wrap_around_and_skip_live_ones() -> None:
    tickets = tickets_of(Run(1, {}))
    one = tickets.issue()
    tickets._last = NUMBER_MAX - 1
    assert tickets.issue().number == NUMBER_MAX
    assert tickets.issue().number == 2
    assert tickets.get(1) is one
