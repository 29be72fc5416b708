"""The kernel of Symphony: KVFS, the process table, two schedulers and the executors.

Layers, downward only (checked by `make check`): server -> kernel -> syscalls -> process_table ->
scheduler -> kvfs -> executor -> protocol. Other packages may import `symphony_kernel.protocol` and
nothing else.
"""
