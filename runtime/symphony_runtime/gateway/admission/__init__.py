"""Admission: which requests and runs are refused under load, and when to try again.

    pace          how often things come free: what Retry-After says
    load          how long a new run of a tenant would wait for the model
    memory        how much memory the machine, or the cgroup, has left
    admission     whether a run may begin, from all of them
    rate_limit    requests a second of a tenant
    tenant_lock   one at a time of each tenant

New runs and requests of the OpenAI routes are refused. Probes, cancellations, deletions and the
operators' routes are not.
"""
