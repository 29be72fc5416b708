"""Single native kernels, and what the machine can do at most: for tests and benchmarks."""

from collections.abc import Sequence
from ctypes import POINTER, Structure, byref, c_double, c_int32, c_int64, c_void_p, pointer
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from symphony_kernel.executor.models.quantization import QuantizedMatrix
from symphony_kernel.executor.native.library import Library
from symphony_kernel.executor.native.network import QuantizedRows
from symphony_kernel.executor.native.pages import AttentionShape, NativePages
from symphony_kernel.executor.native.step import FlatStep, StepRows

Array = npt.NDArray[np.generic]
Float32 = npt.NDArray[np.float32]

_FLOPS_PER_DOT = {2: 64, 4: 32}  # in a register: pairs of bfloat16, or float32


# -- Attention -----------------------------------------------------------------------------------
class AttentionLayer(Structure):
    """`AttentionLayer` of attention.h."""

    _fields_ = (
        ("layer", c_int32), ("qkv", c_void_p), ("qkv_stride", c_int64), ("out", c_void_p),
        ("out_stride", c_int64), ("q_norm", c_void_p), ("k_norm", c_void_p), ("cosines", c_void_p),
        ("sines", c_void_p),
    )  # fmt: skip


@dataclass(slots=True)
class LayerWork:
    """One layer's arrays in a step: what attention reads and writes."""

    layer: int
    qkv: Float32  # [tokens, (heads + 2 * kv_heads) * head_dim]
    out: Array  # [tokens, heads * head_dim], bfloat16 as uint16 bits; float32 if `wide`
    cosines: Float32  # [positions, head_dim / 2]
    sines: Float32
    q_norm: Float32 | None = None  # [head_dim]
    k_norm: Float32 | None = None


class LoneAttention:
    """Attention without the rest of the network, with its own team of threads."""

    def __init__(self, library: Library, pool: NativePages) -> None:
        wide = pool.shape.element_bytes == 4 or pool.shape.wide or not library.computes_bf16
        self._out_type = np.dtype(np.float32 if wide else np.uint16)
        create = library.function(
            "symphony_attention_create", POINTER(AttentionShape), c_void_p, result=c_void_p
        )
        self._destroy = library.function("symphony_attention_destroy", c_void_p)
        self._plan = library.function(
            "symphony_attention_plan", c_void_p, POINTER(StepRows), result=c_int32
        )
        self._compute = library.function(
            "symphony_attention_compute", c_void_p, POINTER(AttentionLayer), c_int32
        )
        self._handle = create(byref(pool.structure), pool.address)
        if not self._handle:
            raise MemoryError("no memory or no threads for attention")
        self._step: FlatStep | None = None

    def close(self) -> None:
        if self._handle:
            self._destroy(self._handle)
            self._handle = 0

    def plan(self, step: FlatStep) -> None:
        self._step = step  # C refers to its arrays
        if self._plan(self._handle, byref(step.rows)):
            raise MemoryError("no memory to plan a step")

    def compute(self, works: Sequence[LayerWork]) -> None:
        """Enter K and V and attend, layer after layer."""
        layers = (AttentionLayer * len(works))(*(self._layer(work) for work in works))
        self._compute(self._handle, layers, len(works))

    def _layer(self, work: LayerWork) -> AttentionLayer:
        def address(array: Float32 | None) -> int | None:
            return None if array is None else int(array.ctypes.data)

        assert work.out.dtype == self._out_type
        return AttentionLayer(
            work.layer,
            work.qkv.ctypes.data,
            work.qkv.shape[1],
            work.out.ctypes.data,
            work.out.shape[1],
            address(work.q_norm),
            address(work.k_norm),
            address(work.cosines),
            address(work.sines),
        )


# -- Products and the machine --------------------------------------------------------------------
class _Product(Structure):
    _fields_ = (
        ("inputs", c_void_p), ("weights", c_void_p), ("quantized", POINTER(QuantizedRows)),
        ("bias", c_void_p), ("out", c_void_p), ("rows", c_int32), ("depth", c_int32),
        ("outputs", c_int32), ("threads", c_int32), ("wide", c_int32), ("repeats", c_int32),
        ("seconds", c_double),
    )  # fmt: skip


