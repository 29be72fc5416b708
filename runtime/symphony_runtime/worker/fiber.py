# ruff: noqa: SLF001 - the one file on private bindings
"""Fibers: guests as coroutines of one thread. The one file on wasmtime's private C bindings.

wasmtime-py has no public async API; the C API's async calls are bound in `wasmtime._ffi`, whose
names may change with each release (hence the exact pin, and tests/runtime/worker/test_fiber.py).

The life of a call: the guest calls an import; `FiberHost._on_call` runs on the guest's own small
stack, copies the arguments, and returns; the continuation is not ready, so the fiber suspends and
`Fiber.poll` returns CALLED. The loop does the work on its own stack, may read and write linear
memory meanwhile, and `Fiber.resume` gives the result and makes the continuation ready; the next
`poll` goes on behind the call. A poll that returns without a call was preempted by the epoch.

Rules that the experiment behind this file taught:
- A callback must never raise: an unset continuation aborts the process. It does nothing else.
- While a future is alive nothing but the callback calls into the store, but for three words of it:
  the size of a suspended guest's memory is read, its bound and the epoch's deadline are set.
- A call's arguments and results are one block of values, at the same address again and again, as is
  the continuation: Python looks at them through windows that are kept, not by a function's call.
- Everything a future points at stays referenced until the future is deleted.
"""

import ctypes
import struct
import time
from collections.abc import Callable, Generator, Sequence
from ctypes import CFUNCTYPE, PYFUNCTYPE, c_bool, c_size_t, c_uint64, c_void_p
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

from symphony_kernel.protocol.errno import Errno, KernelBug, SyscallError
from symphony_kernel.protocol.limits import TABLE_ELEMENTS_MAX, TABLES_MAX
from wasmtime import (
    Config,
    Engine,
    FuncType,
    Linker,
    Module,
    Trap,
    TrapCode,
    ValType,
    WasmtimeError,
)
from wasmtime import _ffi as ffi

from symphony_runtime.abi import Signature
from symphony_runtime.worker.artefact import unseal
from symphony_runtime.worker.sandbox import ENGINE_SETTINGS
from symphony_runtime.worker.ticker import Ticker

PREEMPTED, CALLED, ENDED = 0, 1, 2  # what `Fiber.poll` returns

_NO_CALL = -1

# The buffer that a fiber's futures point into: [name, bytes], at fixed offsets.
_INSTANCE, _TRAP, _ERROR, _RESULT = 0, 16, 24, 32
_MEMORY, _FUNCTION, _READY = 64, 96, 128
_BUFFER_BYTES = 136
_EXTERN_OF = ffi.wasmtime_extern_t.of.offset
_VAL_BYTES = ctypes.sizeof(ffi.wasmtime_val_t)
_VAL_OF = ffi.wasmtime_val_t.of.offset

assert ctypes.sizeof(ffi.wasmtime_instance_t) <= _TRAP - _INSTANCE
assert ctypes.sizeof(ffi.wasmtime_extern_t) <= _FUNCTION - _MEMORY
assert _VAL_BYTES <= _MEMORY - _RESULT
assert ctypes.sizeof(ffi.wasmtime_async_continuation_t) == 24

_put_value = struct.Struct("<Qq").pack_into  # kind (i32 0, i64 1), value sign-extended
_read_i32 = ctypes.c_int32.from_address
_now = time.perf_counter
# Memory as Python sees it: to look through a window costs a third of a C function's call.
_view = PYFUNCTYPE(ctypes.py_object, c_void_p, ctypes.c_ssize_t, ctypes.c_int)(
    ctypes.cast(ctypes.pythonapi.PyMemoryView_FromMemory, c_void_p).value or 0
)
_WRITABLE = 0x200  # PyBUF_WRITE
_NOTHING = memoryview(bytearray())
_WINDOW_BYTES = 512  # more than all arguments and results of a call take
_WINDOWS_MAX = 8  # of a fiber: calls come with the same few addresses again and again
_put_continuation = struct.Struct("24s").pack_into


