"""Links of the gateway: to the trusted kernel, and to untrusted workers.

links               both, and their messages
worker_assignment   one worker per tenant, if the operator wants it
models              the models, each with its kernel and workers
kernel_limits       tenants' limits, sent to the kernel
startup             progress of each role's start
"""
