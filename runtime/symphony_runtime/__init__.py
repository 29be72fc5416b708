"""The runtime of Symphony: worker, gateway, command line, supervisor.

    cli -> supervisor -> gateway, worker (and the kernel), each a process
    worker, compiler -> engine (wasmtime), sandboxing;  all of them -> abi, config

From the kernel it imports only `symphony_kernel.protocol` and `symphony_kernel.platform`. Worker
and gateway do not import each other.
"""
