"""Syscalls of the worker: the handlers of a guest's imports, by name in `table`.

model, kv, process, family, egress, wasi   one module a capability
validation                                 reads and checks a guest's arguments
"""
