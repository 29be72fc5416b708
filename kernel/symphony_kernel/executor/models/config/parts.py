"""What a network is made of, as far as families differ in it."""

from dataclasses import dataclass
from enum import StrEnum

ROPE_THETA_DEFAULT = 10_000.0


class Activation(StrEnum):
    """What joins an MLP's gate and its other half, `up`, element by element."""

    SILU = "silu"  # silu(gate) up
    GELU_TANH = "gelu_pytorch_tanh"  # gelu(gate) up, by the approximation with tanh
    CLAMPED = "clamped"  # both clamped to `gate_limit`: gate sigmoid(gate_slope gate) (up + 1)


class TensorNames(StrEnum):
    """How a checkpoint cuts and names its tensors (see `models.shapes`)."""

    SEPARATE = "separate"  # one matrix for each product; those of experts are numbered
    FUSED = "fused"  # one matrix of queries, keys and values, and one of gate and up
    MIXTRAL = "mixtral"  # experts in block_sparse_moe, as w1, w2 and w3
    STACKED = "stacked"  # all experts in one tensor, inputs first, outputs of gate and up in turn


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding: `kind` is default, linear, dynamic, llama3, yarn or longrope.

    Dynamic scaling and longrope change all frequencies once a sequence outgrows the original
    context, which would make cached keys wrong. So they are served within the original context
    only. There dynamic scaling equals default, and longrope has its factors for short contexts.
    """

    kind: str = "default"
    theta: float = ROPE_THETA_DEFAULT
    partial: float = 1.0  # the share of a head's dimensions that are rotated, the first ones
    factor: float = 1.0
    original_context: int = 0  # tokens; llama3, yarn, longrope
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 1.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    truncate: bool = True  # yarn
    # yarn: None is from factor, mscale and mscale_all_dim; longrope: from factor
    attention_factor: float | None = None
    mscale: float = 0.0  # yarn
    mscale_all_dim: float = 0.0  # yarn
    short_factors: tuple[float, ...] = ()  # longrope, one for each rotated pair

    def rotated(self, head_dim: int) -> int:
        """Return how many dimensions of a head are rotated."""
        return int(head_dim * self.partial)


@dataclass(frozen=True, slots=True)
class Experts:
    """An MLP of experts: each token is computed by the few that a router chooses for it."""

    count: int
    chosen: int  # of each token
    normalized: bool  # the weights of a token's experts sum to one
    router_bias: bool = False
