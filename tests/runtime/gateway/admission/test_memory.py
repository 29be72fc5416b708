"""The look at what is left of memory."""

from symphony_runtime.gateway.admission.memory import MemoryGuard

from tests.runtime.gateway.admission.test_pace import Time


def test_it_is_looked_up_now_and_then() -> None:
    time, found = Time(), [3, 2, 1]
    memory = MemoryGuard(found.pop, time)
    assert [memory.left() for _ in range(5)] == [1] * 5
    time.now += 1.0
    assert memory.left() == 2
    assert MemoryGuard().left() is None or MemoryGuard().left() != 0
