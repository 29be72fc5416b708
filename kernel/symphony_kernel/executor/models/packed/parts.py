"""The tensors that make one quantized matrix, found by their names and checked by their shapes.

For a matrix [outputs, inputs] with groups of inputs, and n values in an int32:

AWQ                 qweight [inputs, outputs / n], scales [groups, outputs],
                    qzeros [groups, outputs / n]; eight values of an int32 in the order of _AWQ
GPTQ                qweight [inputs / n, outputs], scales [groups, outputs],
                    qzeros [groups, outputs / n], g_idx [inputs]: each input's group
compressed-tensors  weight_packed [outputs, inputs / n], weight_scale [outputs, groups],
                    weight_zero_point [outputs / n, groups] or none, weight_shape [2],
                    weight_g_idx [inputs] or none
                    or weight [outputs, inputs] in int8 or FP8, and weight_scale
FP8                 weight [outputs, inputs], and weight_scale or weight_scale_inv, for all, for
                    each output or for each block; both are factors
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from symphony_kernel.executor.models.file_reader import CheckpointError, shown
from symphony_kernel.executor.models.packed.scheme import Scheme
from symphony_kernel.executor.models.packed.stored import FLOATS, Stored

_WORD_BITS = 32
_FORMATS = {"awq": "AWQ", "gptq": "GPTQ", "packed": "compressed-tensors"}
# Scales of inputs, outputs and cached keys and values: the server computes without them.
_IGNORED = re.compile(
    r"\.(?:input_scale|input_zero_point|output_scale|output_zero_point|activation_scale|"
    r"input_scale_ub|[kvq]_scale|[kvq]_zero_point|prob_scale|[kv]_proj\.output_scale)$"
)


class PackedTensor(NamedTuple):
    """A matrix [outputs, inputs] in several tensors, by the ends of their names.

    `kind` is awq, gptq, packed or scaled. `bits` are a value's. `group` inputs share a scale; 0:
    all of an output. A scaled matrix has blocks, or none: its scale's shape says what shares one.
    """

    kind: str
    shape: tuple[int, ...]
    parts: dict[str, Stored]
    bits: int = 8
    group: int = 0
    block: tuple[int, int] | None = None
    zeros_less_one: bool = False

    @property
    def path(self) -> Path:
        return next(iter(self.parts.values())).path

    @property
    def described(self) -> str:
        """The format, for messages."""
        weight = self.parts.get("weight")
        return _FORMATS[self.kind] if weight is None else weight.dtype

    @property
    def held_bits(self) -> int | None:
        """The bits of a value in the native network, at least; None: those of its dtype."""
        if self.kind == "scaled":
            return 8 if self.parts["weight"].dtype == "I8" else None
        return max(self.bits, 4)

    def refused(self) -> str | None:
        return None


def join_parts(
    headers: Mapping[str, Stored], scheme: Scheme, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Stored | PackedTensor]:
    """Return a folder's tensors with quantized matrices as one; `shapes` are those of a model.

    Raises CheckpointError: a matrix's tensors do not fit together.
    """
    left, joined = dict(headers), dict[str, PackedTensor]()
    for name in [name for name in left if _IGNORED.search(name)]:
        del left[name]
    for name, shape in shapes.items():
        stem, dot, what = name.rpartition(".")
        if what == "weight" and len(shape) == 2:
            found = _matrix(_Parts(left, stem + dot), scheme, shape)
            if found is not None:
                joined[name] = found
                bias = stem + ".bias"
                if bias in left and bias not in shapes:
                    # AutoGPTQ wrote biases for every matrix; this one must turn out to be zero.
                    found.parts["bias"] = left.pop(bias)
                    _expect(found.parts["bias"], FLOATS, shape[:1])
    return {**left, **joined}


class _Parts:
    """Takes a matrix's tensors by the ends of their names."""

    def __init__(self, headers: dict[str, Stored], prefix: str) -> None:
        self._headers, self._prefix = headers, prefix
        self.taken: dict[str, Stored] = {}

    def has(self, end: str) -> bool:
        return self._prefix + end in self._headers

    def dtype(self, end: str) -> str:
        return self._headers[self._prefix + end].dtype if self.has(end) else ""

    def take(self, end: str) -> Stored:
        found = self._headers.pop(self._prefix + end, None)
        if found is None:
            raise CheckpointError(f"{next(iter(self.taken.values())).path} has no {self.name(end)}")
        self.taken[end] = found
        return found

    def name(self, end: str) -> str:
        return self._prefix + end


def _matrix(parts: _Parts, scheme: Scheme, shape: tuple[int, ...]) -> PackedTensor | None:
    if parts.has("qweight"):
        return _awq(parts, shape) if scheme.method == "awq" else _gptq(parts, scheme, shape)
    if parts.has("weight_packed"):
        return _packed(parts, shape)
    if parts.dtype("weight") in ("I8", "F8_E4M3"):
        return _scaled(parts, scheme, shape)
    return None


