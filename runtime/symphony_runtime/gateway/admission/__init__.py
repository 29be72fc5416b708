"""Admission: which requests and runs are refused under load, and when to retry.

    retry_estimates   how often things become free: the source of Retry-After
    load              how long a new run of a tenant would wait for the model
    admission         whether a run may start, by load, memory and number of runs
    rate_limit        requests per second of a tenant
    fair_passes       a few milliseconds of each tenant in a pass of the event loop
    tenant_lock       one caller at a time of each tenant

New runs and requests of the OpenAI routes are refused. Probes, cancellations, deletions and the
operators' routes are not.
"""
