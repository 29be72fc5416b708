"""What the machine allows: the least time that a workload can take on it.

A step reads every weight once and the histories of its rows, and does two operations per weight and
row; it takes at least the longer of bytes over bandwidth and operations over the rate of bf16
products. Both rates are measured in the same run, because they move by the hour. Quantized weights
may be multiplied faster than this floor's operations, as integers.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.serving.workloads import Column, Workload

# Bytes of a weight of the body and of the head, with scales: `Quantization` of the kernel.
_QUANTIZED_BYTES = {"int8": (1 + 2 / 128, 1 + 2 / 128), "int4": (0.5 + 2 / 32, 1 + 2 / 128)}


@dataclass(frozen=True, slots=True)
class Rates:
    """What the machine was seen to do, by all threads.

    Attributes:
        bandwidth: Bytes/s read.
        operations: bf16 operations/s of torch's product of two large matrices.
        ceiling: Operations/s of registers alone, where that was measured: in bf16 or in float32,
            which bf16 can be widened to, whichever is faster.
    """

    bandwidth: float
    operations: float
    ceiling: float | None = None

    def at_ceiling(self) -> "Rates | None":
        """Return the rates of a machine whose products reach the ceiling."""
        return None if self.ceiling is None else Rates(self.bandwidth, self.ceiling)


@dataclass(frozen=True, slots=True)
class Sizes:
    """A decoder's sizes as its floor needs them.

    Attributes:
        layers: Number of them.
        body: Weights that every token passes, without the embedding table.
        head: Weights of the product that gives logits.
        inner: Elements of a token's queries, over all heads.
        kv_inner: Elements of a token's keys, over all heads.
        weight_bytes: Of one weight, and of one element of a key or value.
        quantized_bytes: Of one weight of the body and of the head, if they are quantized.
    """

    layers: int
    body: int
    head: int
    inner: int
    kv_inner: int
    weight_bytes: int = 2
    quantized_bytes: tuple[float, float] | None = None

    @classmethod
    def of(cls, model: Path, weight_bytes: int = 2, quantize: str = "none") -> "Sizes":
        """Return the sizes of a checkpoint (Llama, Mistral, Qwen2 or Qwen3)."""
        config: dict[str, Any] = json.loads((model / "config.json").read_text(encoding="utf-8"))
        hidden, layers = config["hidden_size"], config["num_hidden_layers"]
        head_dim = config.get("head_dim") or hidden // config["num_attention_heads"]
        inner = head_dim * config["num_attention_heads"]
        kv_inner = head_dim * config["num_key_value_heads"]
        attention = 2 * hidden * inner + 2 * hidden * kv_inner
        body = layers * (attention + 3 * hidden * config["intermediate_size"])
        head, quantized = config["vocab_size"] * hidden, _QUANTIZED_BYTES.get(quantize)
        return cls(layers, body, head, inner, kv_inner, weight_bytes, quantized)

    @property
    def product_bytes(self) -> float:
        """Of all weights that a step reads."""
        body, head = self.quantized_bytes or (self.weight_bytes, self.weight_bytes)
        return body * self.body + head * self.head

    def prefill_seconds(self, streams: int, prompt: int, rates: Rates) -> float:
        """Return the least time for the first tokens of so many prompts together."""
        products = 2 * (self.body * prompt + self.head) * streams
        # Causal: a token sees half of the prompt on average.
        attention = 4 * self.inner * self.layers * streams * prompt * (prompt + 1) // 2
        read = self.product_bytes
        return max(read / rates.bandwidth, (products + attention) / rates.operations)

    def decode_seconds(self, streams: int, context: float, rates: Rates) -> float:
        """Return the least time of one step of so many streams that hold `context` tokens each."""
        products = 2 * (self.body + self.head) * streams
        attention = 4 * self.inner * self.layers * streams * context
        history = 2 * self.kv_inner * self.layers * streams * context
        read = self.product_bytes + history * self.weight_bytes
        return max(read / rates.bandwidth, (products + attention) / rates.operations)


def floor(workload: Workload, sizes: Sizes, rates: Rates) -> float | None:
    """Return the best that a closed loop's column can be, or None for an open loop.

    Rates in tokens or requests a second, times in seconds.
    """
    if workload.rate is not None:
        return None
    streams = min(workload.streams, workload.requests)
    prefill = sizes.prefill_seconds(streams, workload.prompt, rates)
    steps = workload.new - 1
    mean_context = workload.prompt + workload.new / 2
    decode = steps * sizes.decode_seconds(streams, mean_context, rates)
    whole = prefill + decode
    match workload.column:
        case Column.DECODE:
            return streams * steps / decode if steps else None
        case Column.WHOLE:
            return streams * workload.new / whole
        case Column.PREFILL:
            return streams * workload.prompt / prefill
        case Column.REQUESTS:
            return streams / whole
        case Column.LATENCY:
            return whole
        case Column.FIRST:
            return prefill
