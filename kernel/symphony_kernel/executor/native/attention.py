"""What attention reads of a model, and a step's rows (see attention.h)."""

from ctypes import Structure, c_float, c_int32, c_int64, c_void_p
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from symphony_kernel.executor.base import Int32

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
