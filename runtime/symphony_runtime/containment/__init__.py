"""What keeps a process that runs strangers' code inside itself, whatever that code achieved.

Programs cannot leave their sandbox; this is for the day on which that turns out wrong. `contain` is
called once everything is loaded and before threads are started, and each layer stands by itself:

    user        root gives itself up for a user of its own that owns nothing
    namespaces  no network, no shared memory, no host name (root only)
    landlock    no file can be opened any more, no port, no signal to others
    seccomp     no exec, no socket but of this machine, nothing that is not on a short list
    limits      descriptors, threads, no core files, not to be looked at by others

A system that lacks one gives the others; what was achieved is told, and who asks for all is refused
less.
"""

from symphony_runtime.containment.contain import (
    LAYERS,
    WORKERS_GROUP,
    Contained,
    ContainmentError,
    contain,
    expected,
    open_to_workers,
)
from symphony_runtime.containment.seccomp import PR_SET_PDEATHSIG

__all__ = [
    "LAYERS",
    "PR_SET_PDEATHSIG",
    "WORKERS_GROUP",
    "Contained",
    "ContainmentError",
    "contain",
    "expected",
    "open_to_workers",
]
