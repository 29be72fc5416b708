"""The kernel of Symphony: KVFS, the process table, the scheduler and the executors.

    worker, gateway -> ipc -> kernel -> syscalls -> request -> scheduler -> executor
                               |           |                      |
                            journal     processes, grammar     fairness, kvfs

`__main__` has the boot order, `kernel` is the composition root, and `request` is one request on its
way through the scheduler. A package imports only packages below it (pyproject.toml has the layers,
`make check` checks them). Other distributions, such as the runtime, may import only
`symphony_kernel.protocol` and `symphony_kernel.platform`.
"""
