"""Matchers that are kept: of texts that may go on, so that nobody follows them from the beginning.

Bounded by the texts' lengths, a tenant's and all together: behind an ambiguous text a matcher has a
kilobyte for each token. Of a text that grows step by step the last two stay: forks begin with one.
"""

import threading
from collections import OrderedDict, deque
from dataclasses import dataclass
from itertools import count
from typing import Final, TypeAlias

from llguidance import LLMatcher

from symphony_kernel.protocol.limits import KEPT_TEXT_TOKENS_MAX, TENANT_KEPT_TEXT_TOKENS_MAX

_LEAST: Final = 256  # tokens that any counts as: also a short text's matcher takes room
Place: TypeAlias = tuple[int, bytes]  # number of a grammar's era, and a text's tokens (u32)


@dataclass(slots=True, eq=False)
class _Kept:
    matcher: LLMatcher
    tokens: int
    before: bytes  # where its text stood one step before; empty: nowhere


class MatcherCache:
    """Those of all grammars, for the thread that makes masks; others forget and sweep."""

    def __init__(
        self,
        tenant_tokens: int = TENANT_KEPT_TEXT_TOKENS_MAX,
        tokens: int = KEPT_TEXT_TOKENS_MAX,
    ) -> None:
        self._tenant_tokens_max, self._tokens_max = tenant_tokens, tokens
        self._kept: dict[str, OrderedDict[Place, _Kept]] = {}  # by tenants, used last at the end
        self._sums: dict[str, int] = {}
        self._sum = 0
        self._gone: deque[int] = deque()
        self._numbers = count(1)
        self._lock = threading.Lock()

    def number(self) -> int:
        """Return a number for a grammar's era; any thread."""
        return next(self._numbers)

    def forget(self, number: int) -> None:
        """An era is over: let go of its matchers, soon; any thread."""
        self._gone.append(number)

    def find(self, tenant: str, number: int, text: bytes) -> LLMatcher | None:
        """Return a matcher behind a text, the caller's own, if there is one."""
        with self._lock:
            kept = self._kept.get(tenant)
            if kept is None or (number, text) not in kept:
                return None
            kept.move_to_end((number, text))
            return kept[number, text].matcher.deep_copy()

    def sweep(self) -> None:
        """Let go of the matchers of eras that are over; any thread."""
        with self._lock:
            while self._gone:
                self._sweep(self._gone.popleft())

    def keep(
        self, tenant: str, number: int, text: bytes, matcher: LLMatcher, before: bytes = b""
    ) -> None:
        """A text that has come so far, from `before`, may go on."""
        self.sweep()
        tokens = max(len(text) // 4, _LEAST)
        if tokens <= self._tenant_tokens_max:
            with self._lock:
                self._keep(tenant, (number, text), _Kept(matcher, tokens, before))

    def _keep(self, tenant: str, place: Place, new: _Kept) -> None:
        kept = self._kept.setdefault(tenant, OrderedDict())
        self._drop(tenant, place)
        last = kept.get((place[0], new.before)) if new.before else None
        if last is not None and last.before:
            self._drop(tenant, (place[0], last.before))
            last.before = b""
        kept[place] = new
        self._sums[tenant] = self._sums.get(tenant, 0) + new.tokens
        self._sum += new.tokens
        while self._sums[tenant] > self._tenant_tokens_max:
            self._drop(tenant, next(iter(kept)))
        while self._sum > self._tokens_max:
            most = max(self._sums, key=self._sums.__getitem__)
            self._drop(most, next(iter(self._kept[most])))

    @property
    def tokens(self) -> dict[str, int]:
        """Tokens of the texts that are kept, by tenants."""
        return {tenant: tokens for tenant, tokens in self._sums.items() if tokens}

    def __len__(self) -> int:
        return sum(map(len, self._kept.values()))

    def _drop(self, tenant: str, place: Place) -> None:
        gone = self._kept[tenant].pop(place, None)
        if gone is not None:
            self._sums[tenant] -= gone.tokens
            self._sum -= gone.tokens

    def _sweep(self, number: int) -> None:
        for tenant, kept in list(self._kept.items()):
            for place in [place for place in kept if place[0] == number]:
                self._drop(tenant, place)
            if not kept:
                del self._kept[tenant], self._sums[tenant]
