"""Fairness in a worker: which tenant's instance runs next, and what tenants hold.

run_queue            instances that can run, by tenants, in virtual time
virtual_time_queue   start-time fair queueing
cpu_reporting        processor time of turns, reported to the kernel; tenants that pause
tenant_memory        linear memory and tables of a tenant's instances
"""
