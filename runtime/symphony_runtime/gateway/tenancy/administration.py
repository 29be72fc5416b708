"""Everything that operators see and change, and what follows when they do.

    tenants   who there is          ring    keys are made and taken away
    ledger    what tenants use      audit   who did what, and who was refused what
    visits    requests under way, by tenant

A tenant that is suspended: its keys are refused, its runs are cancelled, what it still has open is
cut off. A weight goes to the kernel at once, and again whenever a kernel is there anew.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Protocol

from aiohttp import web
from symphony_kernel.protocol.errno import SyscallError

from symphony_runtime.gateway.clock import now_ms
from symphony_runtime.gateway.connections.connections import Connections
from symphony_runtime.gateway.errors import not_found
from symphony_runtime.gateway.links.kernel_limits import KernelLimits
from symphony_runtime.gateway.links.links import KernelAwayError, KernelLink
from symphony_runtime.gateway.runs.live_run import Run
from symphony_runtime.gateway.runs.usage import RunUsage
from symphony_runtime.gateway.storage.store import Store
from symphony_runtime.gateway.tenancy.audit import Asked, Audit
from symphony_runtime.gateway.tenancy.authentication import Authentication, read_keys, suspended
from symphony_runtime.gateway.tenancy.keys import KeyRing
from symphony_runtime.gateway.tenancy.tenants import (
    Change,
    Tenant,
    Tenants,
    not_empty,
    read_tenants,
)

_log = logging.getLogger(__name__)
_END_SECONDS_MAX = 10.0  # that a suspended tenant's runs get to end in
SUSPENDED = "the tenant was suspended"
WORDS = web.RequestKey("words", str)  # what the audit log says beside a request


class LiveRuns(Protocol):
    """What is asked of the runs."""

    @property
    def kernel(self) -> KernelLink:
        """The link to the kernel."""

    kernel_limits: KernelLimits  # what the kernel is told of tenants

    def live_by_tenant(self) -> dict[str, int]:
        """Return how many live runs each tenant has that has any."""

    def runs_of(self, tenant: str) -> list[Run]:
        """Return a tenant's live runs."""

    def kill(self, run: Run, reason: str) -> None:
        """End a live run."""


