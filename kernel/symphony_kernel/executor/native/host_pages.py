"""Host pages in the native pool's layout: one page's layers follow each other."""

from ctypes import POINTER, byref, c_int64, c_ubyte, c_uint64, c_void_p

import numpy as np

from symphony_kernel.executor.base import Int32, Int64, KVArray, KVLayout
from symphony_kernel.executor.native.attention import AttentionShape, PagePool
from symphony_kernel.executor.native.library import Library
from symphony_kernel.protocol.limits import PAGE_TOKENS


class NativePages:
    """The pages of a native pool (see `base.Pages`).

    Except `host_page`, not safe for two threads at once, nor during a step.
    """

    def __init__(self, library: Library, pool: PagePool) -> None:
        shape = pool.shape
        self._pool = pool
        self.copy, self.poison = pool.copy, pool.poison
        dtype = "bfloat16" if shape.element_bytes == 2 else "float32"
        self.layout = KVLayout(len(shape.windows), shape.kv_heads, shape.head_dim, dtype)
        given, numbers = POINTER(AttentionShape), c_void_p
        move = given, c_void_p, numbers, numbers, c_int64, c_void_p
        self._save = library.function("symphony_pool_save", *move)
        self._load = library.function("symphony_pool_load", *move)
        self._allocate = library.function("symphony_pool_allocate", c_uint64, result=c_void_p)
        self._free = library.function("symphony_pool_free", c_void_p, c_uint64)
        self._page_bytes = pool.bytes // shape.pages
        self._host = self._host_bytes = self._slots = 0

    def close(self) -> None:
        if self._host:
            self._free(self._host, self._host_bytes)
            self._host = 0

    def open_host(self, pages: int) -> None:
        """Reserve host memory; the system allocates it as it is touched."""
        if self._host:
            assert pages == self._slots, "host memory has another size already"
            return
        self._slots, self._host_bytes = pages, pages * self._page_bytes
        self._host = self._allocate(self._host_bytes)
        if not self._host:
            raise MemoryError(f"no {self._host_bytes} bytes for pages in host memory")

    def host_page(self, slot: int) -> memoryview:
        assert 0 <= slot < self._slots
        at = self._host + slot * self._page_bytes
        return memoryview((c_ubyte * self._page_bytes).from_address(at)).cast("B")

    def save(self, frames: Int32, slots: Int32) -> None:
        self._move(self._save, frames, slots)

    def load(self, slots: Int32, frames: Int32) -> None:
        self._move(self._load, frames, slots)

    def settle(self) -> float:
        return 0.0

    def read_frames(self, frames: Int32) -> KVArray:
        return _read(self._pool, self.layout, frames)

    def write_frames(self, frames: Int32, values: KVArray) -> None:
        _write(self._pool, self.layout, frames, values)

    def read_host(self, slots: Int32) -> KVArray:
        pages = [_read(self._alone(slot), self.layout, _FIRST) for slot in slots.tolist()]
        return np.concatenate(pages, axis=2) if pages else _read(self._pool, self.layout, slots)

    def write_host(self, slots: Int32, values: KVArray) -> None:
        for index, slot in enumerate(slots.tolist()):
            _write(self._alone(slot), self.layout, _FIRST, values[:, :, index : index + 1])

    def _move(self, move: "object", frames: Int32, slots: Int32) -> None:
        frames, slots = np.ascontiguousarray(frames), np.ascontiguousarray(slots)
        assert callable(move)
        assert not len(slots) or 0 <= slots.min() <= slots.max() < self._slots
        assert not len(frames) or 0 <= frames.min() <= frames.max() < self._pool.shape.pages
        pool = byref(self._pool.structure), self._pool.address
        move(*pool, frames.ctypes.data, slots.ctypes.data, len(frames), self._host)

    def _alone(self, slot: int) -> PagePool:
        """Return a host slot as a pool of one page."""
        assert 0 <= slot < self._slots
        return self._pool.of_one_page(self._host + slot * self._page_bytes)


_FIRST: Int32 = np.zeros(1, np.int32)


def _slots(pages: Int32) -> Int64:
    slots: Int64 = pages.astype(np.int64)[:, None] * PAGE_TOKENS + np.arange(PAGE_TOKENS)
    return slots.reshape(-1)


def _read(pool: PagePool, layout: KVLayout, pages: Int32) -> KVArray:
    values = np.empty(layout.shape(len(pages)), layout.numpy)
    for layer in range(layout.layers):
        plain = pool.read(layer, _slots(pages))
        apart = plain.reshape(len(pages), PAGE_TOKENS, 2, layout.kv_heads, layout.head_dim)
        values[layer] = apart.transpose(2, 0, 1, 3, 4)
    return values


def _write(pool: PagePool, layout: KVLayout, pages: Int32, values: KVArray) -> None:
    assert values.shape == layout.shape(len(pages))
    assert values.dtype == layout.numpy
    for layer in range(layout.layers):
        apart = values[layer].transpose(1, 2, 0, 3, 4)
        plain = apart.reshape(-1, 2, layout.kv_heads, layout.head_dim)
        pool.write(layer, _slots(pages), plain)
