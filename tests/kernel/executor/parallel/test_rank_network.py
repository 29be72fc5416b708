"""Shards that compute together in threads of one process: each network, two ranks and four."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from symphony_kernel.executor.base import Row
from symphony_kernel.executor.cuda.model import CudaDecoder
from symphony_kernel.executor.cuda.network import CudaNetwork
from symphony_kernel.executor.models.config import load_config
from symphony_kernel.executor.models.loader import Weights
from symphony_kernel.executor.network import Network
from symphony_kernel.executor.parallel.calls import pack, pack_rows, receive
from symphony_kernel.executor.parallel.network import execute_call
from symphony_kernel.executor.parallel.sharding import Shard, ShardWeights
from symphony_kernel.executor.reference.decoder import Decoder
from symphony_kernel.executor.reference.network import TorchNetwork
from symphony_kernel.executor.sampling import SamplingRequest
from torch import Tensor

from tests.support.executor.models import (
    ALL_LOGITS,
    VOCAB,
    Checkpoint,
    Float32,
    as_logits,
    make_checkpoint,
    make_row,
    random_tokens,
    relative_error,
)

PAGES = 16
PATIENCE_SECONDS = 20


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return make_checkpoint(tmp_path_factory.mktemp("model"), "qwen3", tie_word_embeddings=True)


class ThreadGroup:
    """A `group.Group` of threads instead of processes."""

    def __init__(self, ranks: int) -> None:
        self._parts: list[Tensor] = [torch.empty(0)] * ranks
        self._barrier = threading.Barrier(ranks, timeout=PATIENCE_SECONDS)

    def reduce(self, rank: int, part: Tensor) -> None:
        part.copy_(torch.stack(self._all(rank, part)).sum(0))

    def gather(self, rank: int, part: Tensor) -> Tensor:
        return torch.cat(self._all(rank, part), dim=1)[:, :VOCAB]

    def _all(self, rank: int, part: Tensor) -> list[Tensor]:
        self._parts[rank] = part.clone()
        self._barrier.wait()
        parts = list(self._parts)
        self._barrier.wait()
        return parts


def make_network(kind: str, directory: Path, ranks: int, rank: int, group: ThreadGroup) -> Network:
    share = Shard(load_config(directory), rank, ranks)
    weights = Weights(directory, share.whole, torch.float32, torch.device("cpu"))
    tensors, config = ShardWeights(weights, share), share.config
    reduce, gather = partial(group.reduce, rank), partial(group.gather, rank)
    if kind == "torch":
        plain = Decoder(config, tensors, torch.float32, reduce=reduce, gather=gather)
        return TorchNetwork(plain, PAGES)
    decoder = CudaDecoder(config, tensors, torch.float32, reduce=reduce, gather=gather)
    return CudaNetwork(decoder, PAGES, 64, graph_rows=())


def compute(networks: Sequence[Network], rows: list[Row]) -> list[Float32]:
    """Compute rows on all ranks: on the first as the executor does, on the others by its calls."""
    asks = [SamplingRequest(row.options, row.seed, row.positions[row.places]) for row in rows]
    count = sum(len(ask.positions) for ask in asks)

    def first() -> list[Float32]:
        with torch.inference_mode():
            order = networks[0].forward(rows)
            results = networks[0].answer(0, [asks[index] for index in order])
        found = dict(zip(order, map(as_logits, results), strict=True))
        return [found[index] for index in range(len(rows))]

    def other(network: Network) -> None:
        calls = BytesIO(pack("forward", *pack_rows(rows)) + pack("answer", 0, count))
        with torch.inference_mode():
            while (call := receive(calls)) is not None:
                assert execute_call(network, call) is None

    works: list[Callable[[], Any]] = [first, *(partial(other, each) for each in networks[1:])]
    with ThreadPoolExecutor(len(works)) as threads:
        results = [threads.submit(work) for work in works]
    answers: list[Float32]
    answers, *_ = [result.result() for result in results]
    return answers


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("kind", ["torch", "cuda"])
def test_shards_together_have_the_logits_of_transformers(
    checkpoint: Checkpoint, kind: str, ranks: int
) -> None:
    group = ThreadGroup(ranks)
    networks = [
        make_network(kind, checkpoint.directory, ranks, rank, group) for rank in range(ranks)
    ]
    tables = [np.arange(first, first + 4, dtype=np.int32) for first in (0, 4, 8)]
    tokens = [random_tokens(count, seed) for seed, count in enumerate((34, 21, 7))]
    compute(networks, [make_row(tokens[0][:33], tables[0]), make_row(tokens[1][:16], tables[1])])
    found = compute(
        networks,
        [
            make_row(tokens[0][33:], tables[0], 33),
            make_row(tokens[1][16:], tables[1], 16, ALL_LOGITS),
            make_row(tokens[2], tables[2]),
        ],
    )
    for mine, all_tokens, begin in zip(found, tokens, (33, 16, 0), strict=True):
        assert relative_error(mine, checkpoint.logits(all_tokens)[begin:]) < 1e-4
