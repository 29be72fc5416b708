"""How fast a tenant may ask: requests a second, and what its clients are told of it.

Each request of a tenant's key takes one from the tenant's bucket, which holds a second's worth. An
empty one answers 429 with Retry-After. On the OpenAI routes every answer tells what is left, in
OpenAI's headers.
"""

import math
import time
from collections.abc import Callable

from aiohttp import web
from symphony_kernel.protocol.token_bucket import TokenBucket

from symphony_runtime.config.limits import Limits
from symphony_runtime.gateway.admission.pace import retry_after
from symphony_runtime.gateway.errors import Problem

ASKING = web.RequestKey("asking", str)  # the tenant whose request it is
TOKENS = web.RequestKey("tokens", tuple[int, int, int])  # see `RateLimiters.headers`
_TENANTS_MAX = 4_096  # buckets; of those that are full again some are forgotten then


class RateLimiters:
    """The buckets of all tenants. `reached` hears of each refusal: a tenant, a limit's name."""

    def __init__(
        self,
        limits: Limits,
        reached: Callable[[str, str], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits, self._reached, self._now = limits, reached, now
        self._buckets: dict[str, TokenBucket] = {}

    def request(self, tenant: str) -> None:
        """Count a request.

        Raises:
            Problem: 429, it is one too many.
        """
        bucket, now = self._bucket(tenant), self._now()
        if bucket.take(1.0, now):
            return
        self._reached(tenant, "requests_per_second")
        limit = int(bucket.size)
        raise Problem(
            429,
            "too-many-requests",
            f"the tenant may make {limit} requests a second",
            retry_after=retry_after(bucket.seconds(now)),
            limit=limit,
        )

    def headers(self, tenant: str, tokens: tuple[int, int, int] | None = None) -> dict[str, str]:
        """Return OpenAI's headers of what is left.

        `tokens`: those a minute that a tenant may have computed, those left, the ms until there are
        some; None where none are counted.
        """
        bucket, now = self._bucket(tenant), self._now()
        level = bucket.level(now)
        headers = _headers("requests", int(bucket.size), level, bucket.rate)
        if tokens is not None:
            limit, left, _ = tokens
            headers |= _headers("tokens", limit, left, limit / 60.0)
        return headers

    def _bucket(self, tenant: str) -> TokenBucket:
        rate = self._limits.of(tenant).at_most("requests_per_second")
        bucket = self._buckets.get(tenant)
        if bucket is None:
            if len(self._buckets) >= _TENANTS_MAX:
                self._forget()
            bucket = self._buckets[tenant] = TokenBucket(rate, rate, self._now())
        elif bucket.size != rate:
            bucket.change(rate, rate, self._now())
        return bucket

    def _forget(self) -> None:
        now = self._now()
        full = [name for name, bucket in self._buckets.items() if bucket.level(now) >= bucket.size]
        for name in full:
            del self._buckets[name]


def tokens_refused(limit: int, left: int, ms: int) -> Problem:
    """Return the answer to who has had all its tokens of this minute."""
    return Problem(
        429,
        "too-many-tokens",
        f"the tenant may have {limit} tokens a minute computed, and {left} are left",
        retry_after=retry_after(ms / 1000),
        limit=limit,
    )


def _headers(what: str, limit: int, left: float, rate: float) -> dict[str, str]:
    """Return the three headers of one kind; the reset is when all of it is there again."""
    return {
        f"x-ratelimit-limit-{what}": str(limit),
        f"x-ratelimit-remaining-{what}": str(max(0, int(left))),
        f"x-ratelimit-reset-{what}": _duration(max(0.0, (limit - left) / rate)),
    }


def _duration(seconds: float) -> str:
    """Return a time as OpenAI writes it: 20ms, 1.5s, 6m0s."""
    if seconds < 1.0:
        return f"{math.ceil(1000 * seconds)}ms"
    minutes, rest = divmod(seconds, 60.0)
    return f"{minutes:.0f}m{rest:.0f}s" if minutes else f"{rest:.3g}s"
