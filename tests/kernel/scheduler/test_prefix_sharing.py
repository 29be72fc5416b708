"""Requests that begin alike and come together: what is computed, and what each of them gets."""

import asyncio
from typing import Any

import msgpack
import pytest
from symphony_kernel.executor.simulated import CostModel
from symphony_kernel.kernel import KernelOptions
from symphony_kernel.kvfs.tenants import TenantLimits
from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.messages import Op

from tests.support.kernel.rig import (
    A,
    B,
    Generation,
    KernelRig,
    options,
    start,
    tokens,
    with_kernel,
)
from tests.support.run_by import run_by

BEGINNING = tuple(range(1, 1025))  # 64 pages
COUNT = 16
# A step of 512 tokens takes 0.5 s, so that its rows and the loop cost nothing compared with it.
SLOW = CostModel(fixed_us=1_000, prefill_token_us=1_000, decode_row_us=100)


def prompt(which: int, own: int = 20) -> bytes:
    """Return a prompt of BEGINNING and `own` tokens that other prompts do not have there."""
    return tokens(*BEGINNING, *(1_100 + 50 * which + i for i in range(own)))


async def begin(rig: KernelRig, count: int, **given: Any) -> list[Generation]:
    """Begin `count` generations, each of an instance of its own, with prompts that begin alike."""
    share = given.pop("share", True)
    for instance in range(1, count + 1):
        await start(rig, instance, **given)
    return [
        rig.worker.generate(instance, A, prompt(instance), max=3, share=share)
        for instance in range(1, count + 1)
    ]


async def answers(made: list[Generation]) -> list[list[int]]:
    assert [await each.end for each in made] == [b""] * len(made)
    return [each.ids for each in made]


async def unshared(rig: KernelRig, count: int) -> list[list[int]]:
    """Return what the same generations give one by one, without any prefix."""
    found = []
    for instance in range(1, count + 1):
        other = 100 + instance
        await start(rig, other, tenant="other")
        found.append((await rig.worker.complete(other, A, prompt(instance), max=3)).ids)
        await rig.gateway.end(other)
    return found


@run_by(with_kernel, pages=2048, costs=SLOW)
async def test_prefix_of_simultaneous_requests_is_computed_once(rig: KernelRig) -> None:
    made = await begin(rig, COUNT)
    began = asyncio.get_running_loop().time()
    got = await answers(made)
    found = await rig.gateway.statistics()
    assert found["prefill_tokens"] == 1024 + COUNT * 20
    assert found["prefix_cache_shared_tokens"] == (COUNT - 1) * 1024
    firsts = [each.times[0] - began for each in made]
    single = 1.044  # s of steps for a prompt of its own
    assert max(firsts) < 1.2 * single + COUNT * 0.02
    assert got == await unshared(rig, COUNT)
    await rig.gateway.check_integrity()


@run_by(with_kernel, pages=2048, costs=SLOW)
async def test_waiting_requests_hold_no_pages(rig: KernelRig) -> None:
    # Those of 15 prompts would be taken from other files, for nothing.
    first = await begin(rig, 1)
    await asyncio.sleep(0.2)  # a step computes, for which others can be prepared
    for instance in range(2, COUNT + 1):
        await start(rig, instance)
    others = [rig.worker.generate(i, A, prompt(i), max=3, share=True) for i in range(2, COUNT + 1)]
    await asyncio.sleep(0.2)
    found = await rig.gateway.statistics()
    assert found["pages"] - found["pages_free"] == 66
    await answers(first + others)


@run_by(with_kernel, pages=2048, costs=SLOW)
async def test_shared_tokens_are_counted_as_cached_and_not_as_computed(rig: KernelRig) -> None:
    await answers(await begin(rig, 3, tokens=1100))
    usages = [(await rig.gateway.end(instance)).value for instance in (1, 2, 3)]
    assert sum(usage["prompt_tokens"] for usage in usages) == 1024 + 3 * 20
    assert sum(usage["cached_tokens"] for usage in usages) == 2 * 1024
    assert all(u["prompt_tokens"] + u["cached_tokens"] == 1044 for u in usages)


@run_by(with_kernel, pages=2048, costs=SLOW)
async def test_run_may_compute_what_sharing_has_left_of_its_limit(rig: KernelRig) -> None:
    first, second = await begin(rig, 2, tokens=1200)
    await answers([first, second])
    later = [await rig.worker.pred(instance, A, tokens(*range(500))) for instance in (1, 2)]
    assert [type(result) for result in later].count(bytes) == 1


@run_by(with_kernel, pages=2048)
async def test_requests_without_the_option_share_nothing(rig: KernelRig) -> None:
    await answers(await begin(rig, 3, share=False))
    found = await rig.gateway.statistics()
    assert found["prefill_tokens"] == 3 * 1044
    assert found["prefix_cache_offered_pages"] == 0


