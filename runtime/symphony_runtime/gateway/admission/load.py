"""How long a new run of a tenant would wait for the model.

The kernel is asked for the waiting tokens, at most twice a second and only while runs are started.
It serves tenants in fair shares, so a tenant's new run waits above all for the tenant's own tokens:

    alone    the tenant's waiting tokens at the model's rate
    shared   the same at the tenant's share of the rate, at most the waiting tokens of all tenants

So a tenant that floods the server waits for itself, and a tenant with nothing waiting is never
refused for the load of others. The rate is the best recent one: an error admits more, not less.
"""

import asyncio
import logging
import statistics
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from symphony_kernel.protocol.errno import SyscallError

from symphony_runtime.gateway.links.links import KernelAwayError

_log = logging.getLogger(__name__)
_LOOK_SECONDS = 0.5  # between two requests to the kernel
_OLD_SECONDS = 3.0  # after which an answer is ignored
_STARTS = 16  # recent starts that count
_STARTS_SECONDS = 10.0  # older starts do not count
_MEASURED_SECONDS = 0.02  # of steps at least, to measure a rate
_RATE_KEPT = 0.95  # of the best rate, at each measurement
Ask = Callable[[], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class ExpectedWait:
    """Expected seconds of wait: `alone` at the full rate, `shared` at a fair share."""

    alone: float = 0.0
    shared: float = 0.0


class ServerLoad:
    """The kernel's load as last seen."""

    def __init__(self, ask: Ask, now: Callable[[], float] = time.monotonic) -> None:
        """`ask` returns the kernel's waiting tokens: `Scheduler.waiting`."""
        self._ask = ask
        self._now = now
        self._asked = self._answered = float("-inf")
        self._asking: asyncio.Task[None] | None = None
        self._tenants: dict[str, tuple[int, float]] = {}
        self._computed = (0, 0.0)  # tokens, seconds
        self._rate = 0.0  # tokens a second
        self._starts: deque[tuple[float, float]] = deque(maxlen=_STARTS)

    def refresh(self) -> None:
        """Ask the kernel, unless that was done just now; the answer is for later calls."""
        if self._asking is None and self._now() - self._asked >= _LOOK_SECONDS:
            self._asked = self._now()
            self._asking = asyncio.create_task(self._refresh())

    def note_registration(self, seconds: float) -> None:
        """Note that the kernel took `seconds` to register a run."""
        self._starts.append((self._now(), seconds))

    def expected_wait(self, tenant: str) -> ExpectedWait:
        start = self._start_seconds()
        if self._now() - self._answered > _OLD_SECONDS or not self._rate:
            return ExpectedWait(start, start)
        own, weight = self._tenants.get(tenant, (0, 1.0))
        weights = sum(each for _, each in self._tenants.values())
        weights += 0.0 if tenant in self._tenants else weight
        everything = sum(tokens for tokens, _ in self._tenants.values())
        shared = min(own * weights / weight, everything)
        return ExpectedWait(start + own / self._rate, start + shared / self._rate)

    async def stop(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])

    def _start_seconds(self) -> float:
        recent = [s for at, s in self._starts if self._now() - at < _STARTS_SECONDS]
        return statistics.median(recent) if recent else 0.0

    async def _refresh(self) -> None:
        try:
            self._take(await self._ask())
        except (KernelAwayError, SyscallError) as error:
            _log.debug("the load of the kernel is unknown: %s", error)
        finally:
            self._asking = None

    def _take(self, answer: dict[str, Any]) -> None:
        self._answered = self._now()
        self._tenants = {name: (tokens, weight) for name, (tokens, weight)
                         in answer["tenants"].items()}  # fmt: skip
        tokens, seconds = answer["tokens"], answer["seconds"]
        before_tokens, before_seconds = self._computed
        if seconds < before_seconds:  # another kernel
            before_tokens, before_seconds = 0, 0.0
        if seconds - before_seconds >= _MEASURED_SECONDS:
            rate = (tokens - before_tokens) / (seconds - before_seconds)
            self._rate = max(rate, _RATE_KEPT * self._rate)
            self._computed = (tokens, seconds)
