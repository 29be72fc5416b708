"""What one tenant could learn of another by asking and by the clock.

What is elsewhere: offered prefixes (`tests/kernel/syscalls/test_prefix_calls.py`, and by a program
in `guests/test_tenants.py`), programs and what was compiled of them
(`tests/runtime/gateway/programs/test_store.py`), connections and lookups
(`tests/runtime/gateway/egress`), budgets of pages (`tests/kernel/kvfs/tiers/test_tiers.py`,
`tests/kernel/kvfs/tiers/test_unrecomputable.py`), ids in routes (`clients/test_routes.py`).
"""

from tests.support.kernel.constrained import REGEX, constraint, kernel_with_text, start
from tests.support.worker.guests import script
from tests.support.worker.rig import WorkerRig


async def test_grammar_of_another_tenant_is_compiled_again() -> None:
    """The same text of a constraint, of two tenants: kept for each, so that time tells nothing."""
    async with kernel_with_text() as rig:
        await start(rig)
        await start(rig, 2, tenant="other")
        worker = rig.worker
        assert await constraint(worker, REGEX, b"[a-z]+", instance=1) == 1
        one = rig.kernel.statistics()["grammars_cached"]
        assert await constraint(worker, REGEX, b"[a-z]+", instance=1) == 2
        assert rig.kernel.statistics()["grammars_cached"] == one
        assert await constraint(worker, REGEX, b"[a-z]+", instance=2) == 1
        assert rig.kernel.statistics()["grammars_cached"] == one + 1


async def test_program_clocks_are_no_finer_than_a_millisecond(rig: WorkerRig) -> None:
    """WASI's clocks say nanoseconds, and mean milliseconds; a busy loop sees them jump by those."""
    steps = [step for _ in range(20) for step in
             (("clock_time_get", 0, 0, 0), ("show", 0, 8),
              ("clock_time_get", 1, 0, 8), ("show", 8, 8))]  # fmt: skip
    program = script(*steps)
    found = program.results((await rig.run(program.source)).messages)
    times = [int.from_bytes(each, "little") for each in found if isinstance(each, bytes)]
    assert len(times) == 40
    assert {time % 1_000_000 for time in times} == {0}
    for kind in (times[::2], times[1::2]):
        assert kind == sorted(kind)
