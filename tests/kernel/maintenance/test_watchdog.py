"""A kernel that has lost a request logs it, continues, and fails what waits for ever."""

import logging

import pytest
from symphony_kernel.executor.base import Batch
from symphony_kernel.kernel import KernelOptions
from symphony_kernel.protocol.errno import Errno
from symphony_kernel.scheduler.batcher import Step

from tests.support.kernel.rig import PROMPT, A, KernelRig, start, with_kernel
from tests.support.run_by import run_by

WATCHED = KernelOptions(stall_seconds=2.0)


async def pred(rig: KernelRig) -> int | bytes:
    worker = await start(rig)
    result = await worker.pred(1, A, PROMPT)
    await rig.gateway.end(1)
    return result


def test_lost_step_is_dropped_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def lost(rig: KernelRig) -> tuple[int | bytes, int]:
        # As if the device had been done with it before it became a step.
        rig.kernel._scheduler._steps.append(Step([], Batch([]), 0))
        result = await pred(rig)
        return result, (await rig.gateway.statistics())["stalls"]

    with caplog.at_level(logging.ERROR):
        result, stalls = with_kernel(lost, kernel_options=WATCHED)
    assert isinstance(result, bytes)
    assert stalls == 1
    assert "STALL" in caplog.text
    assert "1 requests queued" in caplog.text


def test_stalled_requests_end_with_eio(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def blind(rig: KernelRig) -> tuple[int | bytes, int | bytes]:
        with monkeypatch.context() as context:
            context.setattr(rig.kernel._scheduler, "poll", lambda: None)
            first = await pred(rig)
        return first, await pred(rig)

    with caplog.at_level(logging.ERROR):
        first, second = with_kernel(blind, kernel_options=WATCHED)
    assert first == -Errno.EIO
    assert isinstance(second, bytes)
    assert "1 requests end with EIO" in caplog.text


@run_by(with_kernel, kernel_options=WATCHED)
async def test_generation_waiting_for_its_program_is_no_stall(rig: KernelRig) -> None:
    worker = await start(rig)
    made = worker.generate(1, A, PROMPT, eager=False, ahead=2, max=10)
    while len(made.records) < 3:
        await rig.kernel._clock.sleep(0.1)
    for _ in range(200):  # its records are not taken
        await rig.kernel._clock.sleep(0.1)
    made.cancel()
    await made.end
    await rig.gateway.end(1)
    stalls: int = (await rig.gateway.statistics())["stalls"]
    assert stalls == 0
