# ruff: noqa: SLF001 - errors and traps of wasmtime are made by its private functions
"""Fibers: guests as coroutines of one thread.

The life of a call: the guest calls an import. The callback runs on the guest's own small stack,
copies the arguments, and returns. The continuation is not ready, so the fiber suspends and
`Fiber.poll` returns CALLED. The worker does the work on its own stack, and may read and write
linear memory meanwhile. `Fiber.resume` sets the result and makes the continuation ready. The next
`poll` continues after the call. A poll that returns without a call was preempted by the epoch.

`hostcalls.c` does that; `Fiber` adds what is not needed for every call.

Three rules:
- A callback must never raise: an unset continuation aborts the process. It does nothing else.
- While a future is alive, only the callback calls into the store. Three exceptions: reading the
  memory size of a suspended guest, setting its memory bound, and setting the epoch's deadline.
- Everything that a future points at stays referenced until the future is deleted.
"""

import ctypes
from collections.abc import Generator, Mapping
from ctypes import CFUNCTYPE, c_uint64, c_void_p
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, NoReturn

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
from symphony_runtime.engine import bindings as c
from symphony_runtime.engine.epoch_ticker import Board, Ticker
from symphony_runtime.engine.settings import ENGINE_SETTINGS, unseal

try:
    from symphony_runtime.engine import _hostcalls
except ImportError as error:
    raise ImportError(
        "symphony_runtime.engine._hostcalls is not built: run `make install`, which needs a C "
        "compiler and Python's headers"
    ) from error

PREEMPTED, CALLED, ENDED = _hostcalls.PREEMPTED, _hostcalls.CALLED, _hostcalls.ENDED

_NO_FINALIZER = ctypes.cast(0, CFUNCTYPE(None, c_void_p))
# The engine's functions that `hostcalls.c` calls, in its order.
_ENGINE_FUNCTIONS = (
    "wasmtime_call_future_poll",
    "wasmtime_call_future_delete",
    "wasmtime_context_set_epoch_deadline",
    "wasmtime_memory_data_size",
    "wasmtime_memory_data",
    "wasmtime_caller_export_get",
)