@run_by(with_kernel, pages=2048, costs=SLOW)
async def test_tenants_do_not_share(rig: KernelRig) -> None:
    for instance, tenant in ((1, "t"), (2, "other")):
        await start(rig, instance, tenant=tenant)
    made = [rig.worker.generate(i, A, prompt(1), max=2, share=True) for i in (1, 2)]
    mine, others = await answers(made)
    assert mine == others
    found = await rig.gateway.statistics()
    assert found["prefill_tokens"] == 2 * 1044
    assert found["prefix_cache_shared_tokens"] == 0


@pytest.mark.parametrize("end", ["cancel", "end", "close"])
@pytest.mark.parametrize("seconds", [0.2, 0.7])
def test_prefix_is_computed_on_when_its_computing_request_ends(end: str, seconds: float) -> None:
    async def test(rig: KernelRig) -> None:
        made = await begin(rig, 5)
        await asyncio.sleep(seconds)
        if end == "cancel":
            made[0].cancel()
        elif end == "end":
            await rig.gateway.end(1)
        else:
            rig.worker.tell(1, Op.KV_CLOSE, A)
        got = await answers(made[1:])
        found = await rig.gateway.statistics()
        # What two steps under way compute for the request is lost with it.
        assert found["prefill_tokens"] <= 1024 + 5 * 20 + 2 * 512
        assert got == (await unshared(rig, 5))[1:]
        await rig.gateway.check_integrity()

    with_kernel(test, pages=2048, costs=SLOW)


@run_by(with_kernel, pages=2048, costs=SLOW)
async def test_later_request_takes_what_is_computed_and_continues_there(rig: KernelRig) -> None:
    first, second = None, None
    for instance in (1, 2):
        await start(rig, instance)
    first = rig.worker.generate(1, A, prompt(1), max=3, share=True)
    await asyncio.sleep(0.6)  # the second chunk computes
    second = rig.worker.generate(2, A, prompt(2), max=3, share=True)
    got = await answers([first, second])
    found = await rig.gateway.statistics()
    assert found["prefill_tokens"] == 1024 + 2 * 20
    assert got == await unshared(rig, 2)


@run_by(with_kernel, pages=2048, costs=SLOW)
async def test_requests_part_at_the_page_where_they_differ(rig: KernelRig) -> None:
    for instance in (1, 2):
        await start(rig, instance)
    common = tuple(range(1, 301))  # 18 pages and 12 tokens
    texts = [tokens(*common, *range(1_100, 1_500)), tokens(*common, *range(1_500, 1_900))]
    made = [rig.worker.generate(i, A, texts[i - 1], max=2, share=True) for i in (1, 2)]
    got = await answers(made)
    found = await rig.gateway.statistics()
    assert found["prefill_tokens"] == 2 * 700 - 18 * 16
    await start(rig, 3, tenant="other")
    assert (await rig.worker.complete(3, A, texts[1], max=2)).ids == got[1]


@run_by(with_kernel, pages=2048, costs=SLOW)
async def test_short_beginning_is_not_waited_for(rig: KernelRig) -> None:
    for instance in (1, 2):
        await start(rig, instance)
    texts = [tokens(*range(1, 33), *range(n, n + 150)) for n in (1_100, 1_500)]
    made = [rig.worker.generate(i, A, texts[i - 1], max=1, share=True) for i in (1, 2)]
    await answers(made)
    found = await rig.gateway.statistics()
    assert found["steps"] == 1
    assert found["prefill_tokens"] == 2 * 182


@run_by(with_kernel, pages=2048, costs=SLOW)
async def test_equal_prompts_leave_one_token_to_each(rig: KernelRig) -> None:
    for instance in range(1, 5):
        await start(rig, instance)
    text = tokens(*BEGINNING)
    made = [rig.worker.generate(i, A, text, max=2, share=True) for i in range(1, 5)]
    got = await answers(made)
    assert got[1:] == got[:1] * 3
    found = await rig.gateway.statistics()
    assert found["prefill_tokens"] == 1024 + 3 * 16


@run_by(with_kernel, pages=2048, costs=SLOW)
async def test_preds_share_as_generations_do(rig: KernelRig) -> None:
    for instance in range(1, 5):
        await start(rig, instance)
    none, last = options(get="none", share=True), options(share=True)
    calls = [rig.worker.pred(i, A, prompt(i), none if i % 2 else last) for i in range(1, 5)]
    results = await asyncio.gather(*calls)
    assert [len(result) for result in results if isinstance(result, bytes)] == [0, 8, 0, 8]
    assert (await rig.gateway.statistics())["prefill_tokens"] == 1024 + 4 * 20


