"""Logits against transformers, on small random checkpoints of every architecture."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from symphony_kernel import tiny_model
from transformers import AutoModelForCausalLM

from tests.support.executor.models import (
    FAMILIES,
    Checkpoint,
    depths_of,
    load,
    make_checkpoint,
    make_row,
    random_tokens,
    relative_error,
    smooth_settings,
)

LENGTH = 70
QWEN_WINDOWS = {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1}
ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 5e5},
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.5},
    "dynamic": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0},
    "llama3": {
        "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
    },
    "yarn": {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "yarn with everything": {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "beta_fast": 20.0, "beta_slow": 2.0,
        "mscale": 0.8, "mscale_all_dim": 0.4, "truncate": False,
        "original_max_position_embeddings": 32,
    },
}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "llama, biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, no sharing of K and V": ("llama", {"num_key_value_heads": 4}),
    "llama, odd sizes": (
        "llama",
        {"hidden_size": 51, "intermediate_size": 37, "head_dim": 6, "num_attention_heads": 3,
         "num_key_value_heads": 1},
    ),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral, window": ("mistral", {"sliding_window": 20}),
    "mistral, window of a page": ("mistral", {"sliding_window": 16}),
    "qwen2": ("qwen2", {}),
    "qwen2, tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2, window": ("qwen2", QWEN_WINDOWS),
    "qwen3": ("qwen3", {}),
    "qwen3, window and biases": ("qwen3", {**QWEN_WINDOWS, "attention_bias": True}),
    "qwen3, wide heads": ("qwen3", {"head_dim": 32}),
    **{f"rope {name}": ("llama", {"rope_parameters": rope}) for name, rope in ROPES.items()},
    **FAMILIES,
}  # fmt: skip


pytestmark = pytest.mark.usefixtures("network")


@pytest.mark.parametrize("name", MODELS)
def test_logits_whole_and_in_chunks_equal_transformers(tmp_path: Path, name: str) -> None:
    kind, settings = MODELS[name]
    checkpoint = make_checkpoint(tmp_path, kind, **settings)
    tokens = random_tokens(LENGTH)
    expected = checkpoint.logits(tokens)
    rig = load(checkpoint)
    [whole] = rig.logits([make_row(tokens, rig.table(LENGTH))])
    assert relative_error(whole, expected) < 1e-4

    table = rig.table(LENGTH)
    steps = [0, 5, 6, 7, 16, 32, 39, 40, LENGTH]
    parts = [
        rig.logits([make_row(tokens[begin:end], table, begin)])[0] for begin, end in pairwise(steps)
    ]
    assert relative_error(np.concatenate(parts), expected) < 1e-4
    rig.close()


def check_logits(checkpoint: Checkpoint, count: int) -> None:
    tokens = random_tokens(count)
    rig = load(checkpoint)
    [found] = rig.logits([make_row(tokens, rig.table(count))])
    assert relative_error(found, checkpoint.logits(tokens)) < 1e-4
    rig.close()


def test_sharded_checkpoint_has_the_same_logits(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path, "qwen3", shards=True)
    assert len(list(checkpoint.directory.glob("model-*.safetensors"))) > 2
    check_logits(checkpoint, 20)


def test_old_rope_settings_have_the_same_logits(tmp_path: Path) -> None:
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    checkpoint = make_checkpoint(tmp_path, "llama", rope_parameters={**rope, "rope_theta": 2e4})
    path = checkpoint.directory / "config.json"
    text = path.read_text().replace('"rope_parameters"', '"rope_scaling"')
    old = text.replace('"rope_type"', '"type"').replace('"rope_theta"', '"rope_theta_moved"')
    old = old.replace('    "rope_theta_moved": 20000.0,\n', "")
    path.write_text(old.replace('"vocab_size"', '"rope_theta": 20000.0,\n  "vocab_size"'))
    assert "rope_parameters" not in path.read_text()
    check_logits(checkpoint, 60)


def test_explicit_positions_affect_the_rotation_only(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path, "llama")
    tokens = random_tokens(40)
    positions = np.sort(np.random.default_rng(3).choice(400, 40, replace=False))
    mask = torch.full((40, 40), float("-inf")).triu(1)[None, None]
    expected = checkpoint.logits(
        tokens, position_ids=torch.tensor(positions)[None], attention_mask=mask
    )
    rig = load(checkpoint)
    table = rig.table(40)
    first = make_row(tokens[:30], table, positions=positions[:30])
    rest = make_row(tokens[30:], table, 30, positions=positions[30:])
    found = np.concatenate([rig.logits([row])[0] for row in (first, rest)])
    assert relative_error(found, expected) < 1e-4
    rig.close()


@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_tree_equals_dense_attention_with_its_mask(tmp_path: Path, kind: str) -> None:
    # The window of 20 counts along a token's path: other branches do not push entries out of it.
    settings: dict[str, Any] = {"sliding_window": 20} if kind == "mistral" else {}
    checkpoint = make_checkpoint(tmp_path, kind, **settings)
    past, tree = 18, [-1, -1, 0, 0, 1, 2, 5, 5, -1, 8]
    tokens = random_tokens(past + len(tree))
    positions = np.concatenate([np.arange(past), past + np.array(depths_of(tree))])

    visible = np.tril(np.ones((len(tokens), len(tokens)), bool))
    visible[past:, past:] = False
    for node in range(len(tree)):
        above = node
        while above >= 0:
            visible[past + node, past + above] = True
            above = tree[above]
    if kind == "mistral":
        visible &= positions[:, None] - positions < 20
    mask = torch.zeros(visible.shape).masked_fill(torch.tensor(~visible), float("-inf"))
    expected = checkpoint.logits(
        tokens, position_ids=torch.tensor(positions)[None], attention_mask=mask[None, None]
    )
    rig = load(checkpoint)
    table = rig.table(len(tokens))
    prefix = rig.logits([make_row(tokens[:past], table)])[0]
    leaves = make_row(tokens[past:], table, past, positions=positions[past:], parents=tree)
    found = np.concatenate([prefix, *rig.logits([leaves])])
    assert relative_error(found, expected) < 1e-4
    rig.close()


def test_greedy_generation_equals_transformers(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path, "llama", eos_token_id=None, initializer_range=0.5)
    prompt = random_tokens(9)
    rig = load(checkpoint)
    assert rig.generate(prompt, 40) == checkpoint.generate(prompt, 40)
    rig.close()


def test_tiny_model_has_the_logits_of_transformers() -> None:
    directory = tiny_model.path()
    peer = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    ids = np.random.default_rng(1).integers(0, peer.config.vocab_size, 40)
    with torch.inference_mode():
        expected = peer(torch.tensor(ids)[None]).logits[0].numpy()
    rig = load(directory, "auto")
    assert rig.executor.model.dtype == "float32"
    [found] = rig.logits([make_row(ids, rig.table(40))])
    assert relative_error(found, expected) < 1e-4
    rig.close()


@pytest.mark.usefixtures("products")
@pytest.mark.parametrize("name", ["llama", "qwen3", *FAMILIES])
def test_logits_in_bf16_are_close_to_float32(tmp_path: Path, name: str) -> None:
    kind, settings = MODELS[name]
    checkpoint = make_checkpoint(tmp_path, kind, **smooth_settings(settings))
    tokens = random_tokens(50)
    expected = checkpoint.logits(tokens)
    rig = load(checkpoint, "bf16")
    [found] = rig.logits([make_row(tokens, rig.table(50))])
    # Eight bits of mantissa, over two layers: transformers' own bf16 is as far from its fp32.
    theirs = relative_error(
        Checkpoint(checkpoint.directory, checkpoint.peer.bfloat16()).logits(tokens), expected
    )
    assert relative_error(found, expected) < max(2 * theirs, 0.02)
    rig.close()