def _bind(name: str, result: Any, *arguments: Any, release_gil: bool = False) -> Callable[..., Any]:
    """Bind a C function with plain integers as pointers: several times cheaper than `_ffi`'s.

    Without `arguments` it takes what `_pointer` returns: nothing has to be converted.
    """
    address = ctypes.cast(getattr(ffi.dll, name), c_void_p).value
    prototype = CFUNCTYPE if release_gil else PYFUNCTYPE
    return prototype(result, *arguments)(address or 0)


def _pointer(address: int) -> Any:
    """Return an address as an argument of C functions that is made once for many calls."""
    return ctypes.byref(ctypes.c_char.from_address(address))


_store_new = _bind("wasmtime_store_new", c_void_p, c_void_p, c_void_p, c_void_p)
_store_context = _bind("wasmtime_store_context", c_void_p, c_void_p)
_store_limiter = _bind("wasmtime_store_limiter", None, c_void_p, *[ctypes.c_int64] * 5)
_store_delete = _bind("wasmtime_store_delete", None, c_void_p, release_gil=True)
# Declared to return an error; it returns nothing, so a value must not be looked at.
_yield_on_epoch = _bind(
    "wasmtime_context_epoch_deadline_async_yield_and_update", None, c_void_p, c_uint64
)
_set_epoch_deadline = _bind("wasmtime_context_set_epoch_deadline", None, c_void_p, c_uint64)
_instantiate = _bind("wasmtime_instance_pre_instantiate_async", c_void_p, *[c_void_p] * 5)
_export_get = _bind(
    "wasmtime_instance_export_get", c_bool, c_void_p, c_void_p, c_void_p, c_size_t, c_void_p
)
_caller_export_get = _bind(
    "wasmtime_caller_export_get", c_bool, c_void_p, c_void_p, c_size_t, c_void_p
)
_call_async = _bind(
    "wasmtime_func_call_async", c_void_p, c_void_p, c_void_p, c_void_p, c_size_t, c_void_p,
    c_size_t, c_void_p, c_void_p,
)  # fmt: skip
_memory_data = _bind("wasmtime_memory_data", c_void_p, c_void_p, c_void_p)
_memory_data_size = _bind("wasmtime_memory_data_size", c_size_t)  # two pointers
_future_poll = _bind("wasmtime_call_future_poll", c_bool, release_gil=True)  # a pointer
_future_delete = _bind("wasmtime_call_future_delete", None, c_void_p, release_gil=True)
_increment_epoch = _bind("wasmtime_engine_increment_epoch", None, c_void_p)

_MEMORY_NAME = ctypes.create_string_buffer(b"memory", 6)
_MEMORY_NAME_AT = ctypes.addressof(_MEMORY_NAME)

# wasmtime_func_async_callback_t with integers for its pointers.
_ON_CALL = CFUNCTYPE(
    None, c_size_t, c_void_p, c_void_p, c_size_t, c_void_p, c_size_t, c_void_p, c_void_p
)
# The continuation asks "may I go on?" at every poll. strlen answers it without entering Python:
# of an empty string it is 0, false; of the string "\1" it is 1, true.
_STRLEN = ctypes.cast(ctypes.CDLL(None).strlen, c_void_p).value
_NO_FINALIZER = ctypes.cast(0, CFUNCTYPE(None, c_void_p))

TRAP_WORDS: dict[TrapCode, str] = {
    TrapCode.STACK_OVERFLOW: "stack overflow: the recursion is too deep",
    TrapCode.MEMORY_OUT_OF_BOUNDS: "out-of-bounds memory access",
    TrapCode.TABLE_OUT_OF_BOUNDS: "out-of-bounds table access",
    TrapCode.INDIRECT_CALL_TO_NULL: "indirect call to a null function",
    TrapCode.BAD_SIGNATURE: "indirect call to a function of another type",
    TrapCode.INTEGER_OVERFLOW: "integer overflow",
    TrapCode.INTEGER_DIVISION_BY_ZERO: "integer division by zero",
    TrapCode.BAD_CONVERSION_TO_INTEGER: "conversion of a float that is no integer",
    TrapCode.UNREACHABLE: "unreachable instruction",
    TrapCode.NULL_REFERENCE: "use of a null reference",
}
_TRAP_FRAMES_MAX = 3  # function names that a reason tells
_TRAP_NAME_MAX = 200  # characters of each


