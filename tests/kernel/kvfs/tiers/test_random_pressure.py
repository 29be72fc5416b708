"""Random calls on a device that is too small have the answers of a large one."""

import asyncio
from typing import Any

from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from symphony_kernel.kernel import KernelOptions
from symphony_kernel.kvfs.tiers.config import TierConfig
from symphony_kernel.protocol.errno import Errno
from symphony_kernel.scheduler.batcher import StepLimits

from tests.support.kernel.rig import KernelRig, with_kernel
from tests.support.kernel.scripts import Lip, Script

OPERATIONS = ("prompt", "decode", "fork", "truncate", "extract", "append", "peek", "tree", "pause",
              "generate")  # fmt: skip
LOOK_SECONDS, LOOKS_MAX = 0.05, 2_000  # of virtual time; the longest of 400 examples needed 31
SCRIPTS = st.builds(
    Script,
    tenant=st.integers(0, 2),
    begins_ms=st.integers(0, 60),
    operations=st.lists(
        st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 5), st.integers(1, 60)),
        min_size=1,
        max_size=12,
    ).map(tuple),
)


class TooLargeError(Exception):
    """A file, with what it takes to compute it again, does not fit the device."""


async def answers(lip: Lip) -> list[Any]:
    """Return a LIP's answers; a script whose file can never fit is left out."""
    try:
        heard = await lip.run()
    except (AssertionError, OverflowError) as error:  # it used an errno as a length
        raise TooLargeError from error
    for answer in heard:
        refused = answer in (-Errno.ENOMEM, -Errno.EDQUOT)
        if refused or (isinstance(answer, tuple) and -Errno.EINVAL in answer):
            raise TooLargeError
    return heard


def outcomes(scripts: list[Script], frames: int, places: TierConfig, steps: StepLimits) -> Any:
    async def test(rig: KernelRig) -> Any:
        lips = [Lip(rig, i, script) for i, script in enumerate(scripts, start=1)]
        running = [asyncio.create_task(answers(lip)) for lip in lips]
        looks = 0
        while not all(task.done() for task in running):
            looks += 1
            assert looks < LOOKS_MAX, "a program waits for ever"
            await rig.gateway.check_integrity()
            await asyncio.sleep(LOOK_SECONDS)
        heard = await asyncio.gather(*running, return_exceptions=True)
        for instance, each in enumerate(heard, start=1):
            if isinstance(each, TooLargeError):
                await rig.gateway.end(instance)
            elif isinstance(each, BaseException):
                raise each
        await rig.gateway.check_integrity()
        return heard

    kernel_options = KernelOptions(steps=steps, places=places)
    return with_kernel(test, pages=frames, kernel_options=kernel_options)


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(SCRIPTS, min_size=2, max_size=8),
    st.integers(12, 24),
    st.sampled_from([0, 8, 64]),
    st.builds(
        StepLimits,
        tokens=st.integers(64, 300),
        rows=st.integers(1, 8),
        quantum=st.sampled_from([16, 64]),
    ),
)
@example(  # a tenant's row that took more tokens than its share left it less than none
    [
        Script(0, 11, (("peek", 0, 1),)),
        Script(1, 1, (("prompt", 0, 27),)),
        Script(2, 31, (("prompt", 0, 19),)),
        Script(2, 31, (("prompt", 0, 19),)),
        Script(1, 0, (("prompt", 0, 1), ("prompt", 0, 1), ("prompt", 0, 27))),
        Script(2, 1, (("decode", 0, 21), ("peek", 0, 1))),
    ],
    12,
    0,
    StepLimits(tokens=64, rows=1, quantum=16),
)
def test_programs_under_pressure_get_what_they_get_with_room(
    scripts: list[Script], frames: int, host_slots: int, steps: StepLimits
) -> None:
    places = TierConfig(host_slots, pages_a_frame=64, poison=True)
    crowded = outcomes(scripts, frames, places, steps)
    fitting = [i for i, each in enumerate(crowded) if not isinstance(each, TooLargeError)]
    assume(fitting)
    roomy = outcomes(scripts, 4_096, TierConfig(), StepLimits())
    assert [crowded[i] for i in fitting] == [roomy[i] for i in fitting]
