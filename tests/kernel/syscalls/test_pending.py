"""A generation's counters: when it has ended, and when it waits for its program."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from symphony_kernel.protocol.generate_options import GenerateOptions
from symphony_kernel.syscalls.pending import RunAhead


def record(token: int) -> bytes:
    return token.to_bytes(4, "little") + bytes(4)


@pytest.mark.parametrize(("most", "room", "count"), [(3, 9, 3), (9, 3, 3), (1, 1, 1)])
def test_generation_ends_with_max_or_its_room(most: int, room: int, count: int) -> None:
    run = RunAhead(GenerateOptions(tokens_max=most, ahead=100), room)
    assert [run.add_given(record(5)) for _ in range(count)] == [False] * (count - 1) + [True]


def test_generation_ends_with_a_stop_token() -> None:
    run = RunAhead(GenerateOptions(stop=frozenset({7, 1 << 31})), 100)
    assert not any(run.add_given(record(token)) for token in (1, 2, 8))
    assert run.add_given(record(1 << 31))


@given(st.integers(0, 20), st.lists(st.integers(0, 8), max_size=60))
def test_generation_stalls_past_its_untaken_records(ahead: int, takes: list[int]) -> None:
    run = RunAhead(GenerateOptions(ahead=ahead), 10_000)
    given_, taken = 0, 0
    for take in takes:
        while not run.stalled:
            assert not run.add_given(record(1))
            given_ += 1
        assert given_ - taken == ahead + 1
        take = min(take, run.untaken)
        if take:
            run.add_taken(take)
        taken += take
        assert run.untaken == given_ - taken


def test_more_than_was_given_cannot_be_taken() -> None:
    run = RunAhead(GenerateOptions(), 10)
    run.add_given(record(1))
    for n in (0, 2):
        with pytest.raises(AssertionError):
            run.add_taken(n)
