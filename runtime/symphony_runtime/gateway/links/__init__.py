"""Links of the gateway: to the kernel, which it trusts, and to workers, which it does not.

links               both, and what comes over them
worker_assignment   a worker for each tenant, where the operator wants it
kernel_limits       tenants' limits, as the kernel is told
startup             how far each role's start has come
"""
