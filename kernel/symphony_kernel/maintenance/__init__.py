"""What a kernel does for itself.

upkeep     opens the tiers below the device; audits all counts while the kernel is idle
watchdog   finds schedulers that have stalled, and mends them
counters   all that the kernel counts, in one map
"""
