"""Memory budgets of compiled grammars: for each tenant, for all, and a lower one for idle ones.

    built or used -> over a budget -> the least recently used one is released -> `sweep`

A released grammar keeps its text and is compiled again when it is used.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from symphony_kernel.protocol.limits import (
    GRAMMAR_BYTES_MAX,
    GRAMMAR_IDLE_BYTES_MAX,
    TENANT_GRAMMAR_BYTES_MAX,
)

_CHECK_SECONDS: Final = 1.0
_IDLE_SECONDS: Final = 20.0  # without use


class GrammarFootprint(Protocol):
    """The part of `Grammar` that the budget needs."""

    used: float

    @property
    def held_bytes(self) -> int: ...
    def release(self) -> None: ...


class GrammarBudget:
    """Checks all grammars after each compilation, and once a second while there are any."""

    def __init__(
        self,
        built: Callable[[], Mapping[str, Sequence[GrammarFootprint]]],
        sweep: Callable[[], None],
        weight: Callable[[str], float],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`built` returns built grammars by tenant; `sweep` frees what released ones have left.

        `weight` returns a tenant's weight. Above the total budget, the tenant with the most memory
        for its weight loses grammars.
        """
        self._built, self._sweep, self._now = built, sweep, now
        self._weight = weight
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self.held_bytes = 0

    def enforce(self) -> None:
        """Enforce all budgets, and schedule the next check."""
        tenants = self._built()
        held = {tenant: _held(grammars) for tenant, grammars in tenants.items()}
        most = max(self.held_bytes, sum(held.values()))
        for tenant, grammars in tenants.items():
            held[tenant] -= _release(grammars, held[tenant] - TENANT_GRAMMAR_BYTES_MAX)
        everything = [each for grammars in tenants.values() for each in grammars]
        while (over := sum(held.values()) - GRAMMAR_BYTES_MAX) > 0:
            tenant = max(held, key=lambda tenant: held[tenant] / self._weight(tenant))
            gone = _release(tenants[tenant], min(over, held[tenant]))
            if not gone:
                break
            held[tenant] -= gone
        idle = [each for each in everything if self._now() - each.used > _IDLE_SECONDS]
        _release(idle, _held(idle) - GRAMMAR_IDLE_BYTES_MAX)
        self.held_bytes = _held(everything)
        if self.held_bytes < most:
            self._sweep()
        if self._timer is None and tenants and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(_CHECK_SECONDS, self._check)

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        self._timer = None
        self.enforce()


def _held(grammars: Sequence[GrammarFootprint]) -> int:
    return sum(grammar.held_bytes for grammar in grammars)


def _release(grammars: Sequence[GrammarFootprint], over: int) -> int:
    """Release the least recently used until `over` bytes are free; return the bytes released."""
    gone = 0
    for grammar in sorted(grammars, key=lambda each: each.used) if over > 0 else ():
        if gone >= over:
            break
        held = grammar.held_bytes
        grammar.release()
        gone += held - grammar.held_bytes
    return gone
