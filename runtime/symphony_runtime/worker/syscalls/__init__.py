"""Syscalls of the worker: what runs when a guest calls an import. `table` has them by name.

model, kv, process, family, egress, wasi   one module a capability
validation                                 what a guest passes, read and checked
"""
