"""Families that differ from Llama: greedy tokens against transformers, alone and in a batch."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from symphony_kernel.executor.base import UInt32
from symphony_kernel.protocol.pred_options import PredOptions
from transformers import DynamicCache

from tests.support.executor.models import (
    FAMILIES,
    Checkpoint,
    ExecutorRig,
    copy_of,
    depths_of,
    load,
    make_checkpoint,
    make_row,
    random_tokens,
    relative_error,
    tokens_of,
)

ROWS = 32
NEW_TOKENS = 8

pytestmark = pytest.mark.usefixtures("network")


@dataclass
class Sequence:
    """A prompt and the tokens behind it, in pages of its own."""

    prompt: UInt32
    rig: ExecutorRig
    tokens: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.table = self.rig.table(len(self.prompt) + NEW_TOKENS)

    def row(self) -> Any:
        """Return the row that computes the next token."""
        if not self.tokens:
            return make_row(self.prompt, self.table, 0, PredOptions())
        start = len(self.prompt) + len(self.tokens) - 1
        return make_row(self.tokens[-1:], self.table, start, PredOptions())

    def expected(self, checkpoint: Checkpoint) -> list[int]:
        """Return transformers' choice at each place, given the tokens before it."""
        whole = [*self.prompt.tolist(), *self.tokens[:-1]]
        choices: list[int] = checkpoint.logits(whole).argmax(1).tolist()
        return choices[len(self.prompt) - 1 :]


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_tokens_alone_and_in_a_batch_equal_transformers(tmp_path: Path, name: str) -> None:
    kind, settings = FAMILIES[name]
    checkpoint = make_checkpoint(tmp_path, kind, seed=5, **settings)
    rig = load(checkpoint)
    # Lengths below, at and above the windows.
    prompts = [random_tokens(1 + n * 3 % 24, n) for n in range(ROWS)]
    rows = [Sequence(prompt, rig) for prompt in prompts]
    for _ in range(NEW_TOKENS):
        for each, token in zip(rows, tokens_of(rig.run([s.row() for s in rows])), strict=True):
            each.tokens.append(token)
    for each in rows:
        assert each.tokens == each.expected(checkpoint)
    rig.give_back(*(each.table for each in rows))
    for each in rows[::11]:
        assert rig.generate(each.prompt, NEW_TOKENS) == each.tokens
    rig.close()


@pytest.mark.parametrize("name", ["gemma2", "gpt-oss"])
def test_tree_equals_dense_attention_with_its_masks(tmp_path: Path, name: str) -> None:
    kind, settings = FAMILIES[name]
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
    # In a tree the window counts along the path, where positions are consecutive.
    near = visible & (positions[:, None] - positions < settings["sliding_window"])
    expected = checkpoint.logits(
        tokens, position_ids=torch.tensor(positions)[None], attention_mask=_masks(visible, near)
    )
    rig = load(checkpoint)
    table = rig.table(len(tokens))
    prefix = rig.logits([make_row(tokens[:past], table)])[0]
    leaves = make_row(tokens[past:], table, past, positions=positions[past:], parents=tree)
    found = np.concatenate([prefix, *rig.logits([leaves])])
    assert relative_error(found, expected) < 1e-4
    rig.close()


def test_window_counts_the_entries_that_a_file_has_left(tmp_path: Path) -> None:
    """As transformers counts places of its cache: dropped entries make room for older ones."""
    kind, settings = FAMILIES["gemma2"]
    checkpoint = make_checkpoint(tmp_path, kind, **settings)
    tokens, past, new = random_tokens(50), 40, 10
    kept = np.array([i for i in range(past) if i < 12 or i >= 30])
    visible = np.tril(np.ones((new, len(kept) + new), bool), len(kept))
    near = np.triu(visible, len(kept) - settings["sliding_window"] + 1)

    cache = DynamicCache()
    checkpoint.logits(tokens[:past], past_key_values=cache, use_cache=True)
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys[:, :, kept], layer.values[:, :, kept]
    expected = checkpoint.logits(
        tokens[past:], past_key_values=cache, position_ids=torch.arange(past, past + new)[None],
        attention_mask=_masks(visible, near),
    )  # fmt: skip

    rig = load(checkpoint)
    whole, fork = rig.table(past), rig.table(len(kept) + new)
    rig.run([make_row(tokens[:past], whole)])
    copy = np.stack((copy_of(whole, whole, kept)[0], copy_of(fork, fork, np.arange(len(kept)))[0]))
    row = make_row(tokens[past:], fork, len(kept), positions=np.arange(past, past + new))
    [found] = rig.logits([row], [copy])
    assert relative_error(found, expected) < 1e-4
    rig.close()


def _masks(visible: Any, near: Any) -> dict[str, torch.Tensor]:
    """Return transformers' masks of layers without and with a window."""

    def mask(seen: Any) -> torch.Tensor:
        return torch.zeros(seen.shape).masked_fill(torch.tensor(~seen), float("-inf"))[None, None]

    return {"full_attention": mask(visible), "sliding_attention": mask(near)}
