"""How calls cross from a fiber to the worker through ctypes, where `crossing` is not compiled.

The same desk and seat as in `crossing/crossing.c`, several times as expensive: the callback is
Python, so the interpreter runs on each guest's own stack for a moment, and touches pages of it that
nothing else does. It must never raise: an unset continuation aborts the process.

A call's arguments and results are one block of values, at the same address again and again, as is
the continuation: Python looks at them through windows that are kept, not by a function's call.
"""

import ctypes
import struct
import time
from collections.abc import Callable, Sequence
from ctypes import CFUNCTYPE, PYFUNCTYPE, c_size_t, c_uint64, c_void_p
from typing import Any, NoReturn

from symphony_kernel.protocol.errno import Errno, KernelBug, SyscallError

from symphony_runtime.abi import Signature
from symphony_runtime.engine import bindings as c
from symphony_runtime.engine.epoch_ticker import Ticker

PREEMPTED, CALLED, ENDED = 0, 1, 2  # what `poll` returns
NO_CALL = -1

_put_value = struct.Struct("<Qq").pack_into  # kind (i32 0, i64 1), value sign-extended
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

# wasmtime_func_async_callback_t with integers for its pointers.
_ON_CALL = CFUNCTYPE(
    None, c_size_t, c_void_p, c_void_p, c_size_t, c_void_p, c_size_t, c_void_p, c_void_p
)
# The continuation asks "may I go on?" at every poll. strlen answers it without entering Python:
# of an empty string it is 0, false; of the string "\1" it is 1, true.
_STRLEN = ctypes.cast(ctypes.CDLL(None).strlen, c_void_p).value


def efault() -> NoReturn:
    """Raise EFAULT: what a guest points at does not lie in its memory."""
    raise SyscallError(Errno.EFAULT)


class PlainDesk:
    """What all guests of an engine share: the callback, and who runs."""

    def __init__(self, signatures: Sequence[Signature], ticker: Ticker) -> None:
        self.ticker = ticker
        self.polled: PlainSeat | None = None
        self._callback = _ON_CALL(self._on_call)
        self.on_call = ctypes.cast(self._callback, c_void_p).value or 0
        # For each import: takes its arguments apart.
        self._unpack = [_unpacking(signature) for signature in signatures]

    def import_at(self, index: int) -> int:
        """Return what the callback is told of an import."""
        return index

    def _on_call(
        self, index: int, caller: int, args: int, _nargs: int, results: int, _nresults: int,
        _trap: int, continuation: int,
    ) -> None:  # fmt: skip
        """Run on the guest's stack: copy the arguments and suspend. It must not raise."""
        seat = self.polled
        assert seat is not None
        if not seat.base:
            seat.find_memory(caller)
        if seat.base:  # else the module's start function runs, and it exports no memory yet
            seat.size = c.memory_data_size(*seat.memory_pointers)
        windows = seat.windows
        window = windows.get(args)
        if window is None:
            window = seat.look_at(args)
        seat.args = self._unpack[index](window)
        seat.results = window
        seat.results_from = results - args  # they lie in one block
        seat.ready.value = 0
        seat.call = index
        window = windows.get(continuation)
        if window is None:
            window = seat.look_at(continuation)
        _put_continuation(window, 0, seat.continuation)


def _unpacking(signature: Signature) -> Callable[[memoryview], tuple[int, ...]]:
    formats = {"i32": "I20x", "i64": "q16x"}
    layout = "<" + "".join(f"8x{formats[p]}" for p in signature.params)
    assert struct.calcsize(layout) + c.VAL_BYTES <= _WINDOW_BYTES
    return struct.Struct(layout).unpack_from


