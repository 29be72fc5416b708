"""What operators see and change, and the consequences.

    tenants   all tenants               ring    creates and revokes keys
    ledger    usage of tenants          audit   changes by operators, and refused requests
    active_requests   requests in progress, by tenant

Suspending a tenant refuses its keys, cancels its runs and cuts its open requests. A weight goes to
the kernel at once, and again to each new kernel.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Iterable, Iterator
from functools import partial
from typing import Any

from aiohttp import web
from symphony_kernel.protocol.errno import SyscallError

from symphony_runtime.gateway.clock import now_ms
from symphony_runtime.gateway.connections.connections import Connections
from symphony_runtime.gateway.errors import not_found
from symphony_runtime.gateway.links.links import KernelAwayError
from symphony_runtime.gateway.links.models import Models, ServedModel
from symphony_runtime.gateway.runs.service import Runs
from symphony_runtime.gateway.runs.usage import RunUsage
from symphony_runtime.gateway.storage.store import Store
from symphony_runtime.gateway.tenancy.audit import Audit, AuditedRequest
from symphony_runtime.gateway.tenancy.authentication import (
    Authentication,
    authorization_of,
    read_keys,
    suspended,
)
from symphony_runtime.gateway.tenancy.keys import KeyRing
from symphony_runtime.gateway.tenancy.tenants import (
    Change,
    Tenant,
    Tenants,
    not_empty,
    read_tenants,
)

_log = logging.getLogger(__name__)
_END_SECONDS_MAX = 10.0  # for a suspended tenant's runs to end
SUSPENDED = "the tenant was suspended"
WORDS = web.RequestKey("words", str)  # the audit log's text for a request


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
        self.runs: Runs  # set once, before anything else
        self._tasks: list[asyncio.Task[None]] = []
        self._kernel_updates: set[asyncio.Task[None]] = set()

    @classmethod
    async def open(cls, store: Store, keys: Authentication, behind_proxy: bool) -> "Administration":
        tenants = Tenants(store, await store.read(read_tenants), now_ms)
        return cls(store, keys, tenants, Connections(bounded_addresses=not behind_proxy))

    def start(self) -> None:
        for work in (self.ring.run(), self.ledger.run(), self.audit.run()):
            self._tasks.append(asyncio.create_task(work))

    async def stop(self) -> None:
        for task in (*self._tasks, *self._kernel_updates):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._kernel_updates, return_exceptions=True)
        await self.ledger.close()
        await self.audit.close()

    def check(self, tenant: str) -> None:
        """Check that a tenant may start something.

        Raises Problem: 403, it is suspended; 404, it was deleted after the request's
        authentication.
        """
        if tenant in self.keys.suspended:
            raise suspended()
        if tenant not in self.tenants:
            raise not_found("tenant", tenant)

    # -- Tenants -------------------------------------------------------------------------------
    async def apply_change(self, tenant: Tenant, change: Change) -> None:
        self._update_suspended()
        if change.weighs:
            await self._send_weight(tenant.id, tenant.weight)
        if change.quotas:
            await self._send_limits([tenant.id])
        if tenant.suspended_ms is not None:
            await self.expel(tenant.id)

    async def reload(self) -> None:
        """Apply the changes of other gateways."""
        weights, suspended = self.tenants.weights(), self.keys.suspended
        async with self.tenants.changing, self.ring.changing:
            self.tenants.replace_all(await self._store.read(read_tenants))
            keys = await self._store.read(read_keys)
            gone = self.keys.replace_keys(keys, self.tenants.suspended())
        self.connections.cut_keys(gone)
        now = self.tenants.weights()
        for tenant in weights.keys() | now.keys():
            if weights.get(tenant) != now.get(tenant):
                await self._send_weight(tenant, now.get(tenant))
        await self._send_limits(self.runs.live_by_tenant())
        await asyncio.gather(*map(self.expel, self.keys.suspended - suspended))

    async def delete_tenant(self, tenant: str) -> None:
        """Delete a tenant that has no live runs and no KV files, with its keys.

        Raises Problem: 404; 409, it still has something.
        """
        with self.refuse_tenant(tenant):
            if self.runs.runs_of(tenant):  # one that just started
                raise not_empty(["live runs"])
            await self.tenants.delete(tenant)
            self.ring.forget_keys(key.id for key in self.keys.keys_of(tenant))
        # The next tenant may have this name.
        await self._send_weight(tenant, None)

    @contextlib.contextmanager
    def refuse_tenant(self, tenant: str) -> Iterator[None]:
        """Refuse the tenant's keys and starts for the length of the block."""
        self.tenants.leaving[tenant] += 1
        self._update_suspended()
        try:
            yield
        finally:
            self.tenants.leaving -= Counter({tenant: 1})
            self._update_suspended()

    def set_being_forgotten(self, tenants: Iterable[str]) -> None:
        """Refuse clients of tenants with these names, which are being forgotten."""
        self.tenants.being_forgotten = set(tenants)
        self._update_suspended()

    def _update_suspended(self) -> None:
        self.keys.suspended = self.tenants.suspended()

    async def expel(self, tenant: str) -> None:
        """End a suspended tenant's runs, then cut its open connections."""
        live = self.runs.runs_of(tenant)
        for run in live:
            self.runs.kill(run, SUSPENDED)
        if live:  # so that their readers get the end
            await asyncio.wait([run.known for run in live], timeout=_END_SECONDS_MAX)
        self.connections.cut_tenant(tenant)

    def serve(self, runs: Runs, models: Models) -> None:
        """Set the runs, and send each kernel what it needs to know whenever it is linked."""
        self.runs = runs
        for model in models:
            model.kernel.on_linked = partial(self.send_weights, model)

    def send_weights(self, model: ServedModel) -> None:
        """Send all weights and limits to a model's kernel that is linked anew."""
        telling = asyncio.create_task(self._send_weights(model))
        self._kernel_updates.add(telling)
        telling.add_done_callback(self._kernel_updates.discard)

    async def _send_weights(self, model: ServedModel) -> None:
        for tenant, weight in self.tenants.weights().items():
            await self._send_weight(tenant, weight, [model])
        await self._send_limits(self.runs.live_by_tenant(), [model])

    async def _send_limits(
        self, tenants: Iterable[str], models: Iterable[ServedModel] | None = None
    ) -> None:
        """Send tenants' limits to kernels; they get those of others before a first run."""
        for tenant in tenants:
            for model in models or self.runs.models:
                await self._tell(f"the limits of {tenant}", model.limits.send_limits(tenant))

    async def _send_weight(
        self, tenant: str, weight: float | None, models: Iterable[ServedModel] | None = None
    ) -> None:
        for model in models or self.runs.models:
            asking = model.kernel.ask("set_tenant_weight", tenant=tenant, weight=weight)
            await self._tell(f"the weight {weight} of {tenant}", asking)

    async def _tell(self, what: str, asking: Awaitable[Any]) -> None:
        try:
            await asking
        except KernelAwayError:
            _log.info("the kernel is away: it gets %s when it is linked", what)
        except SyscallError as error:
            _log.error("the kernel refuses %s: %s", what, error)

    # -- Audit ---------------------------------------------------------------------------------
    def record_request(
        self, request: web.Request, action: str, status: int, *, admin: bool
    ) -> None:
        """Record an operator's change (`admin`), or a refused request."""
        asked = AuditedRequest(
            self.keys.find_key(authorization_of(request.headers)),
            request.remote or "",
            action,
            request.path,
            status,
            request.get(WORDS, ""),
        )
        if admin and status not in (401, 403):
            self.audit.record_change(asked)
        else:
            self.audit.record_refusal(asked)


class ActiveRequests:
    """Requests in progress, by tenant.

    The deletion of a tenant waits for the end of its requests: what they started exists by then, or
    never will.
    """

    def __init__(self) -> None:
        self._tenants: Counter[str | None] = Counter()  # None: of operators
        # Set at the end of a tenant's last request.
        self._waiting: dict[str | None, asyncio.Event] = {}

    @contextlib.contextmanager
    def count_request(self, tenant: str | None) -> Iterator[None]:
        """Count a request of a tenant, or of an operator (None), during the block."""
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
        """Wait until no request of a tenant is in progress; return whether none is."""
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
        return {"requests": self._tenants.total()}
