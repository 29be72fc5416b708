"""The page pool in the layout that the native kernels read, and its pages in host memory."""

from copy import copy
from ctypes import (
    POINTER,
    Structure,
    byref,
    c_float,
    c_int32,
    c_int64,
    c_ubyte,
    c_uint64,
    c_void_p,
)  # fmt: skip
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np

from symphony_kernel.executor.base import Int32, Int64, KVArray, KVLayout
from symphony_kernel.executor.native.library import Function, Library
from symphony_kernel.protocol.limits import PAGE_TOKENS

_FIRST: Final[Int32] = np.zeros(1, np.int32)


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
        ("score_scale", c_float),
        ("score_cap", c_float),
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
    score_scale: float = 0.0  # of products of queries and keys; 0.0: one over the root of head_dim
    score_cap: float = 0.0  # scores become cap tanh(score / cap); 0.0: they stay


class NativePages:
    """K and V of all layers (see `base.Pages`). On the host a page's layers follow each other."""

    def __init__(self, library: Library, shape: PoolShape) -> None:
        self.shape = shape
        dtype = "bfloat16" if shape.element_bytes == 2 else "float32"
        self.layout = KVLayout(len(shape.windows), shape.kv_heads, shape.head_dim, dtype)
        self._windows = np.array([window or 0 for window in shape.windows], np.int32)
        more = {"layers": len(shape.windows), "windows": self._windows.ctypes.data}
        self.structure = AttentionShape(**(asdict(shape) | more))
        given, numbers = POINTER(AttentionShape), c_void_p
        self._allocate = library.function("symphony_pool_allocate", c_uint64, result=c_void_p)
        self._free = library.function("symphony_pool_free", c_void_p, c_uint64)
        self._copy = library.function(
            "symphony_pool_copy", given, c_void_p, numbers, numbers, c_int64, result=c_int32
        )
        self._poison = library.function("symphony_pool_poison", given, c_void_p, numbers, c_int64)
        plain = given, c_void_p, c_int32, numbers, c_int64, c_void_p
        self._read = library.function("symphony_pool_read", *plain)
        self._write = library.function("symphony_pool_write", *plain)
        move = given, c_void_p, numbers, numbers, c_int64, c_void_p
        self._save = library.function("symphony_pool_save", *move)
        self._load = library.function("symphony_pool_load", *move)
        self.bytes = library.function("symphony_pool_bytes", given, result=c_uint64)(
            byref(self.structure)
        )
        self._page_bytes = self.bytes // shape.pages
        self.address = self._allocate(self.bytes)
        if not self.address:
            raise MemoryError(f"no {self.bytes} bytes for the page pool")
        self._host = self._slots = 0

    def close(self) -> None:
        if self.address:
            self._free(self.address, self.bytes)
        if self._host:
            self._free(self._host, self._slots * self._page_bytes)
        self.address = self._host = 0

    def open_host(self, pages: int) -> None:
        """Reserve host memory; the system allocates it as it is touched."""
        if self._host:
            assert pages == self._slots, "host memory has another size already"
            return
        size = pages * self._page_bytes
        self._slots, self._host = pages, self._allocate(size)
        if not self._host:
            raise MemoryError(f"no {size} bytes for pages in host memory")

    def host_page(self, slot: int) -> memoryview:
        address = self._host_address(slot)
        return memoryview((c_ubyte * self._page_bytes).from_address(address)).cast("B")

    def save(self, frames: Int32, slots: Int32) -> None:
        self._move(self._save, frames, slots)

    def load(self, slots: Int32, frames: Int32) -> None:
        self._move(self._load, frames, slots)

    def settle(self) -> float:
        return 0.0

    def copy(self, group: Int64) -> None:
        pairs = np.ascontiguousarray(group, np.int64)
        source, destination = pairs.ctypes.data, pairs.ctypes.data + pairs.strides[0]
        if self._copy(byref(self.structure), self.address, source, destination, pairs.shape[1]):
            raise MemoryError(f"no memory to copy {pairs.shape[1]} slots")

    def poison(self, frames: Int32) -> None:
        frames = np.ascontiguousarray(frames, np.int32)
        self._poison(byref(self.structure), self.address, frames.ctypes.data, len(frames))

    def read_frames(self, frames: Int32) -> KVArray:
        layout = self.layout
        values = np.empty(layout.shape(len(frames)), layout.numpy)
        for layer in range(layout.layers):
            plain = self.read(layer, _slots(frames))
            apart = plain.reshape(len(frames), PAGE_TOKENS, *plain.shape[1:])
            values[layer] = apart.transpose(2, 0, 1, 3, 4)
        return values

    def write_frames(self, frames: Int32, values: KVArray) -> None:
        assert values.shape == self.layout.shape(len(frames))
        for layer in range(self.layout.layers):
            apart = values[layer].transpose(1, 2, 0, 3, 4)
            self.write(layer, _slots(frames), apart.reshape(-1, *apart.shape[2:]))

    def read_host(self, slots: Int32) -> KVArray:
        pages = [self._alone(slot).read_frames(_FIRST) for slot in slots.tolist()]
        return np.concatenate(pages, axis=2) if pages else self.read_frames(slots)

    def write_host(self, slots: Int32, values: KVArray) -> None:
        for index, slot in enumerate(slots.tolist()):
            self._alone(slot).write_frames(_FIRST, values[:, :, index : index + 1])

    def read(self, layer: int, slots: Int64) -> KVArray:
        """Return [n, 2, kv_heads, head_dim] of a layer's slots, bfloat16 as uint16 bits."""
        plain = np.empty(self._plain_shape(len(slots)), self.layout.numpy)
        self._move_plain(self._read, layer, slots, plain)
        return plain

    def write(self, layer: int, slots: Int64, plain: KVArray) -> None:
        """Write values of `read`'s format into a layer's slots."""
        assert plain.shape == self._plain_shape(len(slots))
        assert plain.dtype == self.layout.numpy
        self._move_plain(self._write, layer, slots, np.ascontiguousarray(plain))

    def _plain_shape(self, slots: int) -> tuple[int, int, int, int]:
        return (slots, 2, self.shape.kv_heads, self.shape.head_dim)

    def _move_plain(self, move: Function, layer: int, slots: Int64, plain: KVArray) -> None:
        slots = np.ascontiguousarray(slots, np.int64)
        pool = byref(self.structure), self.address
        move(*pool, layer, slots.ctypes.data, len(slots), plain.ctypes.data)

    def _move(self, move: Function, frames: Int32, slots: Int32) -> None:
        frames, slots = np.ascontiguousarray(frames), np.ascontiguousarray(slots)
        assert not len(slots) or 0 <= slots.min() <= slots.max() < self._slots
        assert not len(frames) or 0 <= frames.min() <= frames.max() < self.shape.pages
        pool = byref(self.structure), self.address
        move(*pool, frames.ctypes.data, slots.ctypes.data, len(frames), self._host)

    def _host_address(self, slot: int) -> int:
        assert 0 <= slot < self._slots
        return int(self._host + slot * self._page_bytes)

    def _alone(self, slot: int) -> "NativePages":
        """Return a host slot as a pool of one page; it owns nothing, so do not close it."""
        pages = copy(self)
        pages.structure = AttentionShape.from_buffer_copy(self.structure)
        pages.structure.pages = 1
        pages.address = self._host_address(slot)
        return pages


def _slots(pages: Int32) -> Int64:
    slots: Int64 = pages.astype(np.int64)[:, None] * PAGE_TOKENS + np.arange(PAGE_TOKENS)
    return slots.reshape(-1)
