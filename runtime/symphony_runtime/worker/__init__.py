"""The worker: runs programs as fibers on one event loop.

    worker      the event loop: links to kernel and gateway, turns of instances
    instance    one running module; run: a tree of instances, with shared limits
    tickets     work that a program has started; handles: the rights of its KV handles
    programs    loaded programs; idle_hint: tells the kernel which instances wait long
    fairness/   which tenant's instance runs next;  text/: tokenizing;  syscalls/: the ABI's calls

It has no network, no database, no model and no secrets. After its start it gives up files and
sockets.
"""
