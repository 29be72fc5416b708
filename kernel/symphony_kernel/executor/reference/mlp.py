"""The second half of a layer: one MLP for all tokens, or experts that a router chooses."""

import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

from symphony_kernel.executor.models.config import Activation, Experts, ModelConfig
from symphony_kernel.executor.reference.linear import Linear, doubled


class Mlp:
    """Gate, up and down, and what joins the first two."""

    def __init__(self, config: ModelConfig, gate: Linear, up: Linear, down: Linear) -> None:
        self._activation = config.activation
        self._slope, self._limit = config.gate_slope, config.gate_limit
        self.gate, self.up, self.down = gate, up, down

    def middle(self, x: Tensor) -> Tensor:
        """Return what `down` multiplies, [n, middle], of [n, hidden]."""
        if self._activation is Activation.SILU:
            return self.up.times(x, self.gate.silu(x))
        if self._activation is Activation.GELU_TANH:
            return self.up.times(x, self.gate.gelu(x))
        return self.joined(self.gate(x), self.up(x))

    def joined(self, gate: Tensor, up: Tensor) -> Tensor:
        """Join results of gate and up, [n, middle] each, which are overwritten."""
        if self._activation is Activation.SILU:
            return silu(gate).mul_(up)
        if self._activation is Activation.GELU_TANH:
            return gelu(gate, approximate="tanh").mul_(up)
        gate, up = gate.clamp_(max=self._limit), up.clamp_(-self._limit, self._limit)
        return gate.mul_(torch.sigmoid(gate * self._slope)).mul_(up.add_(1.0))


class RoutedMlp:
    """Experts: each computes the rows that chose it, together."""

    def __init__(self, experts: Experts, router: Linear, mlps: list[Mlp], packed: bool) -> None:
        self._experts = experts
        self._router = router
        self._mlps = mlps
        self._packed = packed  # single rows need a second one, see `Linear`

    def __call__(self, x: Tensor) -> Tensor:
        """Return the weighted sums of the chosen experts' results, [n, hidden]."""
        weights, chosen = self._choose(self._router(self._doubled(x))[: len(x)].float())
        out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        for expert in sorted(set(chosen.flatten().tolist())):
            rows, places = (chosen == expert).nonzero(as_tuple=True)
            mlp, mine = self._mlps[expert], self._doubled(x.index_select(0, rows))
            found = mlp.down(mlp.middle(mine))[: len(rows)].float()
            out.index_add_(0, rows, found.mul_(weights[rows, places, None]))
        return out.to(x.dtype)

    def _choose(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights and the numbers of each row's experts, [n, chosen] each."""
        experts = self._experts
        if not experts.normalized:
            scores = scores.softmax(-1)
        best, chosen = scores.topk(experts.chosen, dim=-1)
        return (best.softmax(-1) if experts.normalized else best), chosen

    def _doubled(self, x: Tensor) -> Tensor:
        return doubled(x) if self._packed else x
