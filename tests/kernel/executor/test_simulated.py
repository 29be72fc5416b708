"""The simulated executor: its outputs must show what is in the pages, and nothing else."""

import asyncio
from typing import Any

import numpy as np
import pytest
from symphony_kernel.executor.base import Batch, Row
from symphony_kernel.executor.simulated import CostModel, SimulatedExecutor, simulated_model
from symphony_kernel.platform.clock import VirtualClock
from symphony_kernel.protocol.errno import Errno, KernelBug, SyscallError
from symphony_kernel.protocol.pred_options import Get, PredOptions, Sampling

PAIR = np.dtype([("token", "<u4"), ("value", "<f4")])
VOCAB_SIZE = 512


def row(
    tokens: list[int],
    pages: list[int],
    start: int = 0,
    places: list[int] | None = None,
    seed: int = 0,
    positions: list[int] | None = None,
    **options: Any,
) -> Row:
    n = len(tokens)
    parsed = PredOptions(**options)
    return Row(
        tokens=np.array(tokens, np.uint32),
        positions=np.array(positions or range(start, start + n), np.int32),
        start=start,
        block_table=np.array(pages, np.int32),
        places=np.array([n - 1] if places is None else places, np.int32),
        options=parsed,
        parents=None if parsed.parents is None else np.array(parsed.parents, np.int32),
        seed=seed,
    )


def execute(
    *batches: Batch, costs: CostModel | None = None, hashed: bool = True
) -> tuple[list[list[bytes | SyscallError]], float]:
    clock = VirtualClock()

    async def main() -> list[list[bytes | SyscallError]]:
        executor = SimulatedExecutor(clock, 32, simulated_model(VOCAB_SIZE), costs, hashed)
        results = [await executor.run(batch) for batch in batches]
        await executor.close()
        return results

    return clock.run(main()), clock.now()


def last(*batches: Batch) -> bytes:
    results, _ = execute(*batches)
    result = results[-1][-1]
    assert isinstance(result, bytes)
    return result


WORDS = list(range(3, 40))
WHOLE = last(Batch([row(WORDS, [0, 1, 2])]))


