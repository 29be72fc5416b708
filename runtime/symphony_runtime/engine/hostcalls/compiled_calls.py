"""How calls cross from a guest's fiber to the worker, in C: `crossing.c`, compiled and loaded.

Where it is not compiled, or cannot be loaded, a worker does without: `ctypes_calls` does the same
through ctypes, and is several times as expensive.
"""

import ctypes
from collections.abc import Sequence
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from pathlib import Path
from typing import Any

from symphony_runtime.abi import Signature
from symphony_runtime.engine import bindings as c
from symphony_runtime.engine.epoch_ticker import Board, Ticker
from symphony_runtime.engine.hostcalls.ctypes_calls import efault
from symphony_runtime.engine.hostcalls.library import HostCallsUnavailable, library_path

_ENGINE = (
    "wasmtime_call_future_poll",
    "wasmtime_call_future_delete",
    "wasmtime_context_set_epoch_deadline",
    "wasmtime_memory_data_size",
    "wasmtime_memory_data",
    "wasmtime_caller_export_get",
)


class CompiledHostCalls:
    """A compiled library: `seat` is the type that fibers are made of."""

    def __init__(self, path: Path) -> None:
        """Load it.

        Raises:
            CrossingUnavailable: it cannot be loaded, or is for other bindings than these.
        """
        loader = ExtensionFileLoader("crossing", str(path))
        spec = ModuleSpec("crossing", loader, origin=str(path))
        try:
            self._module: Any = loader.create_module(spec)
            loader.exec_module(self._module)
        except ImportError as error:
            raise HostCallsUnavailable(f"{path} cannot be loaded: {error}") from error
        if self._module.layout != layout():
            raise HostCallsUnavailable(f"{path} has {self._module.layout}, wanted {layout()}")
        self.seat: Any = self._module.Seat

    def desk(self, signatures: Sequence[Signature], ticker: Ticker) -> Any:
        """Return what all guests of an engine with these imports share."""
        assert all(len(each.params) <= self._module.arguments_max for each in signatures)
        assert all(len(each.results) <= 1 for each in signatures)
        engine = tuple(c.address_of(name) for name in _ENGINE)
        return self._module.Desk(engine, ticker.board, len(signatures), ticker.arm, efault)


def layout() -> tuple[int, ...]:
    """Return what C must lay out as the engine's bindings and the ticker do, in bytes."""
    fields: Any = Board  # whose fields' places mypy does not know
    board = fields.since.offset, fields.epoch.offset, fields.armed.offset, ctypes.sizeof(Board)
    return c.VAL_BYTES, c.VAL_OF, c.BUFFER_BYTES, c.MEMORY, c.EXTERN_OF, *board


def compiled_crossing() -> CompiledHostCalls:
    """Return the library of these sources, if it is compiled; CrossingUnavailable."""
    path, there = library_path()
    if not there:
        raise HostCallsUnavailable("it is not compiled (`make install` does it)")
    return CompiledHostCalls(path)
