"""Fairness between tenants: shares of the device's time and of processor time.

fair_queue      which request is next: one queue a run, under one a tenant, in virtual time
device_shares   how long a step may be, and which tenant pays for it step_cost       a step's time,
predicted from its rows cpu_accounts    a tenant's account of processor time cpu_reports
processor time that workers and the gateway report, charged here rate_limit      tokens a minute
"""
