"""Any course of events gives each LIP what it would get alone, and gives every page back."""

import asyncio
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from symphony_kernel.kernel import KernelOptions
from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.messages import Op
from symphony_kernel.scheduler.batcher import StepLimits

from tests.support.kernel.rig import KernelRig, tokens, with_kernel
from tests.support.kernel.scripts import FIRST, Lip, Script
from tests.support.run_by import run_by

OPERATIONS = st.tuples(
    st.sampled_from(
        [
            "prompt",
            "decode",
            "fork",
            "truncate",
            "extract",
            "append",
            "peek",
            "tree",
            "pause",
            "complete",
            "complete",
            "generate",
        ]
    ),
    st.integers(0, 5),
    st.integers(1, 90),
)
SCRIPTS = st.builds(
    Script,
    tenant=st.integers(0, 2),
    begins_ms=st.integers(0, 60),
    operations=st.lists(OPERATIONS, min_size=1, max_size=12).map(tuple),
)


def outcomes(scripts: list[Script], pages: int, steps: StepLimits) -> list[list[Any]]:
    async def test(rig: KernelRig) -> list[list[Any]]:
        lips = [Lip(rig, i, script) for i, script in enumerate(scripts, start=1)]
        running = [asyncio.create_task(lip.run()) for lip in lips]
        while not all(task.done() for task in running):
            await rig.gateway.check_integrity()
            await asyncio.sleep(0.05)
        await rig.gateway.check_integrity()
        return [task.result() for task in running]

    return with_kernel(test, pages=pages, kernel_options=KernelOptions(steps=steps))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(SCRIPTS, min_size=2, max_size=6),
    st.integers(16, 300),
    st.integers(1, 8),
    st.sampled_from([1, 16, 64]),
)
def test_together_each_gets_what_it_gets_alone(
    scripts: list[Script], tokens_max: int, rows: int, quantum: int
) -> None:
    limits = StepLimits(tokens=tokens_max, rows=rows, quantum=quantum)
    together = outcomes(scripts, 4096, limits)
    for script, result in zip(scripts, together, strict=True):
        assert outcomes([script], 4096, StepLimits()) == [result]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(st.integers(1, 400), st.integers(0, 60), st.sampled_from(["end", "cancel", ""])),
        min_size=2,
        max_size=12,
    )
)
@run_by(with_kernel, pages=24)
async def test_in_a_pool_that_is_too_small_everybody_ends_and_every_page_comes_back(
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
