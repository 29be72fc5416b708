"""Rows with adapters compute what merged weights compute, alone and in any batch."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from symphony_kernel.executor.base import UInt32
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.pred_options import PredOptions

from benchmarks.checkpoints import make_adapter
from tests.support.executor.adapters import merge
from tests.support.executor.models import (
    ALL_LOGITS,
    Checkpoint,
    ExecutorRig,
    load,
    make_checkpoint,
    make_row,
    random_tokens,
    relative_error,
    tokens_of,
)

LENGTH = 41
# As `make_adapter` takes them.
KINDS: dict[str, dict[str, Any]] = {
    "all products": {"rank": 16},
    "an odd rank": {"rank": 5},
    "a large rank": {"rank": 33},
    "attention only": {"rank": 8, "targets": ("q_proj", "v_proj")},
    "one half of a fused product": {"rank": 4, "targets": ("k_proj", "up_proj")},
    "half precision": {"rank": 8, "dtype": torch.float16},
    "rslora": {"rank": 8, "use_rslora": True},
    "a pattern of alphas": {
        "rank": 8, "alpha_pattern": {"layers.1.mlp.up_proj": 64, "q_proj": 2.5},
    },
}  # fmt: skip

pytestmark = pytest.mark.usefixtures("network")


def adapted(options: PredOptions, name: str) -> PredOptions:
    return replace(options, adapter=name)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_with_an_adapter_equal_those_of_merged_weights(tmp_path: Path, kind: str) -> None:
    checkpoint = make_checkpoint(tmp_path / "base")
    folder = make_adapter(tmp_path / "adapter", checkpoint.directory, **KINDS[kind])
    expected = logits(load(merge(checkpoint, folder, tmp_path / "merged")), "")
    rig = load(checkpoint)
    rig.executor.load_adapter("a", folder)
    assert relative_error(logits(rig, "a"), expected) < 1e-4
    assert relative_error(logits(rig, ""), expected) > 1e-2
    rig.close()


@pytest.mark.parametrize(
    "sizes",
    [
        {"attention_bias": True, "mlp_bias": True},
        {"hidden_size": 51, "intermediate_size": 37, "head_dim": 6, "num_attention_heads": 3,
         "num_key_value_heads": 1},
    ],
    ids=["biases", "odd sizes"],
)  # fmt: skip
def test_logits_of_unusual_shapes_equal_those_of_merged_weights(
    tmp_path: Path, sizes: dict[str, Any]
) -> None:
    checkpoint = make_checkpoint(tmp_path / "base", **sizes)
    folder = make_adapter(tmp_path / "adapter", checkpoint.directory, rank=3)
    expected = logits(load(merge(checkpoint, folder, tmp_path / "merged")), "")
    rig = load(checkpoint)
    rig.executor.load_adapter("a", folder)
    assert relative_error(logits(rig, "a"), expected) < 1e-4
    rig.close()


def test_greedy_tokens_in_a_mixed_batch_equal_those_alone_and_of_merged_weights(
    tmp_path: Path,
) -> None:
    checkpoint = make_checkpoint(tmp_path / "base")
    names = ["a", "", "b", "a", "c", "", "b", "a", "a", "a", "a", "a", "a", "a", "a"]
    rig, merged = load(checkpoint), {}
    for seed, name in enumerate("abc"):
        folder = make_adapter(tmp_path / name, checkpoint.directory, rank=4 + seed, seed=seed)
        rig.executor.load_adapter(name, folder)
        merged[name] = load(merge(checkpoint, folder, tmp_path / f"merged {name}"))
    merged[""] = load(checkpoint)
    prompts = [random_tokens(3 + 2 * index, index) for index in range(len(names))]
    together = generate(rig, prompts, names, 8)
    for prompt, name, tokens in zip(prompts, names, together, strict=True):
        assert generate(rig, [prompt], [name], 8) == [tokens]
        assert generate(merged[name], [prompt], [""], 8) == [tokens]
    for each in (rig, *merged.values()):
        each.close()


def test_logits_have_the_same_bits_alone_and_in_a_mixed_batch(
    llama: Checkpoint, tmp_path: Path
) -> None:
    rig = load(llama)
    for name in "ab":
        rig.executor.load_adapter(
            name, make_adapter(tmp_path / name, llama.directory, seed=ord(name))
        )
    tokens = random_tokens(LENGTH)
    rows = [
        make_row(tokens[: 1 + 4 * index], rig.table(LENGTH), 0, adapted(ALL_LOGITS, name))
        for index, name in enumerate(["a", "b", "", "a", "a", "b"])
    ]
    together = rig.logits(rows)
    for row, found in zip(rows, together, strict=True):
        [alone] = rig.logits([row])
        assert np.array_equal(alone, found)
    rig.close()


@pytest.mark.parametrize("dtype", ["bf16"])
def test_bfloat16_logits_are_near_those_of_merged_weights(
    llama: Checkpoint, tmp_path: Path, dtype: str
) -> None:
    folder = make_adapter(tmp_path / "adapter", llama.directory)
    expected = logits(load(merge(llama, folder, tmp_path / "merged")), "")
    rig = load(llama, dtype)
    rig.executor.load_adapter("a", folder)
    assert relative_error(logits(rig, "a"), expected) < 0.06
    rig.close()


def test_row_whose_adapter_is_dropped_fails_and_no_other(rig: ExecutorRig, tmp_path: Path) -> None:
    directory = make_checkpoint(tmp_path / "base").directory
    rig.executor.load_adapter("a", make_adapter(tmp_path / "adapter", directory))
    rows = [
        make_row(random_tokens(5), rig.table(5), 0, adapted(PredOptions(), name))
        for name in ("", "a")
    ]
    before = rig.run(rows)

    async def drop() -> None:
        rig.executor.drop_adapter("a")
        await rig.executor.after_steps(lambda: None)  # within the loop that waits for it

    asyncio.run(drop())
    plain, failed = rig.run(rows)
    assert plain == before[0]
    assert isinstance(failed, SyscallError)
    assert failed.errno is Errno.EIO


def logits(rig: ExecutorRig, adapter: str) -> Any:
    tokens = random_tokens(LENGTH)
    [found] = rig.logits([make_row(tokens, rig.table(LENGTH), 0, adapted(ALL_LOGITS, adapter))])
    return found


def generate(
    rig: ExecutorRig, prompts: list[UInt32], names: list[str], count: int
) -> list[list[int]]:
    """Return greedy tokens behind each prompt, computed in steps of all rows."""
    tables = [rig.table(len(prompt) + count) for prompt in prompts]
    tokens, starts = list(prompts), [0] * len(prompts)
    found: list[list[int]] = [[] for _ in prompts]
    for _ in range(count):
        rows = [
            make_row(new, table, start, adapted(PredOptions(), name))
            for new, table, start, name in zip(tokens, tables, starts, names, strict=True)
        ]
        chosen = tokens_of(rig.run(rows))
        for index, token in enumerate(chosen):
            found[index].append(token)
            starts[index] += len(tokens[index])
            tokens[index] = np.array([token], np.uint32)
    rig.give_back(*tables)
    return found
