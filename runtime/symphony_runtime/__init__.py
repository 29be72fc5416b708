"""The runtime of Symphony: the worker that runs programs, the gateway, the CLI, the supervisor.

Of the kernel it imports `symphony_kernel.protocol` and nothing else.
"""
