"""The runtime of Symphony: the worker that runs programs, the gateway, the CLI, the supervisor.

    cli -> supervisor -> gateway, worker (and the kernel), each a process
    worker, compiler -> engine (wasmtime), sandboxing;  all of them -> abi, config

Of the kernel it imports `symphony_kernel.protocol` and `symphony_kernel.platform` and nothing else.
Worker and gateway do not import each other.
"""
