"""The page pool in its native layout, and a step's rows (see attention.h)."""

from copy import copy
from ctypes import (
    POINTER,
    Structure,
    byref,
    c_float,
    c_int32,
    c_int64,
    c_uint64,
    c_void_p,
)
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from symphony_kernel.executor.base import Int32, Int64
from symphony_kernel.executor.native.library import Library

Array = npt.NDArray[np.generic]
UInt8 = npt.NDArray[np.uint8]


class AttentionShape(Structure):
    """`AttentionShape` of attention.h."""

    _fields_ = (
        ("layers", c_int32),
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("element_bytes", c_int32),
        ("threads", c_int32),
        ("wide", c_int32),
        ("pages", c_int64),
        ("windows", c_void_p),
        ("norm_epsilon", c_float),
    )


class StepRows(Structure):
    """`StepRows` of attention.h."""

    _fields_ = (
        ("rows", c_int32),
        ("tokens", c_int32),
        ("offsets", c_void_p),
        ("starts", c_void_p),
        ("table_offsets", c_void_p),
        ("tables", c_void_p),
        ("positions", c_void_p),
        ("parents", c_void_p),
        ("trees", c_void_p),
    )


@dataclass(frozen=True, slots=True)
class PoolShape:
    """What attention needs to know of a model; `windows` has one a layer, None: all."""

    heads: int
    kv_heads: int
    head_dim: int
    element_bytes: int  # 2: bfloat16, 4: float32
    pages: int
    windows: tuple[int | None, ...]
    norm_epsilon: float = 0.0
    threads: int = 1
    wide: bool = False  # bfloat16 is multiplied as float32


@dataclass(slots=True)
class FlatRows:
    """A step's rows, flat (see `StepRows` in attention.h for what each array is)."""

    offsets: Int32  # [rows + 1]
    starts: Int32  # [rows]
    table_offsets: Int32  # [rows + 1]
    tables: Int32
    positions: Int32  # [tokens]
    parents: Int32 | None = None  # [tokens]
    trees: UInt8 | None = None  # [rows]

    def structure(self) -> StepRows:
        """Return the structure for C; it does not keep these arrays alive."""
        return StepRows(
            len(self.starts),
            len(self.positions),
            self.offsets.ctypes.data,
            self.starts.ctypes.data,
            self.table_offsets.ctypes.data,
            self.tables.ctypes.data,
            self.positions.ctypes.data,
            None if self.parents is None else self.parents.ctypes.data,
            None if self.trees is None else self.trees.ctypes.data,
        )


class PagePool:
    """K and V of all layers, in the layout that the native kernels read.

    Not safe for two threads at once, nor during a step.
    """

    def __init__(self, library: Library, shape: PoolShape) -> None:
        self.shape = shape
        self._windows = np.array([window or 0 for window in shape.windows], np.int32)
        self.structure = AttentionShape(
            len(shape.windows),
            shape.heads,
            shape.kv_heads,
            shape.head_dim,
            shape.element_bytes,
            shape.threads,
            shape.wide,
            shape.pages,
            self._windows.ctypes.data,
            shape.norm_epsilon,
        )
        given, slots = POINTER(AttentionShape), c_void_p
        self._free = library.function("symphony_pool_free", c_void_p, c_uint64)
        self._copy = library.function(
            "symphony_pool_copy", given, c_void_p, slots, slots, c_int64, result=c_int32
        )
        self._poison = library.function("symphony_pool_poison", given, c_void_p, c_void_p, c_int64)
        move = (given, c_void_p, c_int32, slots, c_int64, c_void_p)
        self._read = library.function("symphony_pool_read", *move)
        self._write = library.function("symphony_pool_write", *move)
        size = library.function("symphony_pool_bytes", given, result=c_uint64)
        self.bytes = size(byref(self.structure))
        allocate = library.function("symphony_pool_allocate", c_uint64, result=c_void_p)
        self.address = allocate(self.bytes)
        if not self.address:
            raise MemoryError(f"no {self.bytes} bytes for the page pool")

    def of_one_page(self, address: int) -> "PagePool":
        """Return a pool that is one page of this pool's format, at `address`.

        It owns nothing: do not close it, nor use it longer than the memory at `address`.
        """
        pool = copy(self)
        pool.structure = AttentionShape.from_buffer_copy(self.structure)
        pool.structure.pages = 1
        pool.address = address
        return pool

    def close(self) -> None:
        if self.address:
            self._free(self.address, self.bytes)
            self.address = 0

    def copy(self, group: Int64) -> None:
        """Copy slots in all layers: [2, c] sources and destinations, all reads first."""
        pairs = np.ascontiguousarray(group, np.int64)
        source, destination = pairs.ctypes.data, pairs.ctypes.data + pairs.strides[0]
        if self._copy(byref(self.structure), self.address, source, destination, pairs.shape[1]):
            raise MemoryError(f"no memory to copy {pairs.shape[1]} slots")

    def poison(self, frames: Int32) -> None:
        frames = np.ascontiguousarray(frames, np.int32)
        self._poison(byref(self.structure), self.address, frames.ctypes.data, len(frames))

    def read(self, layer: int, slots: Int64) -> Array:
        """Return [n, 2, kv_heads, head_dim] of a layer's slots, bfloat16 as uint16 bits."""
        slots = np.ascontiguousarray(slots, np.int64)
        plain = np.empty(self._plain_shape(len(slots)), self._plain_type)
        self._read(
            byref(self.structure), self.address, layer, slots.ctypes.data, len(slots),
            plain.ctypes.data,
        )  # fmt: skip
        return plain

    def write(self, layer: int, slots: Int64, plain: Array) -> None:
        """Write values of `read`'s format into a layer's slots."""
        slots = np.ascontiguousarray(slots, np.int64)
        assert plain.shape == self._plain_shape(len(slots))
        assert plain.dtype == self._plain_type
        plain = np.ascontiguousarray(plain)
        self._write(
            byref(self.structure), self.address, layer, slots.ctypes.data, len(slots),
            plain.ctypes.data,
        )  # fmt: skip

    def _plain_shape(self, slots: int) -> tuple[int, int, int, int]:
        return (slots, 2, self.shape.kv_heads, self.shape.head_dim)

    @property
    def _plain_type(self) -> "np.dtype[np.generic]":
        return np.dtype(np.uint16 if self.shape.element_bytes == 2 else np.float32)