class PlainSeat:
    """One guest's record: what its last call was, where its result goes, and its memory.

    `call` and `args` are the last call's index in the host's imports and its arguments, unsigned
    where they are i32 and signed where they are i64. `buffer_at`: the block that its futures point
    into. `context` and `future` are the engine's, and set by whoever makes them.
    """

    __slots__ = (
        "_buffer", "_desk", "_future", "_memory", "_polled", "_seen", "args", "base", "buffer_at",
        "call", "context", "continuation", "epoch", "memory_at", "memory_pointers", "ready",
        "results", "results_from", "size", "windows",
    )  # fmt: skip

    def __init__(self, desk: PlainDesk) -> None:
        self._desk = desk
        self._buffer = (c_uint64 * (c.BUFFER_BYTES // 8 + 1))()
        self.buffer_at: int = ctypes.addressof(self._buffer)
        self.memory_at = self.buffer_at + c.MEMORY + c.EXTERN_OF
        self.ready = ctypes.c_uint8.from_address(self.buffer_at + c.BUFFER_BYTES)
        ready_at = self.buffer_at + c.BUFFER_BYTES
        self.continuation = struct.pack("<QQQ", _STRLEN or 0, ready_at, 0)
        self.call = NO_CALL
        self.args: tuple[int, ...] = ()
        self.results, self.results_from = _NOTHING, 0  # where its result goes
        self.windows: dict[int, memoryview] = {}  # by addresses
        self.base = self.size = 0
        self._memory, self._seen = _NOTHING, 0  # the first so many bytes of its memory
        self.context = self._future = 0
        self.memory_pointers: tuple[Any, ...] = ()
        self.epoch = -1  # so that the first poll sets its deadline
        self._polled: tuple[Any, ...] = ()  # the same as `_future`, for `future_poll`

    @property
    def future(self) -> int:
        """What is polled; 0: nothing."""
        return self._future

    @future.setter
    def future(self, future: int) -> None:
        self._future = future
        self._polled = (c.pointer(future),) if future else ()
        self.memory_pointers = c.pointer(self.context), c.pointer(self.memory_at)

    def over(self) -> bool:
        """Say whether the guest has ended with its future, or goes on with another."""
        raise KernelBug("a seat by itself has no next future")

    def poll(self) -> int:
        """Run the guest until it makes a call, is preempted, or ends; it must be runnable.

        CALLED leaves `call` and `args`, and wants a `resume` before the next poll; ENDED leaves
        `end`.
        """
        if not self._polled:
            raise RuntimeError("nothing to poll")
        desk, board = self._desk, self._desk.ticker.board
        self.call = NO_CALL
        if self.epoch != board.epoch:
            # Ticks that were for others: without this it would yield once for nothing.
            self.epoch = board.epoch
            c.set_epoch_deadline(self.context, 1)
        while True:
            # The callback and the ticker must know who runs, and since when.
            desk.polled = self
            board.since = _now()
            if not board.armed:
                desk.ticker.arm()
            done = c.future_poll(*self._polled)
            board.since = 0.0
            if not done:
                if self.call >= 0:
                    return CALLED
                if self.base:
                    self.size = c.memory_data_size(*self.memory_pointers)
                return PREEMPTED
            # Gone before anything can raise: what has ended must never be polled again.
            ended, self.future = self.future, 0
            c.future_delete(ended)
            if self.over():
                return ENDED

    def resume(self, result: int, wide: bool = False) -> None:
        """Give the pending call's result (an i64 where `wide`); the guest is runnable again."""
        _put_value(self.results, self.results_from, wide, result)
        self.ready.value = 1

    def resume_void(self) -> None:
        """End the pending call of a function without results."""
        self.ready.value = 1

    def vacate(self) -> None:
        """Forget everything of the engine's: its store is gone, or about to."""
        self.context = self._future = self.base = self.size = 0
        self._memory, self._seen = _NOTHING, 0  # none of that is there any more
        self.results = _NOTHING
        self._polled = self.memory_pointers = ()
        self.windows.clear()

    # -- Memory, while a call is pending -------------------------------------------------------
    def check(self, pointer: int, length: int) -> None:
        """EFAULT unless [pointer, pointer + length) lies in memory; both are unsigned."""
        if pointer + length > self.size:
            efault()

    def read(self, pointer: int, length: int) -> bytes:
        """Return a copy of guest memory, or EFAULT."""
        end = pointer + length
        if end > self.size:
            efault()
        if self._seen != self.size:
            self._see()
        return self._memory[pointer:end].tobytes()

    def write(self, pointer: int, data: bytes) -> None:
        """Copy `data` into guest memory, or EFAULT."""
        end = pointer + len(data)
        if end > self.size:
            efault()
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
        if c.caller_export_get(caller, c.MEMORY_NAME_AT, 6, self.buffer_at + c.MEMORY):
            self.base = c.memory_data(self.context, self.memory_at) or 0
