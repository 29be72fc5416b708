"""Hidden states against transformers, in steps of their own and among rows that want tokens."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from symphony_kernel import tiny_model
from symphony_kernel.executor.base import Batch, Row
from symphony_kernel.protocol.pred_options import Get, PredOptions
from transformers import AutoModelForCausalLM

from tests.kernel.executor.test_simulated import execute, row
from tests.support.executor.cuda import CPU_WAYS, SIZES, load_cuda
from tests.support.executor.models import (
    ALL_LOGITS,
    Checkpoint,
    ExecutorRig,
    Float32,
    as_logits,
    load,
    make_checkpoint,
    make_row,
    random_tokens,
    relative_error,
    tokens_of,
)

LENGTH = 70
ALL_HIDDEN, LAST_HIDDEN = (PredOptions(at=at, get=Get.HIDDEN) for at in ("all", "last"))
GREEDY = PredOptions()
KINDS: dict[str, dict[str, Any]] = {
    "llama": {"hidden_size": 51, "num_attention_heads": 3, "num_key_value_heads": 1},
    "mistral": {"sliding_window": 20},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {},
}


def expected_of(checkpoint: Checkpoint, tokens: Any) -> Float32:
    """Return transformers' [n, hidden] states after the final norm."""
    peer: Any = checkpoint.peer
    ids = torch.tensor(np.asarray(tokens, np.int64))[None]
    with torch.inference_mode():
        states: Float32 = peer.model(ids).last_hidden_state[0].float().numpy()
    return states


def hidden(rig: ExecutorRig, row: Row) -> Float32:
    [result] = rig.run([row])
    return as_logits(result, rig.executor.model.hidden_size)


def check_whole_and_in_chunks(rig: ExecutorRig, expected: Float32, error: float) -> None:
    tokens = random_tokens(LENGTH)
    whole = hidden(rig, make_row(tokens, rig.table(LENGTH), options=ALL_HIDDEN))
    assert relative_error(whole, expected) < error
    assert relative_error(whole.mean(axis=0), expected.mean(axis=0)) < error
    table = rig.table(LENGTH)
    parts = [
        hidden(rig, make_row(tokens[begin:end], table, begin, ALL_HIDDEN))
        for begin, end in pairwise([0, 5, 6, 16, 32, 40, LENGTH])
    ]
    assert relative_error(np.concatenate(parts), expected) < error
    last = hidden(rig, make_row(tokens, rig.table(LENGTH), options=LAST_HIDDEN))
    assert last.shape == (1, rig.executor.model.hidden_size)
    assert relative_error(last[0], expected[-1]) < error


@pytest.mark.usefixtures("network")
@pytest.mark.parametrize("kind", KINDS)
def test_hidden_states_equal_transformers(tmp_path: Path, kind: str) -> None:
    checkpoint = make_checkpoint(tmp_path, kind, **KINDS[kind])
    rig = load(checkpoint)
    check_whole_and_in_chunks(rig, expected_of(checkpoint, random_tokens(LENGTH)), 1e-4)
    rig.close()


@pytest.mark.usefixtures("network", "products")
def test_hidden_states_in_bf16_are_close_to_float32(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path, "qwen3")
    expected = expected_of(checkpoint, random_tokens(LENGTH))
    rig = load(checkpoint, "bf16")
    check_whole_and_in_chunks(rig, expected, 0.05)
    rig.close()


@pytest.mark.parametrize("way", CPU_WAYS.values(), ids=list(CPU_WAYS))
def test_hidden_states_of_the_gpu_network_equal_transformers(tmp_path: Path, way: Any) -> None:
    checkpoint = make_checkpoint(tmp_path, "qwen2", **SIZES)
    rig = load_cuda(checkpoint, way)
    check_whole_and_in_chunks(rig, expected_of(checkpoint, random_tokens(LENGTH)), way.tolerance)
    check_mixed_step(rig)
    rig.close()


@pytest.mark.usefixtures("network")
def test_tiny_model_has_the_hidden_states_of_transformers() -> None:
    directory = tiny_model.path()
    peer = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    ids = np.random.default_rng(1).integers(0, peer.config.vocab_size, 40)
    rig = load(directory, "auto")
    found = hidden(rig, make_row(ids, rig.table(40), options=ALL_HIDDEN))
    assert relative_error(found, expected_of(Checkpoint(directory, peer), ids)) < 1e-4
    rig.close()


def check_mixed_step(rig: ExecutorRig) -> None:
    """A step with rows of all kinds has for each what it gets alone, and so do steps after it."""
    wanted = [GREEDY, ALL_HIDDEN, PredOptions(get=Get.NONE), LAST_HIDDEN, ALL_LOGITS, GREEDY]
    tokens = [random_tokens(count, seed) for seed, count in enumerate((1, 9, 3, 20, 4, 6))]
    before = list(rig.free)

    def rows() -> list[Row]:
        rig.free = list(before)
        return [
            make_row(each, rig.table(len(each)), options=options)
            for each, options in zip(tokens, wanted, strict=True)
        ]

    alone = [rig.run([row])[0] for row in rows()]
    together = rig.run(rows())
    for index in (1, 3, 4):
        mine, theirs = (as_logits(each[index], 1) for each in (together, alone))
        assert mine.shape == theirs.shape
        assert relative_error(mine, theirs) < 1e-4
    assert tokens_of([together[0], together[5]]) == tokens_of([alone[0], alone[5]])
    assert tokens_of(rig.run([rows()[0]])) == tokens_of([alone[0]])
    rig.free = before


@pytest.mark.usefixtures("network")
def test_hidden_states_share_a_step_with_tokens_and_logits(llama: Checkpoint) -> None:
    rig = load(llama)
    check_mixed_step(rig)
    rig.close()


def test_hidden_states_of_a_simulated_model_depend_on_what_is_seen() -> None:
    words = list(range(3, 40))

    def states(*batches: Batch) -> Float32:
        results, _ = execute(*batches)
        return as_logits(results[-1][-1], 32)

    def seen(tokens: list[int]) -> Batch:
        return Batch([row(tokens, [0, 1, 2], places=list(range(37)), get=Get.HIDDEN)])

    whole = states(seen(words))
    assert np.abs(whole).max() <= 1
    assert len(np.unique(whole)) > 1000
    rest = row(words[20:], [4, 5, 6], 20, places=[16], get=Get.HIDDEN)
    parts = states(Batch([row(words[:20], [4, 5])]), Batch([rest]))
    assert np.array_equal(parts[0], whole[-1])
    assert not np.array_equal(states(seen([9, *words[1:]]))[-1], whole[-1])
