"""A rank's share of a checkpoint, as a checkpoint of a smaller model.

The products of queries, keys, values, gate and up are divided by outputs. The products that follow,
output and down, are divided by inputs, so that their results are parts of a sum. These are the only
two places of a layer at which ranks communicate. Heads that share K and V stay together. If there
are fewer heads of K and V than ranks, several ranks have the same one.

   rank 0   q 0 1 2 3   k, v 0    gate, up: first half    output, down: first half of the inputs
   rank 1   q 4 5 6 7   k, v 1    gate, up: second half   output, down: second half

Each rank has the whole embedding: it is only looked up, and dividing it would take another sum. The
head is divided by the vocabulary, and its logits are gathered: the whole head would be nearly a
quarter of what a rank of four reads in a step of Llama 3.1 8B. A tied head is a part of the
embedding.

The scheme is Megatron-LM's (Shoeybi et al., 2019, arXiv:1909.08053), section 3.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from symphony_kernel.executor.base import KVArray
from symphony_kernel.executor.models.config import ModelConfig, TensorNames
from symphony_kernel.executor.models.file_reader import CheckpointError
from symphony_kernel.executor.models.loader import Weights

_HEADS_AXIS = 4  # of `KVLayout`


@dataclass(frozen=True, slots=True)
class Shard:
    """One rank's share of a model; CheckpointError if it cannot be divided."""

    whole: ModelConfig
    rank: int
    ranks: int

    def __post_init__(self) -> None:
        assert 0 <= self.rank < self.ranks
        config, ranks = self.whole, self.ranks
        lacking = config.additions()
        if config.names is not TensorNames.SEPARATE:
            lacking.append(f"{config.names} tensors")
        if ranks > 1 and lacking:
            raise CheckpointError(
                f"a model with {', '.join(lacking)} cannot be divided among {ranks} ranks yet: "
                "serve it with one"
            )
        for what, count in (("heads", config.heads), ("middle neurons", config.intermediate_size)):
            if count % ranks:
                raise CheckpointError(f"{count} {what} do not divide among {ranks} ranks")
        if config.kv_heads % ranks and ranks % config.kv_heads:
            raise CheckpointError(
                f"{config.kv_heads} heads for K and V do not divide among {ranks} ranks"
            )

    @property
    def config(self) -> ModelConfig:
        """The share as a model; its vocabulary is whole."""
        return replace(
            self.whole,
            heads=self.whole.heads // self.ranks,
            kv_heads=len(range(*self.kv.indices(self.whole.kv_heads))),
            intermediate_size=self.whole.intermediate_size // self.ranks,
            tied=False,
        )

    @property
    def kv(self) -> slice:
        """The model's heads of K and V in the share."""
        kv_heads = self.whole.kv_heads
        first = self.rank * kv_heads // self.ranks
        return slice(first, first + max(1, kv_heads // self.ranks))

    @property
    def vocabulary(self) -> slice:
        """The tokens whose logits the rank computes; the last may exceed the vocabulary."""
        size = -(-self.whole.vocab_size // self.ranks)
        return slice(self.rank * size, (self.rank + 1) * size)

    def part(self, values: KVArray) -> KVArray:
        """Return the share's heads of pages in the model's layout (see `KVLayout`)."""
        return np.ascontiguousarray(values[..., self.kv, :])


def whole_pages(config: ModelConfig, parts: list[KVArray]) -> KVArray:
    """Return pages in the model's layout from all ranks' parts of them."""
    every = max(1, len(parts) // config.kv_heads)  # as many ranks have the same heads
    return np.concatenate(parts[::every], axis=_HEADS_AXIS)


@dataclass(frozen=True, slots=True)
class _Cut:
    """`size` of a matrix's `whole` rows (dimension 0) or columns (1), from `begin`."""

    dimension: int
    whole: int
    begin: int
    size: int

    def __call__(self, tensor: Tensor) -> Tensor:
        return tensor.narrow(self.dimension, self.begin, self.size).contiguous()


class ShardWeights:
    """The tensors of a rank's share, by their whole tensors' names; each taken once.

    The network must sum the results of output and down projections over the ranks (one rank has
    their biases), and gather its logits: see `group.Group`. Shapes are those of the share's
    configuration. Only the head is requested with the whole vocabulary; all ranks get the same
    number of rows of it.
    """

    def __init__(self, weights: Weights, share: Shard) -> None:
        self._weights = weights
        self._share = share
        self._cuts = _cuts(share)
        self._embedding = torch.empty(0)

    def take(self, name: str, *shape: int) -> Tensor:
        """Return a tensor's share in the network's dtype and on its device."""
        module, what = name.split(".")[-2:]
        if module == "lm_head":
            return self._head(name, *shape)
        cut = self._cuts.get(module)
        if cut is None or (cut.dimension == 1 and what == "bias"):
            tensor = self._weights.take(name, *shape)
            if module == "embed_tokens":
                self._embedding = tensor
            # Only one of the ranks that share a sum adds the bias.
            return tensor if cut is None or self._share.rank == 0 else torch.zeros_like(tensor)
        assert shape[cut.dimension] == cut.size, (name, shape)
        whole = list(shape)
        whole[cut.dimension] = cut.whole
        return self._weights.take(name, *whole, part=cut)

    def _head(self, name: str, vocab_size: int, hidden: int) -> Tensor:
        mine = self._share.vocabulary
        size = mine.stop - mine.start
        begin = min(mine.start, vocab_size)
        cut = _Cut(0, vocab_size, begin, min(mine.stop, vocab_size) - begin)
        if self._share.whole.tied:
            part = self._embedding.narrow(0, cut.begin, cut.size)
        else:
            part = self._weights.take(name, vocab_size, hidden, part=cut)
        return part if cut.size == size else pad(part, (0, 0, 0, size - cut.size))


def _cuts(share: Shard) -> dict[str, _Cut]:
    """Return how the matrices of each name are cut."""
    whole, config, rank = share.whole, share.config, share.rank
    dim, middle = whole.head_dim, config.intermediate_size
    heads = config.heads * dim
    queries = 0, whole.heads * dim, rank * heads, heads
    keys = 0, whole.kv_heads * dim, share.kv.start * dim, config.kv_heads * dim
    middles = whole.intermediate_size, rank * middle, middle
    return {
        "q_proj": _Cut(*queries),
        "k_proj": _Cut(*keys),
        "v_proj": _Cut(*keys),
        "o_proj": _Cut(1, *queries[1:]),
        "gate_proj": _Cut(0, *middles),
        "up_proj": _Cut(0, *middles),
        "down_proj": _Cut(1, *middles),
    }