class Administration:
    """What operators see and change."""

    def __init__(
        self, store: Store, keys: Authentication, tenants: Tenants, connections: Connections
    ) -> None:
        self.keys = keys
        self.tenants = tenants
        self.connections = connections
        self.active_requests = ActiveRequests()
        self.ring = KeyRing(store, keys, connections)
        self.ledger = RunUsage(store, now_ms)
        self.audit = Audit(store, now_ms)
        self._store = store
        self._runs: LiveRuns | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._telling: set[asyncio.Task[None]] = set()

    @classmethod
    async def open(cls, store: Store, keys: Authentication, behind_proxy: bool) -> "Administration":
        """Return it with what the database holds."""
        tenants = Tenants(store, await store.read(read_tenants), now_ms)
        return cls(store, keys, tenants, Connections(bounded_addresses=not behind_proxy))

    def attach(self, runs: LiveRuns) -> None:
        """Name the runs; once, before anything else."""
        self._runs = runs

    @property
    def runs(self) -> LiveRuns:
        """The live runs."""
        assert self._runs is not None
        return self._runs

    def start(self) -> None:
        """Begin what goes on beside the requests."""
        for work in (self.ring.run(), self.ledger.run(), self.audit.run()):
            self._tasks.append(asyncio.create_task(work))

    async def stop(self) -> None:
        """End it, and write what is not written yet."""
        for task in (*self._tasks, *self._telling):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._telling, return_exceptions=True)
        await self.ledger.close()
        await self.audit.close()

    def check(self, tenant: str) -> None:
        """Check that a tenant may begin something.

        Raises:
            Problem: 403, it is suspended, or 404, deleted; whoever asks was there before.
        """
        if tenant in self.keys.suspended:
            raise suspended()
        if tenant not in self.tenants:
            raise not_found("tenant")

    # -- Tenants -------------------------------------------------------------------------------
    async def took_effect(self, tenant: Tenant, change: Change) -> None:
        """Have what was said of a tenant take effect."""
        self._heed()
        if change.weighs:
            await self._tell_weight(self.runs.kernel, tenant.id, tenant.weight)
        if change.quotas:
            await self._tell_limits([tenant.id])
        if tenant.suspended_ms is not None:
            await self.expel(tenant.id)

    async def reload(self) -> None:
        """Take over what another gateway has changed."""
        weights, suspended = self.tenants.weights(), self.keys.suspended
        async with self.tenants.changing, self.ring.changing:
            self.tenants.replace(await self._store.read(read_tenants))
            keys = await self._store.read(read_keys)
            gone = self.keys.replace(keys, self.tenants.suspended())
        self.connections.cut_keys(gone)
        now = self.tenants.weights()
        for tenant in weights.keys() | now.keys():
            if weights.get(tenant) != now.get(tenant):
                await self._tell_weight(self.runs.kernel, tenant, now.get(tenant))
        await self._tell_limits(self.runs.live_by_tenant())
        await asyncio.gather(*map(self.expel, self.keys.suspended - suspended))

    async def delete_tenant(self, tenant: str) -> None:
        """Forget a tenant that has no live runs and no KV files, with its keys.

        Raises:
            Problem: 404; 409, something is left of it.
        """
        with self.closed(tenant):
            if self.runs.runs_of(tenant):  # one that began just before
                raise not_empty(["live runs"])
            await self.tenants.delete(tenant)
            self.ring.gone(key.id for key in self.keys.of(tenant))
        await self._tell_weight(self.runs.kernel, tenant, None)  # the next one may be called so

    @contextlib.contextmanager
    def closed(self, tenant: str) -> Iterator[None]:
        """Let nobody of a tenant in, and nothing of it begin, for the length of the block."""
        self.tenants.leaving[tenant] += 1
        self._heed()
        try:
            yield
        finally:
            self.tenants.leaving -= Counter({tenant: 1})
            self._heed()

    def withhold(self, tenants: Iterable[str]) -> None:
        """Let nobody in who is called like these: they are being forgotten."""
        self.tenants.deletion = set(tenants)
        self._heed()

    def _heed(self) -> None:
        self.keys.suspended = self.tenants.suspended()

    async def expel(self, tenant: str) -> None:
        """End a suspended tenant's runs; then cut off what it still has open."""
        live = self.runs.runs_of(tenant)
        for run in live:
            self.runs.kill(run, SUSPENDED)
        if live:  # their readers are told of the end
            await asyncio.wait([run.known for run in live], timeout=_END_SECONDS_MAX)
        self.connections.cut_tenant(tenant)

    def tell_weights(self, kernel: KernelLink) -> None:
        """Tell a kernel that is there anew."""
        telling = asyncio.create_task(self._tell_weights(kernel))
        self._telling.add(telling)
        telling.add_done_callback(self._telling.discard)

    async def _tell_weights(self, kernel: KernelLink) -> None:
        for tenant, weight in self.tenants.weights().items():
            await self._tell_weight(kernel, tenant, weight)
        await self._tell_limits(self.runs.live_by_tenant())

    async def _tell_limits(self, tenants: Iterable[str]) -> None:
        """Tell the kernel what tenants may have now; of others it hears before their first run."""
        for tenant in tenants:
            try:
                await self.runs.kernel_limits.send_limits(tenant)
            except KernelAwayError:
                _log.info("the kernel is away: it is told of limits when it comes")
            except SyscallError as error:
                _log.error("the kernel refuses the limits of %s: %s", tenant, error)

    async def _tell_weight(self, kernel: KernelLink, tenant: str, weight: float | None) -> None:
        try:
            await kernel.ask("set_tenant_weight", tenant=tenant, weight=weight)
        except KernelAwayError:
            _log.info("the kernel is away: it is told of weights when it comes")
        except SyscallError as error:
            _log.error("the kernel refuses the weight %s of %s: %s", weight, tenant, error)

    # -- The log -------------------------------------------------------------------------------
    def note(self, request: web.Request, action: str, status: int, *, admin: bool) -> None:
        """Note an operator's change (`admin`), or what was denied to somebody."""
        asked = Asked(
            self.keys.find(request.headers.get("Authorization")),
            request.remote or "",
            action,
            request.path,
            status,
            request.get(WORDS, ""),
        )
        if admin and status not in (401, 403):
            self.audit.done(asked)
        else:
            self.audit.denied(asked)


class ActiveRequests:
    """The requests under way."""

    def __init__(self) -> None:
        self._tenants: Counter[str | None] = Counter()  # None: operators'
        self._waiting: dict[str | None, asyncio.Event] = {}  # for a tenant's last request to end

    @contextlib.contextmanager
    def visit(self, tenant: str | None) -> Iterator[None]:
        """Have a request be under way that is a tenant's, or an operator's (None)."""
        self._tenants[tenant] += 1
        try:
            yield
        finally:
            self._tenants[tenant] -= 1
            if not self._tenants[tenant]:
                del self._tenants[tenant]
                waiting = self._waiting.pop(tenant, None)
                if waiting is not None:
                    waiting.set()

    async def wait_ended(self, tenant: str, seconds: float) -> bool:
        """Wait until no request of a tenant's is under way; return whether none is."""
        if tenant not in self._tenants:
            return True
        waiting = self._waiting.setdefault(tenant, asyncio.Event())
        try:
            async with asyncio.timeout(seconds):
                await waiting.wait()
        except TimeoutError:
            return False
        return True

    def statistics(self) -> dict[str, int]:
        """Return how many requests are under way."""
        return {"requests": self._tenants.total()}