class HostFault(Exception):  # noqa: N818 - the name says whose fault it is
    """The engine could not do what it must be able to do (no memory for a stack, ...)."""


class EndKind(Enum):
    """How a guest came to its end by itself."""

    RETURNED = "returned"
    TRAPPED = "trapped"
    REFUSED = "refused"  # it could not be instantiated within its limits
    FAULT = "fault"  # of ours


@dataclass(frozen=True, slots=True)
class End:
    """`code` is the entry's result (0 for `_start`), `words` says what went wrong."""

    kind: EndKind
    code: int = 0
    words: str = ""


@dataclass(frozen=True, slots=True)
class Import:
    """A function that guests may import; its place in the list is `Fiber.call`."""

    module: str
    name: str
    signature: Signature


@dataclass(eq=False, slots=True)
class Program:
    """A loaded artefact: `entries` maps each possible entry to the number of its results."""

    module: Module
    pre: "ctypes._Pointer[Any]"
    entries: dict[str, int]
    initialize: bool
    table_bytes: int = 0  # that an instance's tables may take

    @property
    def default_entry(self) -> str:
        """`_start` where there is one, else `lip_main`."""
        return "_start" if "_start" in self.entries else "lip_main"


def new_engine() -> Engine:
    """Return an engine with the sandbox's settings."""
    config = Config()
    for name, value in ENGINE_SETTINGS.items():
        getattr(ffi, f"wasmtime_config_{name}_set")(config.ptr(), value)
    return Engine(config)


class FiberHost:
    """An engine, the functions guests import from it, and the thread that ticks its epoch.

    Not thread-safe: fibers are made, polled and closed by one thread.
    """

    def __init__(self, imports: Sequence[Import]) -> None:
        self._engine = new_engine()
        self._linker = Linker(self._engine)
        self._callback = _ON_CALL(self._on_call)
        # For each import: takes its arguments apart.
        self._unpack: list[Callable[[memoryview], tuple[int, ...]]] = []
        for index, item in enumerate(imports):
            self._define(index, item)
        self.polled: Fiber | None = None
        self.engine_at = _address(self._engine.ptr())
        self.ticker = Ticker(partial(_increment_epoch, self.engine_at))

    def load(self, artefact: bytes) -> Program:
        """Load an artefact that this server's compiler wrote; never any other bytes.

        Raises:
            HostFault: it is for another engine, or imports what is not there.
        """
        code, table_bytes = unseal(artefact)
        try:
            module = Module.deserialize(self._engine, code)
        except WasmtimeError as error:
            raise HostFault(f"an artefact does not load: {error}") from error
        pre = ctypes.POINTER(ffi.wasmtime_instance_pre_t)()
        failed = ffi.wasmtime_linker_instantiate_pre(
            self._linker.ptr(), module.ptr(), ctypes.byref(pre)
        )
        if failed:
            raise HostFault(f"a program does not link: {WasmtimeError._from_ptr(failed)}")
        functions = {e.name: e.type for e in module.exports if isinstance(e.type, FuncType)}
        entries = {n: len(t.results) for n, t in functions.items() if _is_entry(n, t)}
        return Program(module, pre, entries, "_initialize" in functions, table_bytes)

    def unload(self, program: Program) -> None:
        """Give a program back; its fibers must have been closed."""
        ffi.wasmtime_instance_pre_delete(program.pre)
        program.module.close()

    def close(self) -> None:
        """Stop the ticker; every fiber must have been closed."""
        self.ticker.close()

    # -- Imports -------------------------------------------------------------------------------
    def _define(self, index: int, item: Import) -> None:
        formats = {"i32": "I20x", "i64": "q16x"}
        layout = "<" + "".join(f"8x{formats[p]}" for p in item.signature.params)
        assert struct.calcsize(layout) + _VAL_BYTES <= _WINDOW_BYTES
        self._unpack.append(struct.Struct(layout).unpack_from)
        types = {"i32": ValType.i32, "i64": ValType.i64}
        kind = FuncType(
            [types[p]() for p in item.signature.params],
            [types[r]() for r in item.signature.results],
        )
        module, name = item.module.encode(), item.name.encode()
        failed = ffi.wasmtime_linker_define_async_func(
            self._linker.ptr(),
            ctypes.create_string_buffer(module, len(module)),
            len(module),
            ctypes.create_string_buffer(name, len(name)),
            len(name),
            kind.ptr(),
            ctypes.cast(self._callback, ffi.wasmtime_func_async_callback_t),
            index,
            _NO_FINALIZER,
        )
        if failed:
            raise HostFault(str(WasmtimeError._from_ptr(failed)))

    def _on_call(
        self, index: int, caller: int, args: int, _nargs: int, results: int, _nresults: int,
        _trap: int, continuation: int,
    ) -> None:  # fmt: skip
        """Run on the guest's stack: copy the arguments and suspend. It must not raise."""
        fiber = self.polled
        assert fiber is not None
        if not fiber.base:
            fiber.find_memory(caller)
        if fiber.base:  # else the module's start function runs, and it exports no memory yet
            fiber.size = _memory_data_size(*fiber.memory_pointers)
        windows = fiber.windows
        window = windows.get(args)
        if window is None:
            window = fiber.look_at(args)
        fiber.args = self._unpack[index](window)
        fiber.results = window
        fiber.results_from = results - args  # they lie in one block
        fiber.ready.value = 0
        fiber.call = index
        window = windows.get(continuation)
        if window is None:
            window = fiber.look_at(continuation)
        _put_continuation(window, 0, fiber.continuation)


