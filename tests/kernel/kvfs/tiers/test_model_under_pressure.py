"""The real tiny model on a device that is too small: the same bits as on one that is not."""

import asyncio
from typing import Any

import pytest
from symphony_kernel import tiny_model
from symphony_kernel.executor.torch_executor import TorchExecutor
from symphony_kernel.kernel import Kernel, KernelOptions, describe
from symphony_kernel.kvfs.tiers.config import TierConfig
from symphony_kernel.platform.clock import RealClock
from symphony_kernel.protocol.messages import Op

from tests.support.executor.native import native_library
from tests.support.kernel.rig import ASSETS, A, B, KernelRig, options, run_beside, start, tokens

LIPS, COUNT = 8, 20
FRAMES = 9  # of the 64 that the LIPs' files come to
SCORED = {"get": "argmax", "logprobs": 3}


async def program(rig: KernelRig, instance: int) -> list[Any]:
    """Compute a prompt and tokens, pause, and go on with the file and an extract of it."""
    worker = await start(rig, instance)
    prompt = tokens(*((instance * 37 + 11 * i) % 400 + 5 for i in range(70)))
    given = options(**SCORED)
    record = await worker.pred(instance, A, prompt, given)
    said: list[Any] = [record]
    for turn in range(COUNT):
        assert isinstance(record, bytes)
        if turn == COUNT // 2:
            await asyncio.sleep(0.15)
            worker.tell(instance, Op.KV_EXTRACT, B, A, tokens(0, 9, 30, 64))
            said.append(await worker.pred(instance, B, tokens(7, 8, 9), given))
        record = await worker.pred(instance, A, record[:4], given)
        said.append(record)
    said.append(await worker.pred(instance, B, tokens(10), given))
    await rig.gateway.end(instance)
    return said


def outcomes(frames: int, places: TierConfig) -> tuple[list[list[Any]], dict[str, Any]]:
    async def test(rig: KernelRig) -> tuple[list[list[Any]], dict[str, Any]]:
        said = await asyncio.gather(*(program(rig, i) for i in range(1, LIPS + 1)))
        await rig.gateway.check_integrity()
        return list(said), await rig.gateway.statistics()

    async def main() -> tuple[list[list[Any]], dict[str, Any]]:
        page_bytes = executor(1 << 20).pages.layout.page_bytes
        device = executor(frames * page_bytes)
        assert device.frame_count == frames
        kernel = Kernel(device, describe(ASSETS), RealClock(), KernelOptions(places=places))
        return await run_beside(kernel, test)

    return asyncio.run(main())


def executor(pool_bytes: int) -> TorchExecutor:
    return TorchExecutor.load(
        tiny_model.path(), dtype="fp32", device="cpu", threads=1, pool_bytes=pool_bytes
    )


@pytest.mark.parametrize(
    "places",
    [TierConfig(pages_a_frame=32, poison=True), TierConfig(128, pages_a_frame=8, poison=True)],
    ids=["tokens only", "host"],
)
def test_outputs_of_evicted_files_are_equal_to_the_last_bit(places: TierConfig) -> None:
    native_library()  # torch's bits depend on the batch
    expected, roomy = outcomes(256, TierConfig())
    said, crowded = outcomes(FRAMES, places)
    assert said == expected
    assert roomy["rebuilt_tokens"] == roomy["tiers_saved_pages"] == 0
    assert crowded["preds_starved"] == 0
    assert crowded["rebuilt_tokens"] or crowded["tiers_loaded_pages"]
