"""wasmtime's C functions that fibers use, bound with plain integers as pointers.

wasmtime-py has no public async API. Its module `wasmtime._ffi` binds the C API's async calls under
names that may change with each release. So the version is pinned exactly, and
tests/runtime/engine/test_fiber.py covers what the worker relies on.
"""

import ctypes
from collections.abc import Callable
from ctypes import CFUNCTYPE, PYFUNCTYPE, c_bool, c_size_t, c_uint64, c_void_p
from typing import Any

from wasmtime import _ffi as ffi

# Offsets in bytes in the block that a fiber's futures point into.
INSTANCE, TRAP, ERROR, RESULT, MEMORY, FUNCTION, BUFFER_BYTES = 0, 16, 24, 32, 64, 96, 128
EXTERN_OF: int = ffi.wasmtime_extern_t.of.offset
VAL_BYTES = ctypes.sizeof(ffi.wasmtime_val_t)
VAL_OF: int = ffi.wasmtime_val_t.of.offset

assert ctypes.sizeof(ffi.wasmtime_instance_t) <= TRAP - INSTANCE
assert ctypes.sizeof(ffi.wasmtime_extern_t) <= FUNCTION - MEMORY
assert ctypes.sizeof(ffi.wasmtime_extern_t) <= BUFFER_BYTES - FUNCTION
assert VAL_BYTES <= MEMORY - RESULT
assert ctypes.sizeof(ffi.wasmtime_async_continuation_t) == 24


def address_of(name: str) -> int:
    return ctypes.cast(getattr(ffi.dll, name), c_void_p).value or 0


def bind(name: str, result: Any, *arguments: Any, release_gil: bool = False) -> Callable[..., Any]:
    """Bind a C function with integers as pointers: much cheaper than `_ffi`'s."""
    prototype = CFUNCTYPE if release_gil else PYFUNCTYPE
    return prototype(result, *arguments)(address_of(name))


store_new = bind("wasmtime_store_new", c_void_p, c_void_p, c_void_p, c_void_p)
store_context = bind("wasmtime_store_context", c_void_p, c_void_p)
store_limiter = bind("wasmtime_store_limiter", None, c_void_p, *[ctypes.c_int64] * 5)
store_delete = bind("wasmtime_store_delete", None, c_void_p, release_gil=True)
# Its header declares an error as result, but it returns nothing: the value must not be read.
yield_on_epoch = bind(
    "wasmtime_context_epoch_deadline_async_yield_and_update", None, c_void_p, c_uint64
)
instantiate = bind("wasmtime_instance_pre_instantiate_async", c_void_p, *[c_void_p] * 5)
export_get = bind(
    "wasmtime_instance_export_get", c_bool, c_void_p, c_void_p, c_void_p, c_size_t, c_void_p
)
call_async = bind(
    "wasmtime_func_call_async", c_void_p, c_void_p, c_void_p, c_void_p, c_size_t, c_void_p,
    c_size_t, c_void_p, c_void_p,
)  # fmt: skip
memory_data = bind("wasmtime_memory_data", c_void_p, c_void_p, c_void_p)
memory_size = bind("wasmtime_memory_data_size", c_size_t, c_void_p, c_void_p)
future_delete = bind("wasmtime_call_future_delete", None, c_void_p, release_gil=True)
increment_epoch = bind("wasmtime_engine_increment_epoch", None, c_void_p)

MEMORY_NAME = ctypes.create_string_buffer(b"memory", 6)
MEMORY_NAME_AT = ctypes.addressof(MEMORY_NAME)
