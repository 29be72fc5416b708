"""Rate limit: preds past a tenant's tokens a minute wait here.

    syscalls -> rate limiter -> scheduler

A tenant may have a bucket of tokens (`tokens_per_minute`, a minute's worth at once). Each pred
takes its tokens from it. When there are none, further preds are held until there are, the tenant's
runs in rotation. So a program over its tenant's rate is slowed down and gets no error. Held preds
have not reached the scheduler: they count for no virtual time, and their files are as idle as those
of any program that waits.

Tenants without a rate cost nothing: as long as none has one, calls go to the scheduler directly.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from symphony_kernel.kvfs.quotas import UNLIMITED
from symphony_kernel.processes.table import RequestQueue
from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.token_bucket import TokenBucket
from symphony_kernel.request import Request

_MINUTE = 60.0
_SECONDS_MIN = 0.001  # of a timer


class _Tenant:
    """A tenant's bucket, and the requests held until it has tokens: by run, in order."""

    def __init__(self, tokens: int, now: float) -> None:
        self.bucket = TokenBucket(tokens, tokens / _MINUTE, now)
        self.held: OrderedDict[int, dict[Request, float]] = OrderedDict()  # with their times
        self.waiting = 0  # tokens of held requests
        self.timer: asyncio.TimerHandle | None = None

    def hold(self, request: Request, now: float) -> None:
        self.held.setdefault(request.root, {})[request] = now
        self.waiting += request.count

    def drop(self, request: Request) -> bool:
        requests = self.held.get(request.root)
        if requests is None or request not in requests:
            return False
        self._remove(requests, request)
        if not requests:
            del self.held[request.root]
        return True

    def pop_next(self) -> tuple[Request, float]:
        """Return the next request, and since when it was held."""
        root, requests = self.held.popitem(last=False)
        request, since = next(iter(requests.items()))
        self._remove(requests, request)
        if requests:
            self.held[root] = requests  # behind the other runs
        return request, since

    def _remove(self, requests: dict[Request, float], request: Request) -> None:
        del requests[request]
        self.waiting -= request.count


class RateLimiter:
    """Stands in front of a scheduler, as a `RequestQueue`.

    `reached` is called with a tenant whose preds begin to be held, `wake` after some were released.
    """

    submit: Callable[[Request], None]
    cancel: Callable[[Request], None]
    drop_requests: Callable[..., None]

    def __init__(
        self,
        scheduler: RequestQueue,
        now: Callable[[], float],
        reached: Callable[[str], None],
        wake: Callable[[], None],
    ) -> None:
        self._scheduler = scheduler
        self._now, self._reached, self._wake = now, reached, wake
        self._tenants: dict[str, _Tenant] = {}
        self.charge_run, self.trace_run = scheduler.charge_run, scheduler.trace_run
        self.trace_fork, self.trace_held = scheduler.trace_fork, scheduler.trace_held
        self._pass_through()

    # -- Rates ---------------------------------------------------------------------------------
    def set_rate(self, tenant: str, tokens: int) -> None:
        """Set how many tokens a minute a tenant may compute; UNLIMITED: any number."""
        found = self._tenants.get(tenant)
        if tokens >= UNLIMITED:
            if found is not None:
                found.bucket = TokenBucket(UNLIMITED, UNLIMITED, self._now())
                self._release(tenant)
                del self._tenants[tenant]
            if not self._tenants:
                self._pass_through()
            return
        if found is None:
            self._tenants[tenant] = _Tenant(tokens, self._now())
        else:
            found.bucket.change(tokens, tokens / _MINUTE, self._now())
            self._release(tenant)
        self.submit, self.cancel, self.drop_requests = (
            self._submit,
            self._cancel,
            self._drop_requests,
        )

    def refund(self, tenant: str, tokens: int) -> None:
        """Give back a tenant's tokens that a pred need not compute.

        Held preds are released later, as the scheduler may be forming a step now.
        """
        found = self._tenants.get(tenant)
        if found is None:
            return
        found.bucket.refund(tokens)
        if found.timer is not None:
            found.timer.cancel()
            self._set_timer(tenant, found)

    def tokens_left(self, tenant: str) -> list[int] | None:
        """Return a tenant's tokens (0 or more), and the ms until there are some.

        None: it has no rate. Held preds come first: until they have their tokens there are none.
        """
        found = self._tenants.get(tenant)
        if found is None:
            return None
        left = found.bucket.level(self._now()) - found.waiting
        seconds = max(0.0, (1.0 - left) / found.bucket.rate)
        return [max(0, int(left)), int(1000 * seconds + 0.999)]

    def held_runs(self, tenant: str) -> list[int]:
        """Return the roots of a tenant's runs whose preds are held now."""
        found = self._tenants.get(tenant)
        return [] if found is None else list(found.held)

    def close(self) -> None:
        """Hold nothing any more. `done` of held preds is not called."""
        for tenant in self._tenants.values():
            if tenant.timer is not None:
                tenant.timer.cancel()
        self._tenants.clear()
        self._pass_through()

    def _pass_through(self) -> None:
        scheduler = self._scheduler
        self.submit, self.cancel, self.drop_requests = (
            scheduler.submit,
            scheduler.cancel,
            scheduler.drop_requests,
        )

    # -- Requests ------------------------------------------------------------------------------
    def _submit(self, request: Request) -> None:
        tenant = self._tenants.get(request.tenant)
        if tenant is None or (not tenant.held and tenant.bucket.take(request.count, self._now())):
            self._scheduler.submit(request)
            return
        if not tenant.held:
            self._reached(request.tenant)
        tenant.hold(request, self._now())
        if tenant.timer is None:
            self._set_timer(request.tenant, tenant)

    def _cancel(self, request: Request) -> None:
        tenant = self._tenants.get(request.tenant)
        if tenant is None or not tenant.drop(request):
            self._scheduler.cancel(request)
            return
        request.finished = True
        request.file.unreserve()
        request.done(-Errno.ECANCELED)

    def _drop_requests(self, root: int, instance: int | None = None) -> None:
        for tenant in self._tenants.values():
            for request in list(tenant.held.get(root, ())):
                if instance in (None, request.instance):
                    tenant.drop(request)
                    request.finished = True
                    request.file.unreserve()
        self._scheduler.drop_requests(root, instance)

    def _release(self, name: str) -> None:
        tenant = self._tenants[name]
        if tenant.timer is not None:
            tenant.timer.cancel()
            tenant.timer = None
        released = False
        while tenant.held and tenant.bucket.level(self._now()) >= 1.0:
            request, since = tenant.pop_next()
            tenant.bucket.take(request.count, self._now())
            self._scheduler.submit(request)
            self.trace_held(request, since)
            released = True
        if tenant.held:
            self._set_timer(name, tenant)
        if released:
            self._wake()

    def _set_timer(self, name: str, tenant: _Tenant) -> None:
        seconds = max(tenant.bucket.seconds(self._now()), _SECONDS_MIN)
        loop = asyncio.get_running_loop()
        tenant.timer = loop.call_later(seconds, partial(self._release, name))
