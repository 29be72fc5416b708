"""A device too small for what programs hold: all of them end, with the same output."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest
from symphony_kernel.kernel import KernelOptions
from symphony_kernel.kvfs.tiers.advice import Hint
from symphony_kernel.kvfs.tiers.config import TierConfig
from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.limits import ADMISSION_SLICE_TOKENS, KV_AHEAD_PAGES_MIN, PAGE_TOKENS
from symphony_kernel.protocol.messages import Op

from tests.support.kernel.rig import ANY_MS, A, B, KernelRig, ids, start, tokens, with_kernel
from tests.support.kernel.talks import prompt, talks
from tests.support.run_by import run_by

ROOMY = 4_096


def crowded(
    test: Callable[[KernelRig], Coroutine[Any, Any, Any]], pages: int, **places: Any
) -> Any:
    """Run with so few frames, but pages enough."""
    options = KernelOptions(places=TierConfig(pages_a_frame=64, poison=True, **places))
    return with_kernel(test, pages=pages, kernel_options=options, costs=ANY_MS)


@pytest.mark.parametrize(
    "places",
    [{}, {"host_slots": 64}, {"host_slots": 512}],
    ids=["tokens only", "a little host", "host"],
)
def test_outputs_of_ten_times_the_devices_room_are_the_same(places: dict[str, int]) -> None:
    async def test(rig: KernelRig) -> tuple[list[list[int]], dict[str, Any]]:
        return await talks(rig, 20, prompt_tokens=100, decodes=12, pauses=(0.0, 0.2, 0.0))

    # Twenty files of 22 pages each: 440 pages on 44 frames.
    expected, _ = with_kernel(test, pages=ROOMY, costs=ANY_MS)
    outputs, statistics = crowded(test, 44, **places)
    assert outputs == expected
    assert statistics["preds_starved"] == 0
    assert statistics["waiting_for_pages"] == 0


@pytest.mark.parametrize(("host_slots", "most"), [(0, 14), (16, 16)])
def test_pred_that_can_never_fit_gets_enomem_at_once(host_slots: int, most: int) -> None:
    """Without a host an eighth of the device is for unrecomputable pages."""

    async def test(rig: KernelRig) -> None:
        worker = await start(rig)
        assert await worker.pred(1, A, prompt(1, most * PAGE_TOKENS + 1)) == -Errno.ENOMEM
        assert isinstance(await worker.pred(1, A, prompt(1, most * PAGE_TOKENS)), bytes)
        assert await worker.pred(1, A, prompt(1, 1)) == -Errno.ENOMEM

    crowded(test, 16, host_slots=host_slots)


def test_tenant_with_all_its_pages_leaves_others_some() -> None:
    """Copies of evicted files take no frames and no time, but pages are bounded."""

    async def test(rig: KernelRig) -> Any:
        worker = await start(rig, tenant="greedy")
        await worker.pred(1, A, prompt(1, 20 * PAGE_TOKENS))
        await asyncio.sleep(1)
        made, heard = 0, {}
        for count in (8 * PAGE_TOKENS, 1):
            while count not in heard:
                made += 1
                call = worker.call(1, Op.KV_EXTRACT, A + made, A, tokens(1, 1 + count))
                if (result := await call) != 0:
                    heard[count] = result
        assert set(heard.values()) == {-Errno.ENOMEM}
        assert made > 10
        await start(rig, 2, tenant="other")
        return await worker.pred(2, A, prompt(2, 40))

    options = KernelOptions(places=TierConfig(pages_a_frame=4, poison=True, host_slots=16))
    assert isinstance(with_kernel(test, pages=32, kernel_options=options), bytes)


def test_fork_of_an_evicted_file_is_computed_beside_an_open_one() -> None:
    async def test(rig: KernelRig) -> list[int]:
        worker = await start(rig)
        await start(rig, 2)
        await worker.pred(1, A, prompt(1, 13 * PAGE_TOKENS))
        await asyncio.sleep(1)
        (first,) = ids(await worker.pred(2, A, prompt(2, 13 * PAGE_TOKENS)))
        rig.worker.tell(1, Op.KV_FORK, B, A)
        return [first, *ids(await worker.pred(1, B, tokens(5)))]

    assert crowded(test, 16) == with_kernel(test, pages=ROOMY)


def test_forks_of_a_dropped_file_recompute_it_once() -> None:
    async def test(rig: KernelRig) -> tuple[list[int], int]:
        worker = await start(rig)
        await start(rig, 2)
        await worker.pred(1, A, prompt(1, 10 * PAGE_TOKENS + 5))
        rig.worker.tell(1, Op.KV_FORK, B, A)
        await asyncio.sleep(1)
        await worker.pred(2, A, prompt(2, 14 * PAGE_TOKENS))
        await asyncio.sleep(1)
        await rig.gateway.end(2)
        before = (await rig.gateway.statistics())["tokens_computed"]
        replies = [worker.pred(1, handle, tokens(7)) for handle in (A, B)]
        out = [token for reply in replies for token in ids(await reply)]
        return out, (await rig.gateway.statistics())["tokens_computed"] - before

    (expected, alone), (out, computed) = (with_kernel(test, pages=ROOMY), crowded(test, 16))
    assert out == expected
    assert out[0] == out[1]
    assert alone == 2
    # The pages that had to go, once; the partial page of each; and the preds themselves.
    assert 7 * PAGE_TOKENS < computed <= 10 * PAGE_TOKENS + 2 * 5 + 2


@run_by(crowded, pages=64, host_slots=128)
async def test_advice_moves_a_bounded_number_of_pages(rig: KernelRig) -> None:
    worker = await start(rig)
    await worker.pred(1, A, prompt(1, 40 * PAGE_TOKENS))
    await worker.call(1, Op.KV_CREATE, B)
    await worker.pred(1, B, prompt(2, 40 * PAGE_TOKENS))
    await asyncio.sleep(1)
    before = (await rig.gateway.statistics())["tiers_loaded_pages"]
    calls: list[tuple[Any, ...]] = []
    for away, near in ((A, B), (B, A)) * 200:
        calls.append((1, Op.KV_ADVISE, away, int(Hint.DO_NOT_NEED), 0))
        calls.append((1, Op.KV_ADVISE, near, int(Hint.WILL_NEED), 0))
    assert await asyncio.gather(*worker.calls(*calls)) == [0] * 800
    loaded = (await rig.gateway.statistics())["tiers_loaded_pages"] - before
    assert 0 < loaded <= 2 * KV_AHEAD_PAGES_MIN


# -- Whose turn it is --------------------------------------------------------------------------
async def hog(rig: KernelRig, instance: int, tenant: str, over: asyncio.Event) -> int:
    """Decode without a pause behind 150 entries; return how many tokens."""
    worker = await start(rig, instance, tenant=tenant)
    (token,) = ids(await worker.pred(instance, A, prompt(instance, 150)))
    made = 0
    while not over.is_set():
        (token,) = ids(await worker.pred(instance, A, tokens(token)))
        made += 1
        if made % 50 == 0:
            await worker.call(instance, Op.KV_TRUNCATE, A, 150)
    return made


def test_tenants_under_pressure_keep_their_shares() -> None:
    """Four LIPs of one tenant and one of another: it has half of what it has alone, or more."""

    async def test(rig: KernelRig, many: int) -> tuple[int, int]:
        over = asyncio.Event()
        lips = [asyncio.create_task(hog(rig, i, "many", over)) for i in range(1, 1 + many)]
        lips.append(asyncio.create_task(hog(rig, 9, "one", over)))
        await asyncio.sleep(20)
        over.set()
        made = await asyncio.gather(*lips)
        return sum(made[:-1]), made[-1]

    _, alone = crowded(partial(test, many=0), 28, host_slots=256)
    many, one = crowded(partial(test, many=4), 28, host_slots=256)  # two of the five files fit
    assert one >= alone / 2 - ADMISSION_SLICE_TOKENS / 8
    assert many >= alone / 2, "and the other tenant has the rest"


def test_lips_that_never_pause_let_others_run() -> None:
    async def test(rig: KernelRig) -> list[float]:
        over, loop = asyncio.Event(), asyncio.get_running_loop()
        hogs = [asyncio.create_task(hog(rig, i, "t", over)) for i in (1, 2, 3)]
        await asyncio.sleep(2)
        worker, waits = await start(rig, 9), []
        for turn in range(3):
            began = loop.time()
            assert isinstance(await worker.pred(9, A, prompt(turn, 40)), bytes)
            waits.append(loop.time() - began)
            await asyncio.sleep(0.3)
        over.set()
        await asyncio.gather(*hogs)
        return waits

    waits = crowded(test, 30, host_slots=256)
    # A step takes 10 ms, a slice is at most 256 of them, and three LIPs share the device.
    assert max(waits) < 3 * 256 * 0.011


async def spoil(rig: KernelRig, instance: int) -> list[int]:
    """Make as many unrecomputable files as allowed; return the answers."""
    worker = await start(rig, instance, tenant="spoiler")
    heard: list[int] = []
    for made in range(1, 41):
        source, file = A + 2 * made, A + 2 * made + 1
        worker.create(instance, source)
        assert isinstance(await worker.pred(instance, source, prompt(instance, 60)), bytes)
        made_so = await worker.call(instance, Op.KV_EXTRACT, file, source, tokens(30, 60))
        assert isinstance(made_so, int)
        heard.append(made_so)
        if made_so == 0:
            grown = await worker.pred(instance, file, prompt(instance, 12))
            heard.append(0 if isinstance(grown, bytes) else grown)
        worker.tell(instance, Op.KV_CLOSE, source)
        await asyncio.sleep(0.02)
    return heard


@pytest.mark.parametrize("host_slots", [0, 8, 64])
def test_unrecomputable_files_past_the_bound_fail_alone(
    host_slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("symphony_kernel.kvfs.lineage.book.LINEAGE_ENTRIES_MAX", 3)

    async def test(rig: KernelRig) -> tuple[list[int], list[list[int]]]:
        spoiler = asyncio.create_task(spoil(rig, 50))
        outputs, statistics = await talks(
            rig, 6, prompt_tokens=70, decodes=8, pauses=(0.0, 0.2) * 2
        )
        assert statistics["preds_starved"] == 0
        heard = await spoiler
        # While all of it is there, a request comes that needs most of the device.
        await start(rig, 60)
        assert isinstance(await rig.worker.pred(60, A, prompt(60, 38 * PAGE_TOKENS)), bytes)
        await rig.gateway.check_integrity()
        return heard, outputs

    heard, outputs = crowded(test, 44, host_slots=host_slots)
    everything, expected = with_kernel(test, pages=ROOMY, costs=ANY_MS)
    assert outputs == expected
    assert set(everything) == {0}
    # ENOMEM while others hold the frames for a copy: nothing else is at hand to make it from.
    assert set(heard) <= {0, -Errno.EDQUOT, -Errno.ENOMEM}
    assert 0 in heard
    assert host_slots == 64 or -Errno.EDQUOT in heard
