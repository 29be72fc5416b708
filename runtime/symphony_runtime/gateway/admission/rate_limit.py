"""Rate limits of tenants: requests per second, and the headers for them.

Each request with a tenant's key takes one token from the tenant's bucket, which holds one second's
worth. An empty bucket answers 429 with Retry-After. On the OpenAI routes every answer reports what
is left in OpenAI's headers.
"""

import math
import time
from collections.abc import Callable

from aiohttp import web
from symphony_kernel.protocol.token_bucket import TokenBucket

from symphony_runtime.config.limits import Limits
from symphony_runtime.gateway.admission.retry_estimates import retry_after
from symphony_runtime.gateway.errors import Problem

ASKING = web.RequestKey("asking", str)  # the tenant of a request
TOKENS = web.RequestKey("tokens", tuple[int, int, int])  # see `RateLimiters.headers`
_TENANTS_MAX = 4_096  # buckets; past it those that are full again are dropped


class RateLimiters:
    """The buckets of all tenants. `reached` gets (tenant, limit) of each refusal."""

    def __init__(
        self,
        limits: Limits,
        reached: Callable[[str, str], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits, self._reached, self._now = limits, reached, now
        self._buckets: dict[str, TokenBucket] = {}

    def take_request(self, tenant: str) -> None:
        """Count a request; Problem 429, the tenant's bucket is empty."""
        bucket, now = self._bucket(tenant), self._now()
        if bucket.take(1.0, now):
            return
        self._reached(tenant, "requests_per_second")
        limit, seconds = int(bucket.size), retry_after(bucket.seconds(now))
        detail = f"the tenant may make {limit} requests a second"
        raise Problem(429, "too-many-requests", detail, retry_after=seconds, limit=limit)

    def headers(self, tenant: str, tokens: tuple[int, int, int] | None = None) -> dict[str, str]:
        """Return OpenAI's headers of what is left.

        `tokens`: (limit per minute, those left, ms until some are left); None: no limit.
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
    detail = f"the tenant may compute {limit} tokens a minute; {left} are left"
    seconds = retry_after(ms / 1000)
    return Problem(429, "too-many-tokens", detail, retry_after=seconds, limit=limit)


def _headers(what: str, limit: int, left: float, rate: float) -> dict[str, str]:
    """Return the three headers of one kind; reset is when all is available."""
    return {
        f"x-ratelimit-limit-{what}": str(limit),
        f"x-ratelimit-remaining-{what}": str(max(0, int(left))),
        f"x-ratelimit-reset-{what}": _duration(max(0.0, (limit - left) / rate)),
    }


def _duration(seconds: float) -> str:
    """Return a time in OpenAI's format: 20ms, 1.5s, 6m0s."""
    if seconds < 1.0:
        return f"{math.ceil(1000 * seconds)}ms"
    minutes, rest = divmod(seconds, 60.0)
    return f"{minutes:.0f}m{rest:.0f}s" if minutes else f"{rest:.3g}s"
