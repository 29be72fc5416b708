"""The look at what is left of memory."""

from symphony_runtime.gateway.admission.memory import Memory

from tests.runtime.gateway.admission.test_pace import Time


def test_it_is_looked_up_now_and_then() -> None:
    time, found = Time(), [3, 2, 1]
    memory = Memory(found.pop, time)
    assert [memory.left() for _ in range(5)] == [1] * 5
    time.now += 1.0
    assert memory.left() == 2
    assert Memory().left() is None or Memory().left() != 0