def product(
    library: Library,
    inputs: Array,
    weights: Array | QuantizedMatrix,
    bias: Float32 | None = None,
    threads: int = 1,
    *,
    wide: bool = False,
) -> Float32:
    """Return inputs weights' + bias, [rows, outputs].

    `inputs` is [rows, depth] and `weights` [outputs, depth]: both float32, or both bfloat16 as
    uint16 bits. `wide` multiplies bfloat16 as float32. Weights may be quantized.
    """
    return timed_product(library, inputs, weights, bias, threads, wide=wide)[0]


def rounded_inputs(inputs: Float32, group: int) -> npt.NDArray[np.float64]:
    """Return [n, depth] inputs as the kernels multiply them with quantized weights.

    They are rounded to 8 bits, each group of a row's inputs with a scale of its own.
    """
    rows, depth = inputs.shape
    groups = np.pad(inputs, ((0, 0), (0, -depth % group))).reshape(rows, -1, group)
    largest = np.abs(groups).max(2, keepdims=True)
    steps = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > 0)
    scales = (largest * np.float32(1 / 127)).astype(np.float64)
    found: npt.NDArray[np.float64] = np.rint(groups * steps) * scales
    return found.reshape(rows, -1)[:, :depth]


def timed_product(
    library: Library,
    inputs: Array,
    weights: Array | QuantizedMatrix,
    bias: Float32 | None = None,
    threads: int = 1,
    *,
    wide: bool = False,
    repeats: int = 1,
) -> tuple[Float32, float]:
    """Return `product`, and the seconds of the fastest of `repeats`."""
    inputs, rows, plain = np.ascontiguousarray(inputs), None, None
    if isinstance(weights, QuantizedMatrix):
        rows, outputs = QuantizedRows.of(weights), weights.outputs
    else:
        assert inputs.dtype == weights.dtype
        plain, outputs = np.ascontiguousarray(weights), len(weights)
    out = np.full((len(inputs), outputs), np.nan, np.float32)
    given = _Product(
        inputs.ctypes.data,
        None if plain is None else plain.ctypes.data,
        None if rows is None else pointer(rows),
        None if bias is None else bias.ctypes.data,
        out.ctypes.data,
        *inputs.shape,
        outputs,
        threads,
        wide,
        repeats,
    )
    compute = library.function("symphony_product", POINTER(_Product), c_int32, result=c_int32)
    if compute(byref(given), inputs.itemsize):
        raise MemoryError("no memory for a product")
    return out, given.seconds


def flops_per_s(library: Library, element_bytes: int, threads: int, dots: int = 24 << 16) -> float:
    """Return the operations a second of the threads without memory accesses."""
    measure = library.function("symphony_dot_seconds", c_int32, c_int32, c_int64, result=c_double)
    seconds: float = measure(element_bytes, threads, dots)
    return dots * threads * _FLOPS_PER_DOT[element_bytes] / seconds


def bytes_per_s(library: Library, threads: int, size: int = 256 << 20) -> float:
    """Return the bytes a second that the threads read from memory."""
    seconds: float = library.function("symphony_read_seconds", c_int32, c_int64, result=c_double)(
        threads, size
    )
    if seconds <= 0:
        raise MemoryError(f"no {size} bytes to read")
    return size / seconds


def keeps_apart(library: Library, start: int, to: int) -> bool | None:
    """Move a step's caller between cores; return whether the team's thread avoids it.

    None: no result.
    """
    moved = library.function("symphony_team_moved", c_int32, c_int32, result=c_int32)(start, to)
    return None if moved < 0 else not moved


def lends(library: Library, cores: tuple[int, int], *, late: bool) -> bool | None:
    """Lend one of a team's two cores; return whether its thread rests and comes back.

    It comes back when notified, or, if `late`, by itself. None: no result.
    """
    call = library.function("symphony_team_lent", c_int32, c_int32, c_int32, result=c_int32)
    lent = call(*cores, late)
    return None if lent < 0 else not lent
