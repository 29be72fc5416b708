"""The system's limits of a process: what is set before a stranger's bytes come."""

import resource


def lower_limit(kind: int, soft: int, hard: int | None = None) -> None:
    """Set one of this process's limits (`hard`: as `soft`), but none above what it may have now.

    Only root may raise a hard limit, and what was lower was so for a reason: of root's, too.
    """
    hard = soft if hard is None else hard
    _, most = resource.getrlimit(kind)
    if most != resource.RLIM_INFINITY:
        soft, hard = min(soft, most), min(hard, most)
    resource.setrlimit(kind, (soft, hard))
