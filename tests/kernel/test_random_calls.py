"""Any course of events gives each LIP what it would get alone or with room, and all pages back."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from symphony_kernel.executor.base import Executor
from symphony_kernel.executor.simulated_gpu import SimulatedGPU
from symphony_kernel.kernel import KernelOptions
from symphony_kernel.kvfs.tiers.config import TierConfig
from symphony_kernel.platform.clock import Clock
from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.messages import Op
from symphony_kernel.scheduler.batcher import StepLimits

from tests.support.kernel.rig import ANY_MS, KernelRig, tokens, with_kernel
from tests.support.kernel.scripts import FIRST, Lip, Script
from tests.support.run_by import run_by

OPERATIONS = ("prompt", "decode", "fork", "truncate", "extract", "append", "peek", "tree", "pause",
              "generate")  # fmt: skip
LOOK_SECONDS, LOOKS_MAX = 0.05, 2_000  # of virtual time; the longest of 400 examples needed 31


def scripts_of(operations: Sequence[str], much: int, lips: int) -> st.SearchStrategy[list[Script]]:
    """Scripts of two to `lips` LIPs, whose operations are of size `much` at most."""
    operation = st.tuples(st.sampled_from(operations), st.integers(0, 5), st.integers(1, much))
    script = st.builds(
        Script,
        tenant=st.integers(0, 2),
        begins_ms=st.integers(0, 60),
        operations=st.lists(operation, min_size=1, max_size=12).map(tuple),
    )
    return st.lists(script, min_size=2, max_size=lips)


class TooLargeError(Exception):
    """A file, with what it takes to compute it again, does not fit the device."""


async def fitting_answers(lip: Lip) -> list[Any]:
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


def outcomes(
    scripts: list[Script],
    pages: int,
    options: KernelOptions,
    run: Callable[[Lip], Coroutine[Any, Any, list[Any]]] = Lip.run,
    device: Callable[[Clock], Executor] | None = None,
) -> list[Any]:
    """Return what `run` gives for each script, or its TooLargeError."""

    async def test(rig: KernelRig) -> list[Any]:
        lips = [Lip(rig, i, script) for i, script in enumerate(scripts, start=1)]
        running = [asyncio.create_task(run(lip)) for lip in lips]
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

    return with_kernel(test, pages=pages, kernel_options=options, executor=device)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    scripts_of((*OPERATIONS, "generate", "generate", "complete"), much=90, lips=6),
    st.integers(16, 300),
    st.integers(2, 8),
    st.integers(0, 3_000),
)
def test_lips_on_a_device_that_launches_ahead_get_what_each_gets_alone(
    scripts: list[Script], tokens_max: int, rows: int, host_us: int
) -> None:
    def device(clock: Clock) -> Executor:
        return SimulatedGPU(clock, 4096, costs=ANY_MS, host_us=host_us)

    one_tenant = [replace(script, tenant=0) for script in scripts]
    steps = StepLimits(tokens=tokens_max, rows=rows, quantum=16)
    together = outcomes(one_tenant, 4096, KernelOptions(steps=steps), device=device)
    for script, result in zip(one_tenant, together, strict=True):
        assert outcomes([script], 4096, KernelOptions()) == [result]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    scripts_of((*OPERATIONS, "complete", "complete"), much=90, lips=6),
    st.integers(16, 300),
    st.integers(1, 8),
    st.sampled_from([1, 16, 64]),
)
def test_lips_together_get_what_each_gets_alone(
    scripts: list[Script], tokens_max: int, rows: int, quantum: int
) -> None:
    steps = StepLimits(tokens=tokens_max, rows=rows, quantum=quantum)
    together = outcomes(scripts, 4096, KernelOptions(steps=steps))
    for script, result in zip(scripts, together, strict=True):
        assert outcomes([script], 4096, KernelOptions()) == [result]


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    scripts_of(OPERATIONS, much=60, lips=8),
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
    options = KernelOptions(steps=steps, places=places)
    crowded = outcomes(scripts, frames, options, fitting_answers)
    fitting = [i for i, each in enumerate(crowded) if not isinstance(each, TooLargeError)]
    assume(fitting)
    roomy = outcomes(scripts, 4_096, KernelOptions(), fitting_answers)
    assert [crowded[i] for i in fitting] == [roomy[i] for i in fitting]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(st.integers(1, 400), st.integers(0, 60), st.sampled_from(["end", "cancel", ""])),
        min_size=2,
        max_size=12,
    )
)
@run_by(with_kernel, pages=24)
async def test_pool_that_is_too_small_gets_every_page_back(
    rig: KernelRig, *, preds: list[tuple[int, int, str]]
) -> None:
    async def lip(instance: int, length: int, at_ms: int, fate: str) -> None:
        await rig.gateway.register(instance, tenant=f"t{instance % 2}")
        rig.worker.tell(instance, Op.KV_CREATE, FIRST)
        await asyncio.sleep(at_ms / 1000)
        reply = rig.worker.pred(instance, FIRST, tokens(*range(1, length + 1)))
        seq = max(s for i, s in rig.worker.replies if i == instance)
        if fate == "cancel":
            await asyncio.sleep(0.005)
            rig.worker.tell(instance, Op.CANCEL, seq)
        if fate != "end":
            rig.worker.tell(instance, Op.KV_OFFER, FIRST)
            result = await reply
            assert isinstance(result, bytes) or result in (-Errno.ENOMEM, -Errno.ECANCELED)
            assert not (fate == "" and result == -Errno.ECANCELED)
        await asyncio.sleep(0.02)
        await rig.gateway.end(instance)

    await asyncio.gather(*(lip(i, *pred) for i, pred in enumerate(preds, start=1)))
    await rig.gateway.check_integrity()
