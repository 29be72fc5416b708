"""Sandboxing: what a process gives up before it runs code of strangers.

Programs cannot leave their Wasm sandbox; this is for the day on which that turns out wrong.
`contain` is called once everything is loaded and before threads are started. Each layer stands by
itself:

    user        root gives itself up for a user of its own that owns nothing
    namespaces  no network, no shared memory, no host name (root only)
    landlock    no file can be opened any more, no port, no signal to others
    seccomp     no exec, no socket but of this machine, nothing that is not on a short list
    limits      descriptors, threads, no core files, not to be looked at by others

A system that lacks one gives the others. What was achieved is reported, and an operator who asks
for all of them is refused less.
"""
