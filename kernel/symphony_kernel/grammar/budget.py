"""What compiled grammars may hold: a budget for each tenant and for all, and for idle ones less.

    built or used -> over a budget -> the one used longest ago lets go -> freed -> malloc_trim

A grammar that lets go keeps its text, and is compiled again when it is used. Freed memory lies
between what lives, so the allocator keeps it: it is told to give it back after large releases.
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

_LOOK_SECONDS: Final = 1.0
_IDLE_SECONDS: Final = 20.0  # without use
_TRIM_BYTES: Final = 16 << 20  # less of them since the last time
_TRIMS: Final = 3  # looks with a trim each: texts under way let go a little later


class GrammarFootprint(Protocol):
    """A compiled grammar, as far as the budget goes."""

    used: float

    @property
    def held_bytes(self) -> int:
        """The memory that it takes."""

    def release(self) -> None:
        """Let go of it."""


class GrammarBudget:
    """Looks at all grammars after each compilation, and once a second while there are any."""

    def __init__(
        self,
        built: Callable[[], Mapping[str, Sequence[GrammarFootprint]]],
        give_back: Callable[[], None],
        weight: Callable[[str], float],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`built`: the grammars that hold memory, by tenants; `give_back`: what is free already.

        `weight`: a tenant's. Where all hold too much, the one with the most for its weight pays.
        """
        self._built, self._give_back, self._now = built, give_back, now
        self._weight = weight
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._most = 0  # bytes, since the last trim
        self._trims = 0  # to come
        self.held_bytes = 0

    def keep(self) -> None:
        """Hold all grammars to their budgets, now and from now on."""
        tenants = self._built()
        held = {tenant: _held(grammars) for tenant, grammars in tenants.items()}
        for tenant, grammars in tenants.items():
            held[tenant] -= _release(grammars, held[tenant] - TENANT_GRAMMAR_BYTES_MAX)
        everything = [each for grammars in tenants.values() for each in grammars]
        while (over := sum(held.values()) - GRAMMAR_BYTES_MAX) > 0:
            most = max(held, key=lambda tenant: held[tenant] / self._weight(tenant))
            gone = _release(tenants[most], min(over, held[most]))
            if not gone:
                break
            held[most] -= gone
        idle = [each for each in everything if self._now() - each.used > _IDLE_SECONDS]
        _release(idle, _held(idle) - GRAMMAR_IDLE_BYTES_MAX)
        self._trim(_held(everything))
        if self._timer is None and (tenants or self._trims) and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look)

    def close(self) -> None:
        """Look no more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        self.keep()

    def _trim(self, held: int) -> None:
        self.held_bytes = held
        self._most = max(self._most, held)
        if self._most - held >= _TRIM_BYTES:
            self._most, self._trims = held, _TRIMS
        if self._trims:
            self._trims -= 1
            self._give_back()


def _held(grammars: Sequence[GrammarFootprint]) -> int:
    return sum(grammar.held_bytes for grammar in grammars)


def _release(grammars: Sequence[GrammarFootprint], over: int) -> int:
    """Release those used longest ago, until so many bytes are gone; return how many are."""
    gone = 0
    for grammar in sorted(grammars, key=lambda each: each.used) if over > 0 else ():
        if gone >= over:
            break
        held = grammar.held_bytes
        grammar.release()
        gone += held - grammar.held_bytes
    return gone
