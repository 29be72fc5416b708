"""The engine: wasmtime, as fibers of one thread. The only package that knows wasmtime's C API.

fiber          guests as coroutines; compiled modules and their instances
bindings       wasmtime's C functions
epoch_ticker   the tick that preempts a guest
settings       the engine's settings; artefact: machine code and what the compiler knew
hostcalls/     a guest's call on its way to the worker
"""
