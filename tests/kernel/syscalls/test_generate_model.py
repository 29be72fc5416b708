"""`generate` on the real tiny model: what a loop of preds gives, alone and in any batch."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from symphony_kernel import tiny_model
from symphony_kernel.executor.torch_executor import TorchExecutor
from symphony_kernel.kernel import Kernel, KernelOptions, describe
from symphony_kernel.platform.clock import RealClock
from symphony_kernel.protocol.messages import Op
from symphony_kernel.scheduler.batcher import StepLimits

from tests.support.kernel.rig import ASSETS, A, KernelRig, pred_loop, run_beside, start, tokens

COUNT = 24
KINDS: list[dict[str, Any]] = [
    {},
    {"get": {"sample": {"temperature": 0.9, "seed": 1}}},
    {"get": {"sample": {"temperature": 1.2, "top_p": 0.9, "top_k": 40, "seed": 2}}},
    {"bias": {17: 2.5}, "get": {"sample": {"min_p": 0.05, "seed": 3}}},
]


def with_tiny_model(
    test: Callable[[KernelRig], Coroutine[Any, Any, None]], limits: StepLimits
) -> None:
    """Run a test beside a kernel with the tiny model; at the end all pages must be free."""

    async def main() -> None:
        executor = TorchExecutor.load(
            tiny_model.path(), dtype="fp32", device="cpu", threads=1, pool_bytes=64 << 20
        )
        kernel = Kernel(executor, describe(ASSETS), RealClock(), KernelOptions(steps=limits))
        await run_beside(kernel, test)
        found = kernel.statistics()
        assert found["pages_free"] == found["pages"]

    asyncio.run(main())


def prompt(number: int) -> bytes:
    return tokens(*((number * 37 + 11 * i) % 400 + 5 for i in range(number * 7 % 50 + 1)))


async def loop(rig: KernelRig, instance: int, number: int) -> list[bytes]:
    worker = await start(rig, instance)
    return await pred_loop(worker, instance, COUNT, prompt(number), **KINDS[number % 4])


async def generated(rig: KernelRig, instance: int, number: int, tenants: int = 1) -> list[bytes]:
    worker = await start(rig, instance, tenant=f"t{number % tenants}")
    made = await worker.complete(
        instance, A, prompt(number), max=COUNT, ahead=number % 10, **KINDS[number % 4]
    )
    length = len(prompt(number)) // 4
    appended = await worker.call(instance, Op.KV_TOKENS, A, length, COUNT - 1)
    assert appended == b"".join(record[:4] for record in made.records[:-1])
    return made.records


def ids(records: list[bytes]) -> list[int]:
    return [int.from_bytes(record[:4], "little") for record in records]


@pytest.mark.parametrize(
    "limits", [StepLimits(), StepLimits(tokens=24, rows=5, quantum=8)], ids=["wide", "narrow"]
)
def test_generation_on_the_tiny_model_equals_a_loop_of_preds(limits: StepLimits) -> None:
    async def test(rig: KernelRig) -> None:
        loops = [ids(await loop(rig, 1 + number, number)) for number in range(8)]
        assert len({tuple(each) for each in loops}) == 8, "the tokens say something"
        alone = [ids(await generated(rig, 101 + number, number)) for number in range(8)]
        assert alone == loops
        # How many rows two tenants have in a step is a matter of the steps' times.
        for tenants, shared in ((1, 2), (2, 1)):
            before = rig.kernel.statistics()
            first = 100 * (1 + tenants)
            batch = await asyncio.gather(
                *(generated(rig, first + number, number, tenants) for number in range(8))
            )
            after = rig.kernel.statistics()
            assert [ids(each) for each in batch] == loops
            rows, steps = (after[key] - before[key] for key in ("decode_rows", "decode_steps"))
            assert rows > shared * steps
        await rig.gateway.check_integrity()

    with_tiny_model(test, limits)
