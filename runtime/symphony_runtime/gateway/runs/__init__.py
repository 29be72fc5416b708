"""Runs: from an admitted request to the stored result.

service           start, end, cancel; record: a run in the database; live_run: one under way
worker_requests   what workers ask for: children, channels, calls of tools
events/           what readers of a run are told
retention         how long ended runs are kept; trace, usage: what they did and took
cpu_reporting     the gateway's processor time, reported to the kernel by tenants
"""
