"""A rank's shard of a checkpoint: all shards together are the checkpoint."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from symphony_kernel.executor.models.config import (
    Experts,
    ModelConfig,
    TensorNames,
    load_config,
)
from symphony_kernel.executor.models.file_reader import CheckpointError
from symphony_kernel.executor.models.loader import Weights
from symphony_kernel.executor.parallel.sharding import Shard, ShardWeights, whole_pages
from symphony_kernel.executor.reference.decoder import Decoder
from torch import Tensor

from tests.support.executor.models import VOCAB, Checkpoint, make_checkpoint

CPU = torch.device("cpu")
HIDDEN, MIDDLE, DIM = 48, 80, 16
LAYER = "model.layers.1."


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return make_checkpoint(tmp_path_factory.mktemp("model"), "qwen2", tie_word_embeddings=False)


@pytest.fixture(scope="module")
def config(checkpoint: Checkpoint) -> ModelConfig:
    return load_config(checkpoint.directory)


def whole(checkpoint: Checkpoint, name: str) -> Tensor:
    found: Tensor = checkpoint.peer.state_dict()[name]
    return found


def shares(directory: Path, ranks: int) -> list[tuple[ShardWeights, ModelConfig]]:
    config = load_config(directory)
    made = [Shard(config, rank, ranks) for rank in range(ranks)]
    weights = [Weights(directory, config, torch.float32, CPU) for _ in made]
    return [
        (ShardWeights(mine, share), share.config) for mine, share in zip(weights, made, strict=True)
    ]


def taken(checkpoint: Checkpoint, ranks: int, name: str, *shape: int) -> list[Tensor]:
    found = [weights.take(name, *shape) for weights, _ in shares(checkpoint.directory, ranks)]
    assert all(tensor.is_contiguous() for tensor in found)
    return found


def test_shard_has_the_configuration_of_a_smaller_model(config: ModelConfig) -> None:
    share = Shard(config, 1, 2)
    expected = replace(config, heads=2, kv_heads=1, intermediate_size=MIDDLE // 2, tied=False)
    assert share.config == expected
    assert (share.kv, share.vocabulary) == (slice(1, 2), slice(51, 102))


def test_matrices_of_all_ranks_are_the_whole_matrix(checkpoint: Checkpoint) -> None:
    for name, shape, dim in (
        ("self_attn.q_proj.weight", (2 * DIM, HIDDEN), 0),
        ("self_attn.k_proj.weight", (DIM, HIDDEN), 0),
        ("self_attn.v_proj.weight", (DIM, HIDDEN), 0),
        ("mlp.gate_proj.weight", (MIDDLE // 2, HIDDEN), 0),
        ("mlp.up_proj.weight", (MIDDLE // 2, HIDDEN), 0),
        ("self_attn.o_proj.weight", (HIDDEN, 2 * DIM), 1),
        ("mlp.down_proj.weight", (HIDDEN, MIDDLE // 2), 1),
        ("self_attn.q_proj.bias", (2 * DIM,), 0),
    ):
        parts = taken(checkpoint, 2, LAYER + name, *shape)
        assert torch.equal(torch.cat(parts, dim=dim), whole(checkpoint, LAYER + name))


def test_tensors_that_are_not_divided_are_whole_on_each_rank(checkpoint: Checkpoint) -> None:
    for name, shape in (
        ("model.embed_tokens.weight", (VOCAB, HIDDEN)),
        (f"{LAYER}input_layernorm.weight", (HIDDEN,)),
    ):
        for tensor in taken(checkpoint, 2, name, *shape):
            assert torch.equal(tensor, whole(checkpoint, name))


def test_key_heads_fewer_than_ranks_are_on_several_ranks(checkpoint: Checkpoint) -> None:
    name = f"{LAYER}self_attn.k_proj.weight"
    parts = taken(checkpoint, 4, name, DIM, HIDDEN)
    assert torch.equal(torch.cat(parts[::2]), whole(checkpoint, name))
    assert torch.equal(torch.cat(parts[1::2]), whole(checkpoint, name))
    queries = taken(checkpoint, 4, f"{LAYER}self_attn.q_proj.weight", DIM, HIDDEN)
    assert torch.equal(torch.cat(queries), whole(checkpoint, f"{LAYER}self_attn.q_proj.weight"))


def test_vocabulary_that_does_not_divide_is_padded_with_zeros(checkpoint: Checkpoint) -> None:
    parts = taken(checkpoint, 4, "lm_head.weight", VOCAB, HIDDEN)
    assert [len(part) for part in parts] == [26] * 4
    together = torch.cat(parts)
    assert torch.equal(together[:VOCAB], whole(checkpoint, "lm_head.weight"))
    assert not together[VOCAB:].any()


def test_head_of_a_tied_model_is_a_part_of_the_embedding(tmp_path: Path) -> None:
    made = make_checkpoint(tmp_path, "llama", tie_word_embeddings=True)
    parts = []
    for weights, config in shares(tmp_path, 2):
        assert not config.tied
        embedding = weights.take("model.embed_tokens.weight", VOCAB, HIDDEN)
        parts.append(weights.take("lm_head.weight", VOCAB, HIDDEN))
        assert torch.equal(embedding, whole(made, "model.embed_tokens.weight"))
    assert torch.equal(torch.cat(parts)[:VOCAB], whole(made, "model.embed_tokens.weight"))


def test_bias_of_a_sum_is_on_one_rank_only(tmp_path: Path) -> None:
    made = make_checkpoint(tmp_path, "llama", attention_bias=True, mlp_bias=True)
    for name in (f"{LAYER}self_attn.o_proj.bias", f"{LAYER}mlp.down_proj.bias"):
        first, second = taken(made, 2, name, HIDDEN)
        assert torch.equal(first, whole(made, name))
        assert not second.any()


def test_decoder_takes_all_tensors_of_a_shard(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "qwen3")
    config = load_config(tmp_path)
    share = Shard(config, 1, 2)
    with Weights(tmp_path, config, torch.float32, CPU) as weights:
        tensors = ShardWeights(weights, share)
        Decoder(share.config, tensors, torch.float32, reduce=lambda _: None, gather=lambda x: x)


@pytest.mark.parametrize(
    ("changed", "ranks", "words"),
    [
        ({}, 3, "4 heads do not divide among 3"),
        ({"heads": 6, "kv_heads": 2}, 3, "2 heads for K and V do not divide among 3"),
        ({"intermediate_size": 81}, 2, "81 middle neurons do not divide among 2"),
        (
            {"experts": Experts(4, 2, normalized=True), "norms_after": True},
            2,
            "norms of outputs, experts cannot be divided among 2 ranks",
        ),
        ({"names": TensorNames.FUSED}, 2, "fused tensors cannot be divided among 2 ranks"),
    ],
)
def test_model_that_cannot_be_divided_is_refused(
    config: ModelConfig, changed: dict[str, Any], ranks: int, words: str
) -> None:
    with pytest.raises(CheckpointError, match=words):
        Shard(replace(config, **({"intermediate_size": 84} | changed)), 0, ranks)


@pytest.mark.parametrize(("kv_heads", "ranks"), [(4, 2), (2, 2), (2, 4), (1, 4)])
def test_pages_that_are_divided_join_to_the_same(
    config: ModelConfig, kv_heads: int, ranks: int
) -> None:
    config = replace(config, kv_heads=kv_heads)
    values = np.random.default_rng(0).random((2, 2, 3, 16, kv_heads, DIM), np.float32)
    parts = [Shard(config, rank, ranks).part(values) for rank in range(ranks)]
    assert {part.shape[4] for part in parts} == {max(1, kv_heads // ranks)}
    np.testing.assert_array_equal(whole_pages(config, list(parts)), values)
