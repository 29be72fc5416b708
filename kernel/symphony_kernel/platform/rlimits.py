"""Resource limits of a process, set before it reads untrusted bytes."""

import resource


def lower_limit(kind: int, soft: int, hard: int | None = None) -> None:
    """Set one of this process's limits. `hard` defaults to `soft`. A hard limit never rises.

    Only root could raise it, and a lower limit had a reason, for root too.
    """
    hard = soft if hard is None else hard
    _, most = resource.getrlimit(kind)
    if most != resource.RLIM_INFINITY:
        soft, hard = min(soft, most), min(hard, most)
    resource.setrlimit(kind, (soft, hard))