@pytest.mark.parametrize(("entries", "computed"), [(48, 3 * 48 + 976), (37, 3 * 1024)])
def test_file_with_entries_shares_behind_whole_pages(entries: int, computed: int) -> None:
    async def test(rig: KernelRig) -> None:
        for instance in range(1, 4):
            await start(rig, instance)
            known = tokens(*BEGINNING[:entries])
            assert isinstance(await rig.worker.pred(instance, A, known), bytes)
        made = [
            rig.worker.generate(i, A, prompt(i)[4 * entries :], max=3, share=True)
            for i in range(1, 4)
        ]
        got = await answers(made)
        found = await rig.gateway.statistics()
        assert found["prefill_tokens"] == computed + 3 * 20
        assert got == await unshared(rig, 3)

    with_kernel(test, pages=2048, costs=SLOW)


@pytest.mark.parametrize(("more", "computed"), [(32, 32 + 2), (16, 2 * 17)])
def test_pred_that_is_short_for_its_file_shares_nothing(more: int, computed: int) -> None:
    async def test(rig: KernelRig) -> None:
        file = tokens(*([1] * 1024))
        for instance in (1, 2):
            await start(rig, instance)
            assert isinstance(await rig.worker.pred(instance, A, file), bytes)
        before = (await rig.gateway.statistics())["prefill_tokens"]
        given = tokens(*range(more), 7)
        share = options(get="none", share=True)
        await asyncio.gather(*(rig.worker.pred(i, A, given, share) for i in (1, 2)))
        found = (await rig.gateway.statistics())["prefill_tokens"] - before
        assert found == computed

    with_kernel(test, pages=2048, costs=SLOW)


@run_by(with_kernel, pages=2048, costs=SLOW)
async def test_file_that_was_edited_computes_its_own(rig: KernelRig) -> None:
    for instance in (1, 2):
        await start(rig, instance)
        await rig.worker.pred(instance, A, tokens(*range(40)))
        rig.worker.tell(instance, Op.KV_EXTRACT, B, A, tokens(8, 40))
    made = [rig.worker.generate(i, B, prompt(1), max=2, share=True) for i in (1, 2)]
    await answers(made)
    found = await rig.gateway.statistics()
    assert found["prefill_tokens"] == 2 * (40 + 1044)
    assert found["prefix_cache_offered_pages"] == 0


@run_by(with_kernel, pages=160, costs=SLOW)
async def test_requests_share_where_the_device_has_room_for_two(rig: KernelRig) -> None:
    made = await begin(rig, 8)
    got = await answers(made)
    found = await rig.gateway.statistics()
    assert found["prefill_tokens"] == 1024 + 8 * 20
    assert got == await unshared(rig, 8)
    await rig.gateway.check_integrity()


@run_by(
    with_kernel,
    pages=2048,
    costs=SLOW,
    kernel_options=KernelOptions(tenants=TenantLimits(pages=150)),
)
async def test_requests_share_within_their_tenants_quota(rig: KernelRig) -> None:
    made = await begin(rig, 6)
    ends = [await each.end for each in made]
    assert ends == [b""] * 6
    assert (await rig.gateway.statistics())["prefill_tokens"] == 1024 + 6 * 20


@run_by(with_kernel, pages=2048, costs=SLOW)
async def test_shared_tokens_count_not_toward_the_tenants_rate(rig: KernelRig) -> None:
    await rig.gateway.ask("limit_tenant", tenant="t", limits={"tokens_per_minute": 3000})
    made = await begin(rig, COUNT)
    async with asyncio.timeout(5):  # their prompts have 16,704 tokens
        await answers(made)
    left, _ = (await rig.gateway.ask("tokens_left", tenant="t")).value
    assert 3000 - 1024 - COUNT * (20 + 2) <= left < 3000 - 1024


@run_by(with_kernel, pages=2048, costs=SLOW)
async def test_file_says_how_many_entries_were_shared(rig: KernelRig) -> None:
    await answers(await begin(rig, 2))
    stats = [msgpack.unpackb(await rig.worker.call(i, Op.KV_STAT, A)) for i in (1, 2)]
    assert sorted(stat["cached"] for stat in stats) == [0, 1024]


@run_by(with_kernel, pages=2048, costs=SLOW)
async def test_offered_prefix_is_taken_without_a_match(rig: KernelRig) -> None:
    (first,) = await begin(rig, 1)
    await first.end
    await start(rig, 2)
    await rig.worker.complete(2, A, prompt(2), max=1, share=True)
    assert (await rig.gateway.statistics())["prefill_tokens"] == 1024 + 2 * 20


@pytest.mark.parametrize(
    "given",
    [{"share": 1}, {"share": True, "at": "all"}, {"share": True, "keep": False},
     {"share": True, "parents": [-1, 0]}],
)  # fmt: skip
def test_share_with_other_options_is_refused(given: dict[str, Any]) -> None:
    async def test(rig: KernelRig) -> None:
        worker = await start(rig)
        assert await worker.pred(1, A, tokens(1, 2), options(**given)) == -Errno.EINVAL

    with_kernel(test)