class Fiber:
    """One guest: made suspended before its first instruction, driven by `poll` and `resume`."""

    __slots__ = (
        "_buffer", "_entry", "_future", "_host", "_memory", "_phases", "_polled", "_seen", "_store",
        "_table_elements", "_ticker", "args", "base", "bound", "buffer_at", "call", "context",
        "continuation", "end", "epoch", "memory_at", "memory_pointers", "program", "ready",
        "results", "results_from", "size", "windows",
    )  # fmt: skip

    def __init__(
        self,
        host: FiberHost,
        program: Program,
        entry: str,
        memory_bytes_max: int,
        table_elements_max: int = TABLE_ELEMENTS_MAX,
    ) -> None:
        """Prepare a guest to run from `entry`.

        Raises:
            KeyError: the program has no such entry.
            HostFault: there is no room for its stack.
        """
        self.program, self._entry = program, (entry, program.entries[entry])
        self._host, self._ticker = host, host.ticker
        self._phases = self._next_phases()
        self._buffer = (c_uint64 * (_BUFFER_BYTES // 8))()
        self.buffer_at: int = ctypes.addressof(self._buffer)
        self.memory_at = self.buffer_at + _MEMORY + int(_EXTERN_OF)
        self.ready = ctypes.c_uint8.from_address(self.buffer_at + _READY)
        self.continuation = struct.pack("<QQQ", _STRLEN or 0, self.buffer_at + _READY, 0)
        # What the last call left: its index in the host's imports, and its arguments, unsigned
        # where they are i32 and signed where they are i64.
        self.call = _NO_CALL
        self.args: tuple[int, ...] = ()
        self.results, self.results_from = _NOTHING, 0  # where its result goes
        self.windows: dict[int, memoryview] = {}  # by addresses
        self.base = self.size = 0
        self._memory, self._seen = _NOTHING, 0  # the first so many bytes of its memory
        self.end: End | None = None
        self._store: int = _store_new(host.engine_at, None, None)
        self.context: int = _store_context(self._store)
        self.memory_pointers = _pointer(self.context), _pointer(self.memory_at)
        self._table_elements = table_elements_max
        self.limit_memory(memory_bytes_max)
        _yield_on_epoch(self.context, 1)
        self.epoch = -1  # so that the first poll sets its deadline
        self._future: int | None = None
        self._polled: tuple[Any, ...] = ()  # the same, for `_future_poll`
        next(self._phases)

    def poll(self) -> int:
        """Run the guest until it makes a call, is preempted, or ends; it must be runnable.

        CALLED leaves `call` and `args`, and wants a `resume` before the next poll; ENDED leaves
        `end`.
        """
        host, ticker = self._host, self._ticker
        self.call = _NO_CALL
        if self.epoch != ticker.epoch:
            # Ticks that were for others: without this it would yield once for nothing.
            self.epoch = ticker.epoch
            _set_epoch_deadline(self.context, 1)
        while True:
            # The callback and the ticker must know who runs, and since when.
            host.polled = self
            ticker.since = _now()
            if not ticker.armed:
                ticker.arm()
            done = _future_poll(*self._polled)
            ticker.since = 0.0
            if not done:
                if self.call >= 0:
                    return CALLED
                if self.base:
                    self.size = _memory_data_size(*self.memory_pointers)
                return PREEMPTED
            _future_delete(self._future)
            self._future = None
            self.end = self._fault()
            if self.end is None:
                self.end = next(self._phases)
            if self.end is not None:
                return ENDED

    def limit_memory(self, bytes_max: int) -> None:
        """Let the memory grow to so many bytes (`bound`); it keeps what it has."""
        self.bound = bytes_max
        _store_limiter(self._store, bytes_max, self._table_elements, 1, TABLES_MAX, 1)

    def resume(self, result: int, wide: bool = False) -> None:
        """Give the pending call's result (an i64 where `wide`); the guest is runnable again."""
        _put_value(self.results, self.results_from, wide, result)
        self.ready.value = 1

    def resume_void(self) -> None:
        """End the pending call of a function without results."""
        self.ready.value = 1

    def close(self) -> int:
        """End the guest wherever it is and free all it has; return its memory's size in bytes."""
        if self._future is not None:
            _future_delete(self._future)
            self._future = None
        if self._store:
            self.measure()
            self._phases.close()
            _store_delete(self._store)
            self._store = self.context = self.base = 0
        size, self.size = self.size, 0
        self._memory, self._seen = _NOTHING, 0  # none of that is there any more
        self.results = _NOTHING
        self.windows.clear()
        return size

    def measure(self) -> int:
        """Return the size of the memory in bytes (0: there is none yet); no call may run."""
        if self.base or self._find_exported_memory():
            self.size = _memory_data_size(*self.memory_pointers)
        return self.size

    # -- Memory, while a call is pending -------------------------------------------------------
    def check(self, pointer: int, length: int) -> None:
        """EFAULT unless [pointer, pointer + length) lies in memory; both are unsigned."""
        if pointer + length > self.size:
            raise SyscallError(Errno.EFAULT)

    def read(self, pointer: int, length: int) -> bytes:
        """Return a copy of guest memory, or EFAULT."""
        end = pointer + length
        if end > self.size:
            raise SyscallError(Errno.EFAULT)
        if self._seen != self.size:
            self._see()
        return self._memory[pointer:end].tobytes()

    def write(self, pointer: int, data: bytes) -> None:
        """Copy `data` into guest memory, or EFAULT."""
        end = pointer + len(data)
        if end > self.size:
            raise SyscallError(Errno.EFAULT)
        if self._seen != self.size:
            self._see()
        self._memory[pointer:end] = data

    # -- Inside --------------------------------------------------------------------------------
    def _see(self) -> None:
        self._memory, self._seen = _view(self.base, self.size, _WRITABLE), self.size

    def look_at(self, address: int) -> memoryview:
        """Return a window on what a call points at, which is valid while that call is pending."""
        if len(self.windows) >= _WINDOWS_MAX:
            self.windows.clear()
        window: memoryview = _view(address, _WINDOW_BYTES, _WRITABLE)
        self.windows[address] = window
        return window

    def find_memory(self, caller: int) -> None:
        """Learn where linear memory lies; called on the guest's stack, so it must not raise.

        The memory never moves afterwards: its reservation covers its largest size.
        """
        if _caller_export_get(caller, _MEMORY_NAME_AT, 6, self.buffer_at + _MEMORY):
            self.base = _memory_data(self.context, self.memory_at) or 0

    def _find_exported_memory(self) -> bool:
        at = self.buffer_at
        if not self._buffer[_INSTANCE // 8]:  # it was never instantiated
            return False
        return bool(_export_get(self.context, at + _INSTANCE, _MEMORY_NAME_AT, 6, at + _MEMORY))

    def _next_phases(self) -> Generator[End | None, None, None]:
        """Start one future after the other; each `next` is due when the one before has ended."""
        at = self.buffer_at
        pre = ctypes.cast(self.program.pre, c_void_p).value
        self._begin(_instantiate(pre, self.context, at + _INSTANCE, at + _TRAP, at + _ERROR))
        yield None
        if not self.base and self._find_exported_memory():
            self.base = _memory_data(self.context, self.memory_at) or 0
        if self.program.initialize:
            self._call("_initialize", 0)
            yield None
        name, results = self._entry
        self._call(name, results)
        yield None
        code = _read_i32(at + _RESULT + _VAL_OF).value if results else 0
        yield End(EndKind.RETURNED, code)

    def _call(self, name: str, results: int) -> None:
        at, encoded = self.buffer_at, name.encode()
        found = _export_get(self.context, at + _INSTANCE, encoded, len(encoded), at + _FUNCTION)
        if not found:
            raise KernelBug(f"the export {name} was there when the program was loaded")
        future = _call_async(
            self.context, at + _FUNCTION + _EXTERN_OF, None, 0, at + _RESULT, results,
            at + _TRAP, at + _ERROR,
        )  # fmt: skip
        self._begin(future)

    def _begin(self, future: int) -> None:
        self._future, self._polled = future, (_pointer(future),)

    def _fault(self) -> End | None:
        """Return how the future that has just ended went wrong, if it did."""
        trap_at, error_at = self._buffer[_TRAP // 8], self._buffer[_ERROR // 8]
        if trap_at:
            self._buffer[_TRAP // 8] = 0
            return _trapped(trap_at)
        if error_at:
            self._buffer[_ERROR // 8] = 0
            pointer = ctypes.cast(error_at, ctypes.POINTER(ffi.wasmtime_error_t))
            return _refused(str(WasmtimeError._from_ptr(pointer)))
        return None


def _trapped(trap_at: int) -> End:
    trap = Trap._from_ptr(ctypes.cast(trap_at, ctypes.POINTER(ffi.wasm_trap_t)))
    code = trap.trap_code
    words = TRAP_WORDS.get(code, "") if code is not None else ""
    if not words:
        words = str(code.name if code else trap.message.splitlines()[0]).lower().replace("_", " ")
    names = [frame.func_name or "" for frame in trap.frames[:_TRAP_FRAMES_MAX]]
    where = ", called by ".join(_readable(name) for name in names if name)
    return End(EndKind.TRAPPED, words=f"{words} (in {where})" if where else words)


def _readable(name: str) -> str:
    """Return a name as a reason tells it: a program may give its functions any, of megabytes."""
    cut = name[:_TRAP_NAME_MAX]
    return "".join(c if c.isprintable() else "?" for c in cut) + ("..." if cut != name else "")


def _refused(message: str) -> End:
    words = " ".join(message.split())
    if "exceeds memory limits" in words or "exceeds table limits" in words or "limit" in words:
        return End(EndKind.REFUSED, words=words)
    return End(EndKind.FAULT, words=words)


def _is_entry(name: str, kind: FuncType) -> bool:
    if len(kind.params):
        return False
    results = [str(result) for result in kind.results]
    return results == ["i32"] or (name == "_start" and not results)


def _address(pointer: Any) -> int:
    return ctypes.cast(pointer, c_void_p).value or 0
