"""Matrix products, laid out once for the device that computes them."""

# ruff: noqa: SLF001 - oneDNN's packed products have no public name in torch; `packs` probes them.

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

mkldnn = torch.ops.mkldnn


class Linear:
    """A matrix product whose weights are laid out for the device once.

    Packed weights (oneDNN, on the CPU) are faster than plain ones at every size measured. A row's
    result does not depend on the number of rows, to the last bit, except that a single row may be
    added up in another order. Where `packs` is true, a caller that needs the same bits passes no
    single row (see `doubled`).
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, packed: bool) -> None:
        self._packed = packed
        self._bias = bias
        self._weight = mkldnn._reorder_linear_weight(weight, None) if packed else weight

    def __call__(self, x: Tensor) -> Tensor:
        """Return x W' + b, [n, out]."""
        return self._unary(x, "none") if self._packed else self._linear(x)

    def silu(self, x: Tensor) -> Tensor:
        """Return silu(x W' + b), [n, out]."""
        return self._unary(x, "swish") if self._packed else silu(self._linear(x))

    def times(self, x: Tensor, other: Tensor) -> Tensor:
        """Return (x W' + b) * other, [n, out]."""
        return self._binary(x, other, "mul") if self._packed else self._linear(x).mul_(other)

    def plus(self, x: Tensor, other: Tensor) -> Tensor:
        """Return x W' + b + other, [n, out]."""
        return self._binary(x, other, "add") if self._packed else self._linear(x).add_(other)

    def _linear(self, x: Tensor) -> Tensor:
        return linear(x, self._weight, self._bias)

    def _unary(self, x: Tensor, attribute: str) -> Tensor:
        out: Tensor = mkldnn._linear_pointwise(x, self._weight, self._bias, attribute, [], "")
        return out

    def _binary(self, x: Tensor, other: Tensor, attribute: str) -> Tensor:
        out: Tensor = mkldnn._linear_pointwise.binary(x, other, self._weight, self._bias, attribute)
        return out


def doubled(x: Tensor) -> Tensor:
    """Return a single row twice, and any other number of rows as they are."""
    return torch.cat((x, x)) if x.shape[0] == 1 else x


def packs(dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether torch packs weights of this kind on this machine."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return dtype == torch.float32 or bool(mkldnn._is_mkldnn_bf16_supported())
