"""Fibers."""

from wasmtime import Config, Engine
from wasmtime import _ffi as ffi

from symphony_runtime.worker.sandbox import ENGINE_SETTINGS


def new_engine() -> Engine:
    """Return an engine with the sandbox's settings."""
    config = Config()
    for name, value in ENGINE_SETTINGS.items():
        getattr(ffi, f"wasmtime_config_{name}_set")(config.ptr(), value)
    return Engine(config)
