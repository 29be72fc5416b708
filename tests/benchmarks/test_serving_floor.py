"""The machine's floor, by hand."""

from pathlib import Path

import pytest

from benchmarks.checkpoints import SHAPES, make_checkpoint, make_weights
from benchmarks.serving.floor import Rates, Sizes, floor
from benchmarks.serving.workloads import Column, Workload

# SmolLM2-135M's and Qwen2-0.5B's, as their configurations give them.
LLAMA = Sizes(30, 106_168_320, 28_311_552, 576, 192)
QWEN = Sizes(24, 357_826_560, 136_134_656, 896, 128)
RATES = Rates(45e9, 400e9)


def test_floor_sizes_are_those_of_the_tensors(tmp_path: Path) -> None:
    import torch

    shape = SHAPES["small"]
    weights = make_weights(shape, torch.float32, 0)
    sizes = Sizes.of(make_checkpoint(tmp_path, shape))
    matrices = sum(w.numel() for name, w in weights.items() if w.ndim == 2)
    assert sizes.body + sizes.head == matrices, "tied: the table is the head"
    assert sizes.head == weights["model.embed_tokens.weight"].numel()
    assert sizes.kv_inner == weights["model.layers.0.self_attn.k_proj.weight"].shape[0]


def test_floor_of_one_stream_is_bandwidth() -> None:
    step = LLAMA.decode_seconds(1, 0, RATES)
    assert step == pytest.approx(2 * 134_479_872 / 45e9)
    with_history = LLAMA.decode_seconds(1, 1000, RATES)
    assert with_history - step == pytest.approx(1000 * 30 * 2 * 192 * 2 / 45e9)


def test_floor_of_many_streams_is_operations() -> None:
    assert LLAMA.decode_seconds(64, 0, RATES) == pytest.approx(2 * 134_479_872 * 64 / 400e9)
    assert LLAMA.decode_seconds(64, 100, RATES) == pytest.approx(
        64 * (2 * 134_479_872 + 4 * 576 * 30 * 100) / 400e9
    )


def test_floor_of_prefill_computes_logits_once() -> None:
    products = 2 * (106_168_320 * 1024 + 28_311_552)
    attention = 4 * 576 * 30 * sum(range(1, 1025))
    assert LLAMA.prefill_seconds(1, 1024, RATES) == pytest.approx((products + attention) / 400e9)
    short = LLAMA.prefill_seconds(1, 1, RATES)
    assert short == pytest.approx(2 * 134_479_872 / 45e9), "a short one reads the weights at least"


@pytest.mark.parametrize(
    ("sizes", "column", "workload", "expected"),
    [
        (LLAMA, Column.DECODE, (1, 128, 128), 165),
        (LLAMA, Column.WHOLE, (16, 128, 128), 804),
        (LLAMA, Column.PREFILL, (1, 1024, 1), 1614),
        (QWEN, Column.DECODE, (1, 128, 128), 45.4),
        (QWEN, Column.WHOLE, (16, 128, 128), 233),
        (QWEN, Column.PREFILL, (1, 1024, 1), 526),
    ],
)
def test_floor_of_each_column_is_the_larger_bound(
    sizes: Sizes, column: Column, workload: tuple[int, int, int], expected: float
) -> None:
    streams, prompt, new = workload
    asked = Workload("x", prompt, new, column, streams, streams)
    assert floor(asked, sizes, RATES) == pytest.approx(expected, rel=0.005)


def test_floor_of_a_workload_counts_times_and_requests() -> None:
    prefill = LLAMA.prefill_seconds(1, 8, RATES)
    assert floor(Workload("x", 8, 1, Column.LATENCY), LLAMA, RATES) == prefill
    assert floor(Workload("x", 8, 5, Column.FIRST), LLAMA, RATES) == prefill
    sixteen = Workload("x", 8, 1, Column.REQUESTS, streams=16, requests=64)
    assert floor(sixteen, LLAMA, RATES) == pytest.approx(16 / LLAMA.prefill_seconds(16, 8, RATES))
    assert floor(Workload("x", 8, 1, Column.DECODE), LLAMA, RATES) is None
    assert floor(Workload("x", 8, 5, Column.FIRST, rate=2.0), LLAMA, RATES) is None


def test_floor_of_quantized_weights_reads_fewer_bytes(tmp_path: Path) -> None:
    model = make_checkpoint(tmp_path, SHAPES["small"])
    whole, four = Sizes.of(model), Sizes.of(model, quantize="int4")
    assert four.product_bytes == pytest.approx(four.body * 0.5625 + four.head * 1.015625)
    slow = Rates(1.0, 1e30)
    saved = whole.decode_seconds(1, 10, slow) - four.decode_seconds(1, 10, slow)
    assert saved == pytest.approx(whole.product_bytes - four.product_bytes)
