"""The engine: wasmtime, with guests as fibers of one thread.

Only this package and the compiler use wasmtime; only this package uses its C API.

fiber          guests as coroutines; programs and their instances
hostcalls.c    a guest's call on its way to the worker
bindings       wasmtime's C functions
epoch_ticker   the tick that preempts a guest
settings       the engine's settings, and the format of artefacts
"""