def _awq(parts: _Parts, shape: tuple[int, ...]) -> PackedTensor:
    outputs, inputs = shape
    _divides(parts, 8, outputs)
    _expect(parts.take("qweight"), {"I32"}, (inputs, outputs // 8))
    group = _grouped(parts.take("scales"), 0, inputs)
    groups = inputs // group
    _expect(parts.taken["scales"], FLOATS, (groups, outputs))
    _expect(parts.take("qzeros"), {"I32"}, (groups, outputs // 8))
    return PackedTensor("awq", shape, parts.taken, 4, group)


def _gptq(parts: _Parts, scheme: Scheme, shape: tuple[int, ...]) -> PackedTensor:
    outputs, inputs = shape
    weight = parts.take("qweight")
    bits = _bits(weight, 0, inputs)
    values = _WORD_BITS // bits
    _divides(parts, values, inputs, outputs)
    _expect(weight, {"I32"}, (inputs // values, outputs))
    scales = parts.take("scales")
    group = _grouped(scales, 0, inputs)
    _expect(scales, FLOATS, (inputs // group, outputs))
    _expect(parts.take("qzeros"), {"I32"}, (inputs // group, outputs // values))
    if parts.has("g_idx"):
        _expect(parts.take("g_idx"), {"I32", "I64"}, (inputs,))
    return PackedTensor(
        "gptq", shape, parts.taken, bits, group, zeros_less_one=scheme.zeros_less_one
    )


def _packed(parts: _Parts, shape: tuple[int, ...]) -> PackedTensor:
    outputs, inputs = shape
    weight = parts.take("weight_packed")
    bits = _bits(weight, 1, inputs)
    _expect(weight, {"I32"}, (outputs, _words(inputs, bits)))
    scales = parts.take("weight_scale")
    group = _grouped(scales, 1, inputs)
    groups = inputs // group
    _expect(scales, FLOATS, (outputs, groups))
    if parts.has("weight_zero_point"):
        zeros = parts.take("weight_zero_point")
        plain = zeros.dtype == "I8"
        _expect(zeros, {"I8", "I32"}, (outputs if plain else _words(outputs, bits), groups))
    if parts.has("weight_g_idx"):
        _expect(parts.take("weight_g_idx"), {"I32", "I64"}, (inputs,))
    if parts.has("weight_shape"):
        _expect(parts.take("weight_shape"), {"I32", "I64"}, (2,))
    return PackedTensor("packed", shape, parts.taken, bits, group)


def _scaled(parts: _Parts, scheme: Scheme, shape: tuple[int, ...]) -> PackedTensor:
    outputs, inputs = shape
    kind = parts.dtype("weight")
    _expect(parts.take("weight"), {kind}, shape)
    end = "weight_scale_inv" if parts.has("weight_scale_inv") else "weight_scale"
    scale = parts.take(end)
    block = scheme.block
    possible: list[tuple[int, ...]] = [(), (1,), (1, 1), (outputs,), (outputs, 1)]
    group = 0
    if block is not None:
        possible.append((-(-outputs // block[0]), -(-inputs // block[1])))
    elif len(scale.shape) == 2 and scale.shape[1] > 1:
        group = _grouped(scale, 1, inputs)
        possible.append((outputs, inputs // group))
    if scale.shape not in possible or scale.dtype not in FLOATS:
        raise _wrong(scale, f"must be floats of one of the shapes {shown(possible)}")
    if scale.shape in possible[:5]:
        block = None
    if parts.has("weight_zero_point"):
        _expect(parts.take("weight_zero_point"), {kind}, scale.shape)
    return PackedTensor("scaled", shape, parts.taken, 8, group, block)


def _words(values: int, bits: int) -> int:
    return -(-values * bits // _WORD_BITS)


def _bits(stored: Stored, dimension: int, values: int) -> int:
    """Return the bits of a value, from how many int32 hold so many values."""
    size = stored.shape[dimension] if len(stored.shape) == 2 else 0
    found = [bits for bits in (2, 4, 8) if _words(values, bits) == size]
    if len(found) != 1:
        raise _wrong(stored, f"does not hold {values} values of 2, 4 or 8 bits")
    return found[0]


def _grouped(scales: Stored, dimension: int, inputs: int) -> int:
    """Return the inputs that share a scale."""
    groups = scales.shape[dimension] if len(scales.shape) == 2 else 0
    if not groups or inputs % groups:
        raise _wrong(scales, f"has no groups of {inputs} inputs")
    return inputs // groups


def _divides(parts: _Parts, values: int, *sizes: int) -> None:
    for size in sizes:
        if size % values:
            raise CheckpointError(
                f"{parts.name('qweight')}: {size} values do not fill int32 of {values}"
            )


def _expect(stored: Stored, dtypes: frozenset[str] | set[str], shape: tuple[int, ...]) -> None:
    if stored.shape != shape:
        raise _wrong(stored, f"has not the shape {shown(shape)}")
    if stored.dtype not in dtypes:
        raise _wrong(stored, f"must be {' or '.join(sorted(dtypes))}")


def _wrong(stored: Stored, words: str) -> CheckpointError:
    return CheckpointError(
        f"{stored.name} in {stored.path} is {stored.dtype} of the shape {shown(stored.shape)}: "
        f"{words}"
    )
