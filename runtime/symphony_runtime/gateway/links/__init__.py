"""Links of the gateway: to the kernel, which it trusts, and to workers, which it does not.

links               both, and their messages
worker_assignment   one worker per tenant, if the operator wants it
kernel_limits       tenants' limits, sent to the kernel
startup             progress of each role's start
"""
