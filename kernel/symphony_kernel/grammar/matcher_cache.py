"""A cache of matchers of texts that may continue, so that they need not be followed again.

It is bounded by the lengths of the texts, per tenant and in total, because a matcher of an
ambiguous text has a kilobyte per token. Of a text that grows step by step, the last two matchers
stay: forks start from one of them.
"""

import threading
from collections import OrderedDict, deque
from dataclasses import dataclass
from itertools import count
from typing import Final, TypeAlias

from llguidance import LLMatcher

from symphony_kernel.protocol.limits import KEPT_TEXT_TOKENS_MAX, TENANT_KEPT_TEXT_TOKENS_MAX

_TOKENS_MIN: Final = 256  # that a matcher counts for, because a short text's takes memory, too
Place: TypeAlias = tuple[int, bytes]  # number of a generation, and a text's tokens (u32)


@dataclass(slots=True, eq=False)
class _Kept:
    matcher: LLMatcher
    tokens: int
    before: bytes  # its text one step earlier; empty: unknown


class MatcherCache:
    """Matchers of all grammars, for the thread that makes masks, unless a method says otherwise."""

    def __init__(
        self,
        tenant_tokens: int = TENANT_KEPT_TEXT_TOKENS_MAX,
        tokens: int = KEPT_TEXT_TOKENS_MAX,
    ) -> None:
        self._tenant_tokens_max, self._tokens_max = tenant_tokens, tokens
        self._kept: dict[
            str, OrderedDict[Place, _Kept]
        ] = {}  # by tenant, least recently used first
        self._sums: dict[str, int] = {}
        self._sum = 0
        self._gone: deque[int] = deque()
        self._numbers = count(1)
        self._lock = threading.Lock()

    def next_number(self) -> int:
        """Return a number for a new generation; any thread."""
        return next(self._numbers)

    def drop_generation(self, number: int) -> None:
        """Drop a generation's matchers at the next sweep; any thread."""
        self._gone.append(number)

    def find(self, tenant: str, number: int, text: bytes) -> LLMatcher | None:
        """Return a copy of the matcher that has consumed a text, if there is one."""
        with self._lock:
            kept = self._kept.get(tenant)
            if kept is None or (number, text) not in kept:
                return None
            kept.move_to_end((number, text))
            return kept[number, text].matcher.deep_copy()

    def sweep(self) -> None:
        """Drop the matchers of dropped generations; any thread."""
        with self._lock:
            while self._gone:
                self._sweep(self._gone.popleft())

    def keep(
        self, tenant: str, number: int, text: bytes, matcher: LLMatcher, before: bytes = b""
    ) -> None:
        """Keep the matcher of a text that may continue. One step earlier it was `before`."""
        self.sweep()
        tokens = max(len(text) // 4, _TOKENS_MIN)
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
        """Tokens of the kept texts, by tenant."""
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
