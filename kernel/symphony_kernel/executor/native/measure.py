"""Single kernels, and what the machine can do at most: for tests and benchmarks."""

from ctypes import POINTER, Structure, byref, c_double, c_int32, c_int64, c_void_p

import numpy as np
import numpy.typing as npt

from symphony_kernel.executor.native.library import Library

Array = npt.NDArray[np.generic]
Float32 = npt.NDArray[np.float32]

_FLOPS_PER_DOT = {2: 64, 4: 32}  # in a register: pairs of bfloat16, or float32


class _Product(Structure):
    _fields_ = (
        ("inputs", c_void_p),
        ("weights", c_void_p),
        ("bias", c_void_p),
        ("out", c_void_p),
        ("rows", c_int32),
        ("depth", c_int32),
        ("outputs", c_int32),
        ("threads", c_int32),
        ("wide", c_int32),
    )


def product(
    library: Library,
    inputs: Array,
    weights: Array,
    bias: Float32 | None = None,
    threads: int = 1,
    *,
    wide: bool = False,
) -> Float32:
    """Return inputs weights' + bias, [rows, outputs].

    `inputs` is [rows, depth] and `weights` [outputs, depth]: both float32, or both bfloat16 as
    uint16 bits. `wide` multiplies bfloat16 as float32.
    """
    assert inputs.dtype == weights.dtype
    out = np.full((len(inputs), len(weights)), np.nan, np.float32)
    inputs, weights = np.ascontiguousarray(inputs), np.ascontiguousarray(weights)
    given = _Product(
        inputs.ctypes.data,
        weights.ctypes.data,
        None if bias is None else bias.ctypes.data,
        out.ctypes.data,
        len(inputs),
        inputs.shape[1],
        len(weights),
        threads,
        wide,
    )
    compute = library.function("symphony_product", POINTER(_Product), c_int32, result=c_int32)
    if compute(byref(given), inputs.itemsize):
        raise MemoryError("no memory for a product")
    return out


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
