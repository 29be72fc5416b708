"""Sandboxing: what a process gives up before it runs untrusted code.

A Wasm sandbox already confines programs; this is a second line of defence. Call `contain` once
everything is loaded and before threads are started. The layers are independent:

    user        root becomes a user of its own that owns nothing
    namespaces  no network, no shared memory, no host name (root only)
    landlock    no file, port or abstract socket can be opened, no signal sent to others
    seccomp     no exec, no socket but of this machine, only system calls on a short list
    limits      descriptors, threads, no core files, not traceable by others

If the system lacks a layer, the others still hold. The result is reported; with
`require_containment` a missing layer is an error.
"""
