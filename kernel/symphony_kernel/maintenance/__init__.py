"""The kernel's own maintenance.

upkeep     opens the tiers below the device; audits all counters while the kernel is idle
watchdog   finds a stalled scheduler, and repairs it
"""
