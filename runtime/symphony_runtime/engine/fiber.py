# ruff: noqa: SLF001 - errors and traps of wasmtime are made by its private functions
"""Fibers: guests as coroutines of one thread.

The life of a call: the guest calls an import; the desk's callback runs on the guest's own small
stack, copies the arguments, and returns; the continuation is not ready, so the fiber suspends and
`Fiber.poll` returns CALLED. The loop does the work on its own stack, may read and write linear
memory meanwhile, and `Fiber.resume` gives the result and makes the continuation ready; the next
`poll` goes on behind the call. A poll that returns without a call was preempted by the epoch.

Desk and seat, which do that, are C (`hostcalls/crossing.c`) where it is compiled, else Python
(`hostcalls/ctypes_calls`).

Rules that the experiment behind this file taught:
- A callback must never raise: an unset continuation aborts the process. It does nothing else.
- While a future is alive nothing but the callback calls into the store, but for three words of it:
  the size of a suspended guest's memory is read, its bound and the epoch's deadline are set.
- Everything a future points at stays referenced until the future is deleted.
"""

import ctypes
from collections.abc import Callable, Generator, Sequence
from ctypes import CFUNCTYPE, c_uint64, c_void_p
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from symphony_kernel.protocol.errno import KernelBug
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
from symphony_runtime.engine.artefact import unseal
from symphony_runtime.engine.epoch_ticker import Ticker
from symphony_runtime.engine.hostcalls.compiled_calls import CompiledHostCalls
from symphony_runtime.engine.hostcalls.ctypes_calls import PlainDesk, PlainSeat
from symphony_runtime.engine.settings import ENGINE_SETTINGS

if TYPE_CHECKING:
    _Seat = PlainSeat
else:

    class _Seat:
        """Which one it is, the class that a host makes says."""

        __slots__ = ()


_NO_FINALIZER = ctypes.cast(0, CFUNCTYPE(None, c_void_p))
_OF_A_FIBER = (
    "_entry", "_host", "_phases", "_store", "_table_elements", "bound", "end", "program",
)  # fmt: skip

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

    def __init__(
        self, imports: Sequence[Import], crossing: CompiledHostCalls | None = None
    ) -> None:
        """`crossing`: how calls cross, if it is compiled."""
        self._engine = new_engine()
        self._linker = Linker(self._engine)
        self.engine_at = _address(self._engine.ptr())
        self.ticker = Ticker(partial(c.increment_epoch, self.engine_at))
        signatures = [item.signature for item in imports]
        make: Callable[[Sequence[Signature], Ticker], Any]
        make = crossing.desk if crossing else PlainDesk
        self.desk = make(signatures, self.ticker)
        self.fiber_class: type[Fiber] = fiber_class(crossing)
        for index, item in enumerate(imports):
            self._define(index, item)

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
            ctypes.cast(self.desk.on_call, ffi.wasmtime_func_async_callback_t),
            self.desk.import_at(index),
            _NO_FINALIZER,
        )
        if failed:
            raise HostFault(str(WasmtimeError._from_ptr(failed)))


class Fiber(_Seat):
    """One guest: made suspended before its first instruction, driven by `poll` and `resume`.

    It is made as its host's `fiber_class`, on whatever seat calls cross there.
    """

    if not TYPE_CHECKING:
        __slots__ = ()  # whoever has a seat, too, has `_OF_A_FIBER`

    end: End | None
    bound: int

    def __new__(cls, host: FiberHost, *_: Any) -> "Fiber":
        """Make it on the seat that its host has."""
        if cls is Fiber:
            return host.fiber_class.__new__(host.fiber_class, host)
        return super().__new__(cls)

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
        super().__init__(host.desk)
        self.program, self._entry = program, (entry, program.entries[entry])
        self._host = host
        self._phases = self._next_phases()
        self.end = None
        self._store = c.store_new(host.engine_at, None, None)
        self.context = c.store_context(self._store)
        self._table_elements = table_elements_max
        self.limit_memory(memory_bytes_max)
        c.yield_on_epoch(self.context, 1)
        next(self._phases)

    def over(self) -> bool:
        """Say whether the guest has ended with its future, or goes on with another."""
        self.end = self._fault()
        if self.end is None:
            self.end = next(self._phases)
        return self.end is not None

    def limit_memory(self, bytes_max: int) -> None:
        """Let the memory grow to so many bytes (`bound`); it keeps what it has."""
        self.bound = bytes_max
        c.store_limiter(self._store, bytes_max, self._table_elements, 1, TABLES_MAX, 1)

    def close(self) -> int:
        """End the guest wherever it is and free all it has; return its memory's size in bytes."""
        if self.future:
            c.future_delete(self.future)
            self.future = 0
        if self._store:
            self.measure()
            self._phases.close()
            c.store_delete(self._store)
            self._store = 0
        size = self.size
        self.vacate()
        return size

    def measure(self) -> int:
        """Return the size of the memory in bytes (0: there is none yet); no call may run."""
        if self.base or self._find_exported_memory():
            self.size = c.memory_size(self.context, self._memory_at)
        return self.size

    # -- Inside --------------------------------------------------------------------------------
    def _find_exported_memory(self) -> bool:
        at = self.buffer_at
        if not self._words()[c.INSTANCE // 8]:  # it was never instantiated
            return False
        return bool(c.export_get(self.context, at + c.INSTANCE, c.MEMORY_NAME_AT, 6, at + c.MEMORY))

    @property
    def _memory_at(self) -> int:
        return self.buffer_at + c.MEMORY + c.EXTERN_OF

    def _words(self) -> "ctypes.Array[c_uint64]":
        return (c_uint64 * (c.BUFFER_BYTES // 8)).from_address(self.buffer_at)

    def _next_phases(self) -> Generator[End | None, None, None]:
        """Start one future after the other; each `next` is due when the one before has ended."""
        at = self.buffer_at
        pre = ctypes.cast(self.program.pre, c_void_p).value
        ends = at + c.TRAP, at + c.ERROR
        self.future = c.instantiate(pre, self.context, at + c.INSTANCE, *ends)
        yield None
        if not self.base and self._find_exported_memory():
            self.base = c.memory_data(self.context, self._memory_at) or 0
        if self.program.initialize:
            self._call("_initialize", 0)
            yield None
        name, results = self._entry
        self._call(name, results)
        yield None
        code = ctypes.c_int32.from_address(at + c.RESULT + c.VAL_OF).value if results else 0
        yield End(EndKind.RETURNED, code)

    def _call(self, name: str, results: int) -> None:
        at, encoded = self.buffer_at, name.encode()
        found = c.export_get(self.context, at + c.INSTANCE, encoded, len(encoded), at + c.FUNCTION)
        if not found:
            raise KernelBug(f"the export {name} was there when the program was loaded")
        self.future = c.call_async(
            self.context, at + c.FUNCTION + c.EXTERN_OF, None, 0, at + c.RESULT, results,
            at + c.TRAP, at + c.ERROR,
        )  # fmt: skip

    def _fault(self) -> End | None:
        """Return how the future that has just ended went wrong, if it did."""
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


class PlainFiber(Fiber, PlainSeat):
    """A fiber whose calls cross through ctypes."""

    __slots__ = _OF_A_FIBER


def fiber_class(crossing: CompiledHostCalls | None) -> type[Fiber]:
    """Return the class of fibers whose calls cross so."""
    if crossing is None:
        return PlainFiber
    bases = (Fiber, crossing.seat)
    return cast("type[Fiber]", type("CompiledFiber", bases, {"__slots__": _OF_A_FIBER}))


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
