"""The operating system as Symphony uses it: processors, memory, disk, clocks, limits, compilers.

    cpu_count, cpu_pressure, memory, cgroups   what this process may have, and what is short
    clock, event_loop, sched_slice             time, timers and turns on a processor
    rlimits, malloc, interpreter               settings of a process
    disk_space, log_format                     the data directory's free space; lines of a log
    toolchain, build_cache                     C compilers, and what they built on this machine

Nothing here knows of models, files or tenants. The runtime imports it, too.
"""
