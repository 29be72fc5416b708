"""The operating system: processors, memory, disk, clocks, limits, compilers.

    cpu_count, cpu_pressure, memory, cgroups   processors and memory that this process may use
    clock, event_loop, sched_slice             time, timers, and time slices on a processor
    rlimits, malloc, interpreter               settings of a process
    disk_space, log_format                     free space of the data directory; log lines
    toolchain, build_cache                     C compilers, and a cache of what they built

Nothing here depends on models, files or tenants. The runtime imports it, too.
"""
