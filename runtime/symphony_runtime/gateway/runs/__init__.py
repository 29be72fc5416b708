"""Runs: from an admitted request to the stored result.

service           start, end, cancel; record: a run in the database; live_run: a run in progress
worker_requests   requests of workers: children, channels, tool and HTTP calls
events/           what a run's readers get
retention         how long ended runs are kept; trace, usage: what runs did and used
tracing/          a trace as Chrome trace events
cpu_reporting     the gateway's CPU time by tenant, reported to the kernel
"""
