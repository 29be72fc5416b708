"""A program that waits for the outside says so to the kernel; for a pred, it does not."""

import struct
from typing import Any

from symphony_kernel.executor.simulated import CostModel
from symphony_kernel.platform.clock import VirtualClock
from symphony_kernel.protocol import messages as m

from tests.support.worker.guests import Step, data, result
from tests.support.worker.rig import WorkerRig

PROMPT = data(100, struct.pack("<4I", 5, 6, 7, 8))


def told(*steps: Step, costs: CostModel | None = None) -> list[tuple[int, ...]]:
    """Play a script and return what the kernel was told of waiting, between its other calls."""
    clock = VirtualClock()
    calls: list[tuple[int, ...]] = []

    async def main() -> None:
        async with WorkerRig(clock=clock, costs=costs) as rig:
            execute = rig.kernel.execute_calls

            def listen(port: Any, given: list[Any]) -> None:
                calls.extend((call[1], *call[3:4]) for call in given)
                execute(port, given)

            rig.kernel.execute_calls = listen  # type: ignore[method-assign, assignment]
            await rig.play(*steps, parts=(PROMPT,))

    clock.run(main())
    return [call for call in calls if call[0] in (m.Op.WAITS, m.Op.PRED)]


def test_idle_hint_is_sent_for_a_long_wait_and_at_its_end() -> None:
    found = told(
        ("kv_create",), ("pred", result(0), 100, 4, 0, 0, 0), ("await", result(1)),
        ("sleep", 400), ("await", result(3)),
        ("pred", result(0), 100, 1, 0, 0, 0), ("await", result(5)),
    )  # fmt: skip
    assert [call[0] for call in found] == [m.Op.PRED, m.Op.WAITS, m.Op.WAITS, m.Op.PRED]
    assert [call[1] for call in found if call[0] == m.Op.WAITS] == [1, 0]


def test_idle_hint_is_not_sent_for_short_waits_or_without_files() -> None:
    assert told(("sleep", 400), ("await", result(0))) == []
    found = told(("kv_create",), ("sleep", 20), ("await", result(1)), ("sleep", 20),
                 ("await", result(3)))  # fmt: skip
    assert found == []


def test_idle_hint_is_not_sent_while_a_pred_is_pending() -> None:
    found = told(
        ("kv_create",), ("pred", result(0), 100, 4, 0, 0, 0), ("sleep", 400),
        ("await", result(2)), ("await", result(1)),
        costs=CostModel(fixed_us=1e6),
    )  # fmt: skip
    assert [call[0] for call in found] == [m.Op.PRED]