TRAP_REASONS: dict[TrapCode, str] = {
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
_TRAP_FRAMES_MAX = 3  # functions in an end's `reason`
_LIBRARY = "~lib/"  # AssemblyScript's prefix for functions that are not the program's own
_TRAP_NAME_MAX = 200  # characters of each


def layout() -> tuple[int, ...]:
    """Return the sizes and offsets in bytes that `hostcalls.c` must have."""
    fields: Any = Board  # mypy does not know the offsets of a structure's fields
    board = fields.since.offset, fields.epoch.offset, fields.armed.offset, ctypes.sizeof(Board)
    return c.VAL_BYTES, c.VAL_OF, c.BUFFER_BYTES, c.MEMORY, c.EXTERN_OF, *board


if _hostcalls.layout != layout():
    raise ImportError(
        f"symphony_runtime.engine._hostcalls is outdated: its layout is {_hostcalls.layout}, "
        f"not {layout()}; run `make install`"
    )


class HostFault(Exception):  # noqa: N818 - the name says whose fault it is
    """A failure of the engine, not of the guest (no memory for a stack, ...)."""


class EndKind(Enum):
    """How a guest ended by itself."""

    RETURNED = "returned"
    TRAPPED = "trapped"
    REFUSED = "refused"  # not instantiated: it exceeds its limits
    FAULT = "fault"  # a failure of the engine


@dataclass(frozen=True, slots=True)
class End:
    """A guest's end. `code`: the entry's result (0 for `_start`)."""

    kind: EndKind
    code: int = 0
    reason: str = ""  # what went wrong
    where: str = ""  # of a trap: the functions that it came from


@dataclass(eq=False, slots=True)
class Program:
    """A loaded artefact; `entries` maps each entry's name to its number of results."""

    module: Module
    pre: "ctypes._Pointer[Any]"
    entries: dict[str, int]
    initialize: bool
    table_bytes: int = 0  # the most that an instance's tables can take

    @property
    def default_entry(self) -> str:
        return "_start" if "_start" in self.entries else "lip_main"


def new_engine() -> Engine:
    config = Config()
    for name, value in ENGINE_SETTINGS.items():
        getattr(ffi, f"wasmtime_config_{name}_set")(config.ptr(), value)
    return Engine(config)


def efault() -> NoReturn:
    """Raise EFAULT: a guest's pointer is outside its memory."""
    raise SyscallError(Errno.EFAULT)


class FiberHost:
    """An engine, the functions that guests import, and the epoch's ticker.

    Not thread-safe: one thread makes, polls and closes all fibers.
    """

    def __init__(self, imports: Mapping[tuple[str, str], Signature]) -> None:
        """Offer functions by (module, name); `Fiber.call` is the index of the called one."""
        self._engine = new_engine()
        self._linker = Linker(self._engine)
        self.engine_address = ctypes.cast(self._engine.ptr(), c_void_p).value
        self.ticker = Ticker(partial(c.increment_epoch, self.engine_address))
        signatures = imports.values()
        assert all(len(each.params) <= _hostcalls.ARGUMENTS_MAX for each in signatures)
        assert all(len(each.results) <= 1 for each in signatures)
        functions = tuple(c.address_of(name) for name in _ENGINE_FUNCTIONS)
        self.hostcalls = _hostcalls.HostCalls(
            functions, self.ticker.board, len(imports), self.ticker.arm, efault
        )
        for index, ((module, name), signature) in enumerate(imports.items()):
            self._define(index, module.encode(), name.encode(), signature)

    def load(self, artefact: bytes) -> Program:
        """Load an artefact of this server's compiler; its code is not verified.

        Raises HostFault: it is for another engine, or an import is missing.
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
        entries = {n: len(t.results) for n, t in functions.items() if is_entry(n, t)}
        return Program(module, pre, entries, "_initialize" in functions, table_bytes)

    def unload(self, program: Program) -> None:
        """Free a program; all its fibers must be closed."""
        ffi.wasmtime_instance_pre_delete(program.pre)
        program.module.close()

    def close(self) -> None:
        """Stop the ticker; all fibers must be closed."""
        self.ticker.close()

    # -- Imports -------------------------------------------------------------------------------
    def _define(self, index: int, module: bytes, name: bytes, signature: Signature) -> None:
        types = {"i32": ValType.i32, "i64": ValType.i64}
        kind = FuncType(
            [types[p]() for p in signature.params], [types[r]() for r in signature.results]
        )
        failed = ffi.wasmtime_linker_define_async_func(
            self._linker.ptr(),
            ctypes.create_string_buffer(module, len(module)),
            len(module),
            ctypes.create_string_buffer(name, len(name)),
            len(name),
            kind.ptr(),
            ctypes.cast(self.hostcalls.callback_address, ffi.wasmtime_func_async_callback_t),
            self.hostcalls.import_address(index),
            _NO_FINALIZER,
        )
        if failed:
            raise HostFault(str(WasmtimeError._from_ptr(failed)))


class Fiber(_hostcalls.Guest):
    """One guest, suspended before its first instruction until `poll`.

    `end` is set when it has ended; `bound` is the bytes that its memory may grow to.
    """

    __slots__ = (
        "_entry", "_host", "_phases", "_store", "_table_elements", "bound", "end", "program",
    )  # fmt: skip

    end: End | None
    bound: int

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
            HostFault: there is no memory for its stack.
        """
        super().__init__(host.hostcalls)
        self.program, self._entry = program, (entry, program.entries[entry])
        self._host = host
        self._phases = self._next_phases()
        self.end = None
        self._store = c.store_new(host.engine_address, None, None)
        self.context = c.store_context(self._store)
        self._table_elements = table_elements_max
        self.limit_memory(memory_bytes_max)
        c.yield_on_epoch(self.context, 1)
        next(self._phases)

    def on_future_end(self) -> bool:
        """Start the next phase, or set `end`; return whether the guest has ended."""
        self.end = self._fault()
        if self.end is None:
            self.end = next(self._phases)
        return self.end is not None

    def trap_after_call(self) -> str:
        """Return where a pending call that never returns was made, such as AssemblyScript's abort.

        The guest continues to the trap behind the call, and is of no use afterwards.
        """
        self.resume_void()
        if self.poll() == ENDED and self.end is not None:
            return self.end.where
        return ""

    def limit_memory(self, bytes_max: int) -> None:
        """Bound the growth of its memory; a memory that is larger already keeps its size."""
        self.bound = bytes_max
        c.store_limiter(self._store, bytes_max, self._table_elements, 1, TABLES_MAX, 1)

    def close(self) -> int:
        """Free everything in any state, and return the memory's size in bytes."""
        if self.future:
            c.future_delete(self.future)
            self.future = 0
        if self._store:
            self.measure()
            self._phases.close()
            c.store_delete(self._store)
            self._store = 0
        size = self.size
        self.detach()
        return size

    def measure(self) -> int:
        """Return the memory's size in bytes (0 if there is none); no poll may run."""
        if self.base or self._find_exported_memory():
            self.size = c.memory_size(self.context, self._memory_address)
        return self.size

    # -- Inside --------------------------------------------------------------------------------
    def _find_exported_memory(self) -> bool:
        at = self.buffer_address
        if not self._words()[c.INSTANCE // 8]:  # it was never instantiated
            return False
        return bool(c.export_get(self.context, at + c.INSTANCE, c.MEMORY_NAME_AT, 6, at + c.MEMORY))

    @property
    def _memory_address(self) -> int:
        return self.buffer_address + c.MEMORY + c.EXTERN_OF

    def _words(self) -> "ctypes.Array[c_uint64]":
        return (c_uint64 * (c.BUFFER_BYTES // 8)).from_address(self.buffer_address)

    def _next_phases(self) -> Generator[End | None, None, None]:
        """Start the next future at each `next`; the previous one must have ended."""
        at = self.buffer_address
        pre = ctypes.cast(self.program.pre, c_void_p).value
        ends = at + c.TRAP, at + c.ERROR
        self.future = c.instantiate(pre, self.context, at + c.INSTANCE, *ends)
        yield None
        if not self.base and self._find_exported_memory():
            self.base = c.memory_data(self.context, self._memory_address) or 0
        if self.program.initialize:
            self._call("_initialize", 0)
            yield None
        name, results = self._entry
        self._call(name, results)
        yield None
        code = ctypes.c_int32.from_address(at + c.RESULT + c.VAL_OF).value if results else 0
        yield End(EndKind.RETURNED, code)

    def _call(self, name: str, results: int) -> None:
        at, encoded = self.buffer_address, name.encode()
        found = c.export_get(self.context, at + c.INSTANCE, encoded, len(encoded), at + c.FUNCTION)
        if not found:
            raise KernelBug(f"the export {name} was there when the program was loaded")
        self.future = c.call_async(
            self.context, at + c.FUNCTION + c.EXTERN_OF, None, 0, at + c.RESULT, results,
            at + c.TRAP, at + c.ERROR,
        )  # fmt: skip

    def _fault(self) -> End | None:
        """Return the error of the future that has just ended, if any."""
        words = self._words()
        trap_at, error_at = words[c.TRAP // 8], words[c.ERROR // 8]
        if trap_at:
            words[c.TRAP // 8] = 0
            return _trapped(trap_at)
        if error_at:
            words[c.ERROR // 8] = 0
            pointer = ctypes.cast(error_at, ctypes.POINTER(ffi.wasmtime_error_t))
            return _refused(str(WasmtimeError._from_ptr(pointer)))
        return None


def _trapped(trap_at: int) -> End:
    trap = Trap._from_ptr(ctypes.cast(trap_at, ctypes.POINTER(ffi.wasm_trap_t)))
    code = trap.trap_code
    reason = TRAP_REASONS.get(code, "") if code is not None else ""
    if not reason:
        reason = str(code.name if code else trap.message.splitlines()[0]).lower().replace("_", " ")
    where = _where(trap)
    return End(EndKind.TRAPPED, reason=f"{reason} (in {where})" if where else reason, where=where)


def _where(trap: Trap) -> str:
    """Return the innermost named functions of a trap, those of libraries only without others."""
    named = [frame.func_name for frame in trap.frames if frame.func_name]
    own = [name for name in named if not name.startswith(_LIBRARY)]
    return ", called by ".join(_readable(name) for name in (own or named)[:_TRAP_FRAMES_MAX])


def _readable(name: str) -> str:
    """Return a function's name, cut and printable: a guest chooses it freely."""
    cut = name[:_TRAP_NAME_MAX]
    return "".join(c if c.isprintable() else "?" for c in cut) + ("..." if cut != name else "")


def _refused(message: str) -> End:
    reason = " ".join(message.split())
    return End(EndKind.REFUSED if "limit" in reason else EndKind.FAULT, reason=reason)


def is_entry(name: str, kind: FuncType) -> bool:
    """Return whether a run or a spawned child may start at this export."""
    if len(kind.params):
        return False
    results = [str(result) for result in kind.results]
    return results == ["i32"] or (name == "_start" and not results)
