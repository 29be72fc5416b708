"""What a tenant's completions get during another's floods: at least their fair share."""

import asyncio

import pytest
from symphony_kernel.executor.simulated import SimulatedExecutor
from symphony_kernel.options import KernelOptions
from symphony_kernel.protocol.limits import (
    DELIVERY_BATCH_MS_MAX,
    TENANT_WEIGHT_MAX,
    TENANT_WEIGHT_MIN,
)
from symphony_kernel.scheduler.batcher import StepLimits

from tests.support.kernel.floods import FLOODS, Completions, Device, fair, measure, prompts
from tests.support.kernel.rig import A, KernelRig, start, tokens, with_kernel

BOUND = 1.25  # times worse than alone on a device of half the speed
P99_BOUND = 1.5  # of the time between two tokens, where a device's and a thread's share meet
# The same where steps take less than the host's part: others have their share in few long steps.
P99_BOUND_LOTS = 2.0
DEVICES = {
    "a small model on two cores": Device(15_000, 600, 700, 0.1, host_us=300),
    "a model whose steps take less than the host's part": Device(400, 20, 60, 0.01, host_us=500),
    "an accelerator": Device(6_000, 15, 20, 0.002, host_us=300),
}
SHORT = Completions(prompt=60, tokens=48, each=2)
# Of one stream, where a prompt takes many steps' time: prompts of several streams lengthen each
# other's steps, unless they come at once, as they do alone.
ALONE = Completions(streams=1, prompt=60, tokens=48, each=4)
LONG = Completions(streams=1, prompt=1_000, tokens=32, each=2)


def _wanted(device: Device) -> Completions:
    return ALONE if device.prefill_token_us > 100 else SHORT


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
@pytest.mark.parametrize("flood", ["prompts", "all of these"])
def test_tenant_beside_a_flood_gets_its_share(flood: str, device: Device) -> None:
    wanted = _wanted(device)
    rate, first, p99 = measure(device, wanted, FLOODS[flood]).worse(fair(device, wanted))
    assert rate <= BOUND
    assert p99 <= (P99_BOUND_LOTS if device.host_us > device.fixed_us else BOUND)
    assert first <= 2 * BOUND, "the step that computes has to end before it"


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
@pytest.mark.parametrize("flood", ["prompts", "all of these"])
def test_long_prompts_beside_a_flood_get_their_share(flood: str, device: Device) -> None:
    rate, first, _ = measure(device, LONG, FLOODS[flood]).worse(fair(device, LONG))
    assert rate <= BOUND
    assert first <= 1.5 * BOUND, "the step that computes has to end before it"


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
@pytest.mark.parametrize("call_us", [50.0, 150.0])
def test_flood_of_kv_calls_is_charged_to_its_tenant(call_us: float, device: Device) -> None:
    """Files forked, appended to and named take the kernel longer than their prompts the device."""
    wanted = _wanted(device)
    got = measure(device, wanted, FLOODS["files"], call_us=call_us)
    rate, first, p99 = got.worse(fair(device, wanted))
    assert rate <= BOUND
    most = P99_BOUND_LOTS if device.host_us > device.fixed_us else P99_BOUND
    assert p99 <= most, "calls and prompts have their turns at other times"
    assert first <= 1.5 * BOUND, "the step that computes has to end before it"
    assert got.beside > 0.0, "they have a share"


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
def test_flood_beside_streams_gets_its_share_too(device: Device) -> None:
    got = measure(device, SHORT, [prompts(8_000)])
    assert got.beside * device.prefill_token_us * 1e-6 >= 0.25


def test_short_steps_run_ahead_while_prompts_wait() -> None:
    """Look-ahead steps of a stream are not revoked for prompts that are throttled."""
    device = DEVICES["a model whose steps take less than the host's part"]
    assert measure(device, SHORT, FLOODS["prompts"]).ahead > 0.5


def test_prompt_of_least_weight_runs_beside_a_heavy_stream() -> None:
    async def test(rig: KernelRig) -> None:
        heavy = await start(rig, 1, tenant="heavy")
        light = await start(rig, 2, tenant="light")
        stream = heavy.generate(1, A, tokens(*range(1, 41)), max=1_500)
        await asyncio.sleep(0.3)  # a hundred steps
        prompt = asyncio.ensure_future(light.pred(2, A, tokens(*range(1, 41))))
        await asyncio.wait({prompt, stream.end}, return_when=asyncio.FIRST_COMPLETED)
        assert prompt.done(), "it rests until the stream has ended"
        await rig.gateway.end(1)

    weights = {"heavy": TENANT_WEIGHT_MAX, "light": TENANT_WEIGHT_MIN}
    device = Device(3_000, 20, 60)
    with_kernel(
        test,
        executor=lambda clock: SimulatedExecutor(clock, 1 << 10, costs=device, hashed=False),
        kernel_options=KernelOptions(
            steps=StepLimits(delivery_ms=DELIVERY_BATCH_MS_MAX), tenant_weights=weights
        ),
    )
