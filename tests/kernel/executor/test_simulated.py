"""The simulated executor: its results follow from what is in the pages, and from nothing else."""

import asyncio
from typing import Any

import numpy as np
import pytest
from symphony_kernel.executor.base import Batch, Row
from symphony_kernel.executor.simulated import CostModel, SimulatedExecutor, simulated_model
from symphony_kernel.platform.clock import VirtualClock
from symphony_kernel.protocol.errno import Errno, KernelBug, SyscallError
from symphony_kernel.protocol.pred_options import Get, PredOptions, Sampling

from tests.support.executor.models import PAIR, make_row

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
    asked = PredOptions(**options)
    table = np.array(pages, np.int32)
    made = make_row(
        tokens, table, start, asked, positions=positions, parents=asked.parents, seed=seed
    )
    made.places = np.array([len(tokens) - 1] if places is None else places, np.int32)
    return made


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
def test_prompt_in_chunks_on_other_pages_has_the_same_result(cut: int) -> None:
    pages = [9, 4, 30]
    first = Batch([row(WORDS[:cut], pages[: -(-cut // 16)])])
    assert last(first, Batch([row(WORDS[cut:], pages, cut)])) == WHOLE


def test_row_in_any_batch_has_the_same_result() -> None:
    assert last(Batch([row([7] * 20, [5, 6]), row([8], [7]), row(WORDS, [0, 1, 2])])) == WHOLE


@pytest.mark.parametrize("what", ["token", "position", "page", "order of pages"])
def test_result_changes_with_everything_that_its_place_sees(what: str) -> None:
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


def test_entry_keeps_what_it_saw_when_it_was_computed() -> None:
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


def test_tree_tokens_see_their_ancestors_only() -> None:
    prompt = Batch([row(WORDS, [0, 1, 2])])
    tree = row([5, 6, 7], [0, 1, 2], 37, [0, 1, 2], at="all", parents=(-1, 0, -1))
    tree.positions = np.array([37, 38, 37], np.int32)
    scored = np.frombuffer(last(prompt, Batch([tree])), PAIR)
    for path, place in (([5], 0), ([5, 6], 1), ([7], 2)):
        plain = np.frombuffer(last(prompt, Batch([row(path, [0, 1, 2], 37)])), PAIR)
        assert plain[0] == scored[place]


def test_answers_of_every_kind_agree_with_the_logits() -> None:
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
    both = np.frombuffer(get(logprobs=5), PAIR).reshape(3, 6)
    assert (both[:, 0] == best).all()
    assert (both[:, 1:] == top).all()
    of = np.frombuffer(get(get=Get.OF, of=(3, 500, 3)), "<f4").reshape(3, 3)
    assert np.allclose(of, logprobs[:, [3, 500, 3]], atol=1e-4)
    assert get(get=Get.NONE, at=()) == b""
    greedy = get(get=Get.SAMPLE, sampling=Sampling(temperature=0.0))
    assert greedy == best.tobytes()


def test_bias_and_masks_decide_the_token() -> None:
    biased = np.frombuffer(last(Batch([row(WORDS, [0, 1, 2], bias=((77, 1e6),))])), PAIR)
    assert biased["token"] == [77]
    only = bytearray(VOCAB_SIZE // 8)
    only[9] = 1 << 4
    tilted = np.frombuffer(last(Batch([row(WORDS, [0, 1, 2], bias_mask=(bytes(only), 1e6))])), PAIR)
    assert tilted["token"] == [76]
    masked = np.frombuffer(last(Batch([row(WORDS, [0, 1, 2], allow=bytes(only))])), PAIR)
    assert masked["token"] == [76]
    assert masked["value"] == [0.0]


def test_mask_that_allows_nothing_fails_its_row_alone() -> None:
    nothing = row(WORDS, [3, 4, 5], allow=bytes(VOCAB_SIZE // 8))
    (results,), _ = execute(Batch([nothing, row(WORDS, [0, 1, 2])]))
    failed, whole = results
    assert isinstance(failed, SyscallError)
    assert failed.errno is Errno.EINVAL
    assert whole == WHOLE


def test_sample_is_a_function_of_seed_position_and_distribution() -> None:
    def drawn(seed: int, position: int, sampling: Sampling) -> int:
        asked: dict[str, Any] = {"get": Get.SAMPLE, "sampling": sampling}
        sample = row([5], [0, 1, 2], 36, seed=seed, positions=[position], **asked)
        prompt = Batch([row(WORDS[:36], [0, 1, 2])])
        return int(np.frombuffer(last(prompt, Batch([sample])), PAIR)["token"][0])

    hot = Sampling(temperature=5.0)
    assert len({drawn(seed, 36, hot) for seed in range(20)}) > 10
    assert drawn(4, 36, hot) == drawn(4, 36, hot)
    for narrow in (Sampling(top_k=1), Sampling(top_p=0.0), Sampling(min_p=1.0)):
        assert len({drawn(seed, 36, narrow) for seed in range(10)}) == 1
    assert len({drawn(seed, 36, Sampling(5.0, top_k=3)) for seed in range(40)}) == 3


def test_step_takes_the_time_of_the_cost_model() -> None:
    costs = CostModel(fixed_us=1000, prefill_token_us=10, decode_row_us=100, context_token_us=1)
    batch = Batch([row(WORDS[:30], [0, 1]), row([1], [2])])
    _, seconds = execute(batch, batch, costs=costs)
    assert seconds == pytest.approx(2 * (1000 + 300 + 100 + 31) * 1e-6)


def test_steps_that_overlap_run_one_after_the_other() -> None:
    clock = VirtualClock()

    async def main() -> tuple[list[bytes | SyscallError], ...]:
        model, costs = simulated_model(VOCAB_SIZE), CostModel(fixed_us=1000)
        executor = SimulatedExecutor(clock, 32, model, costs)
        first = executor.run(Batch([row(WORDS[:20], [0, 1])]))
        second = executor.run(Batch([row(WORDS[20:], [0, 1, 2], 20)]))
        return await asyncio.gather(first, second)

    results = clock.run(main())
    assert results[1] == [WHOLE]
    assert clock.now() == pytest.approx(0.002)


def test_executor_without_hashes_answers_right_sizes_in_no_time() -> None:
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
