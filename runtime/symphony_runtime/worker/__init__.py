"""The worker: runs programs as fibers on one event loop.

    worker      the event loop: links to kernel and gateway, turns of instances
    instance    one program that runs; run: its tree of instances, with shared limits
    tickets     work that a program has started; handles: its mirror of KV handles
    fairness/   which tenant's instance is next;  text/: tokenizing;  syscalls/: the ABI's calls

It has no network, no database, no model and no secrets, and gives up files and sockets after its
start.
"""
