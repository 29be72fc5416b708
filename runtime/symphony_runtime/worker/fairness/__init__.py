"""Fairness in a worker: which tenant's instance runs next, and what tenants hold.

run_queue            instances that can run, by tenant, in virtual time
virtual_time_queue   start-time fair queueing
cpu_reporting        reports tenants' processor time to the kernel; throttled tenants
tenant_memory        linear memory and tables of a tenant's instances
"""