@pytest.mark.parametrize("cut", [1, 15, 16, 17, 36])
def test_chunks_and_other_pages_change_nothing(cut: int) -> None:
    pages = [9, 4, 30]
    first = Batch([row(WORDS[:cut], pages[: -(-cut // 16)])])
    assert last(first, Batch([row(WORDS[cut:], pages, cut)])) == WHOLE


def test_other_rows_in_the_batch_change_nothing() -> None:
    assert last(Batch([row([7] * 20, [5, 6]), row([8], [7]), row(WORDS, [0, 1, 2])])) == WHOLE


@pytest.mark.parametrize("what", ["token", "position", "page", "order of pages"])
def test_everything_a_place_sees_changes_it(what: str) -> None:
    tokens, pages, positions = list(WORDS), [0, 1, 2], list(range(37))
    if what == "token":
        tokens[4] += 1
    if what == "position":
        positions[4] += 1
    start = Batch([row(tokens[:36], pages, positions=positions[:36]), row([5] * 36, [3, 4, 5])])
    if what == "page":
        pages = [0, 4, 2]
    if what == "order of pages":
        pages = [0, 2, 1]  # slots of page 2 past its entries were never written
        with pytest.raises(KernelBug, match="never written"):
            last(start, Batch([row([39], pages, 36)]))
        return
    assert last(start, Batch([row([39], pages, 36)])) != WHOLE


def test_an_entry_keeps_what_it_saw_when_it_was_computed() -> None:
    """As K and V do: an entry of an extract is not what computing it anew would give."""
    computed = Batch([row(WORDS, [0, 1, 2])])
    copy = Batch([], [np.array([range(16, 37), range(48, 69)], np.int64)])
    extracted = last(computed, copy, Batch([row([1], [3, 4], 21, positions=[40])]))
    anew = last(
        Batch([row(WORDS[16:], [3, 4], positions=list(range(16, 37)))]),
        Batch([row([1], [3, 4], 21, positions=[40])]),
    )
    assert extracted != anew


def test_copies_come_before_rows_and_groups_in_order() -> None:
    chain = [np.array([[s], [d]], np.int64) for s, d in ((0, 100), (100, 200), (16, 100))]
    moved = Batch([row([9], [12], 9, positions=[9])], chain)
    before = Batch([row(WORDS[:20], [0, 1]), row(WORDS[:8], [12])])
    direct = Batch([row([9], [12], 9, positions=[9])], [np.array([[0], [200]], np.int64)])
    assert last(before, moved) == last(before, direct)


def test_a_tree_sees_its_ancestors_only() -> None:
    prompt = Batch([row(WORDS, [0, 1, 2])])
    tree = row([5, 6, 7], [0, 1, 2], 37, [0, 1, 2], at="all", parents=(-1, 0, -1))
    tree.positions = np.array([37, 38, 37], np.int32)
    scored = np.frombuffer(last(prompt, Batch([tree])), PAIR)
    for path, place in (([5], 0), ([5, 6], 1), ([7], 2)):
        plain = np.frombuffer(last(prompt, Batch([row(path, [0, 1, 2], 37)])), PAIR)
        assert plain[0] == scored[place]


def test_every_get_agrees_with_the_logits() -> None:
    def get(**options: Any) -> bytes:
        return last(Batch([row(WORDS, [0, 1, 2], places=[36, 3, 36], **options)]))

    logits = np.frombuffer(get(get=Get.LOGITS), "<f4").reshape(3, VOCAB_SIZE)
    assert (logits[0] == logits[2]).all()
    assert (logits[0] != logits[1]).any()
    shifted = logits.astype(np.float64)
    logprobs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    best = np.frombuffer(get(), PAIR)
    assert (best["token"] == logits.argmax(axis=1)).all()
    assert np.allclose(best["value"], logprobs.max(axis=1), atol=1e-4)
    top = np.frombuffer(get(get=Get.TOP, top=5), PAIR).reshape(3, 5)
    assert (top["token"] == np.argsort(-logits, axis=1, kind="stable")[:, :5]).all()
    told = np.frombuffer(get(logprobs=5), PAIR).reshape(3, 6)
    assert (told[:, 0] == best).all()
    assert (told[:, 1:] == top).all()
    of = np.frombuffer(get(get=Get.OF, of=(3, 500, 3)), "<f4").reshape(3, 3)
    assert np.allclose(of, logprobs[:, [3, 500, 3]], atol=1e-4)
    assert get(get=Get.NONE, at=()) == b""
    greedy = get(get=Get.SAMPLE, sampling=Sampling(temperature=0.0))
    assert greedy == best.tobytes()


def test_bias_and_mask_apply() -> None:
    biased = np.frombuffer(last(Batch([row(WORDS, [0, 1, 2], bias=((77, 1e6),))])), PAIR)
    assert biased["token"] == [77]
    only = bytearray(VOCAB_SIZE // 8)
    only[9] = 1 << 4
    tilted = np.frombuffer(last(Batch([row(WORDS, [0, 1, 2], bias_mask=(bytes(only), 1e6))])), PAIR)
    assert tilted["token"] == [76]
    masked = np.frombuffer(last(Batch([row(WORDS, [0, 1, 2], allow=bytes(only))])), PAIR)
    assert masked["token"] == [76]
    assert masked["value"] == [0.0]


def test_a_mask_that_allows_nothing_fails_its_row_alone() -> None:
    nothing = row(WORDS, [3, 4, 5], allow=bytes(VOCAB_SIZE // 8))
    (results,), _ = execute(Batch([nothing, row(WORDS, [0, 1, 2])]))
    failed, whole = results
    assert isinstance(failed, SyscallError)
    assert failed.errno is Errno.EINVAL
    assert whole == WHOLE


def test_a_sample_is_a_function_of_seed_position_and_distribution() -> None:
    def drawn(seed: int, position: int, sampling: Sampling) -> int:
        sample = row(
            [5],
            [0, 1, 2],
            36,
            seed=seed,
            positions=[position],
            get=Get.SAMPLE,
            sampling=sampling,
        )
        prompt = Batch([row(WORDS[:36], [0, 1, 2])])
        return int(np.frombuffer(last(prompt, Batch([sample])), PAIR)["token"][0])

    hot = Sampling(temperature=5.0)
    assert len({drawn(seed, 36, hot) for seed in range(20)}) > 10
    assert drawn(4, 36, hot) == drawn(4, 36, hot)
    for narrow in (Sampling(top_k=1), Sampling(top_p=0.0), Sampling(min_p=1.0)):
        assert len({drawn(seed, 36, narrow) for seed in range(10)}) == 1
    assert len({drawn(seed, 36, Sampling(5.0, top_k=3)) for seed in range(40)}) == 3


def test_a_step_takes_what_the_cost_model_says() -> None:
    costs = CostModel(fixed_us=1000, prefill_token_us=10, decode_row_us=100, context_token_us=1)
    batch = Batch([row(WORDS[:30], [0, 1]), row([1], [2])])
    _, seconds = execute(batch, batch, costs=costs)
    assert seconds == pytest.approx(2 * (1000 + 300 + 100 + 31) * 1e-6)


def test_overlapping_calls_run_one_after_the_other() -> None:
    clock = VirtualClock()

    async def main() -> tuple[list[bytes | SyscallError], ...]:
        executor = SimulatedExecutor(
            clock, 32, simulated_model(VOCAB_SIZE), CostModel(fixed_us=1000)
        )
        first = executor.run(Batch([row(WORDS[:20], [0, 1])]))
        second = executor.run(Batch([row(WORDS[20:], [0, 1, 2], 20)]))
        return await asyncio.gather(first, second)

    results = clock.run(main())
    assert results[1] == [WHOLE]
    assert clock.now() == pytest.approx(0.002)


def test_the_zero_time_executor_answers_with_the_right_sizes_in_no_time() -> None:
    rows = [
        row([1], [0]),
        row(WORDS, [0, 1, 2], places=list(range(37)), at="all"),
        row([1], [0], get=Get.TOP, top=4),
        row([1], [0], get=Get.OF, of=(1, 2)),
        row([1], [0], get=Get.LOGITS),
        row([1], [0], places=[], get=Get.NONE),
    ]
    (results,), seconds = execute(Batch(rows), hashed=False)
    sizes = [len(result) for result in results if isinstance(result, bytes)]
    assert sizes == [8, 37 * 8, 32, 8, 4 * VOCAB_SIZE, 0]
    assert seconds == 0
