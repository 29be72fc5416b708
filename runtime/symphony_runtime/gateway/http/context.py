"""What handlers share: the services, bodies, parameters, and answers."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from aiohttp import web
from symphony_kernel.protocol.limits import (
    BODY_BYTES_MAX,
    JSON_COST_MAX,
    PAGE_ITEMS_DEFAULT,
    PAGE_ITEMS_MAX,
    TENANT_BODY_BYTES_MAX,
)

from symphony_runtime.bounded_json import DeepJsonError, load_json
from symphony_runtime.gateway.admission.rate_limit import ASKING, RateLimiters
from symphony_runtime.gateway.admission.retry_estimates import EventInterval, retry_after
from symphony_runtime.gateway.admission.tenant_lock import TenantLocks
from symphony_runtime.gateway.connections.connections import Connections
from symphony_runtime.gateway.connections.slow_clients import SlowClients
from symphony_runtime.gateway.egress.vault import Vault
from symphony_runtime.gateway.errors import Problem, bad_request, too_large, unavailable
from symphony_runtime.gateway.http.idempotency import Idempotency
from symphony_runtime.gateway.http.json_cost import parse_cost
from symphony_runtime.gateway.links.startup import StartupProgress
from symphony_runtime.gateway.metrics.kernel import KernelsMetrics
from symphony_runtime.gateway.programs.store import Programs
from symphony_runtime.gateway.runs.channels import Channels
from symphony_runtime.gateway.runs.cpu_reporting import CpuReporter
from symphony_runtime.gateway.runs.retention import Retention
from symphony_runtime.gateway.runs.service import Runs
from symphony_runtime.gateway.storage.data_directory import DataDirectory
from symphony_runtime.gateway.storage.store import Store
from symphony_runtime.gateway.tenancy.administration import Administration
from symphony_runtime.gateway.tenancy.authentication import Authentication
from symphony_runtime.gateway.tenancy.deletion import TenantDeletion

T = TypeVar("T")
_IN_THREAD_BYTES = 64 << 10  # larger JSON would delay other requests
_CHUNK_BYTES = 1 << 16  # of a body, read in one call
_BYTE_SECONDS = 5e-9  # processor time for a byte of a long body, about
_COST_BYTES = 64  # of memory at most for a unit of `parse_cost`: a list of two bytes takes 96
_ANY_COST = 1 << 62
compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class BodyMemory:
    """Counts the bytes of request bodies in memory, by tenant, while their requests last."""

    def __init__(self) -> None:
        self._tenants: Counter[str] = Counter()
        self._requests: dict[int, tuple[str, int]] = {}  # by the identity of live requests
        self._held = 0  # bytes of all tenants
        self._releases = EventInterval()

    def hold(self, request: web.BaseRequest, tenant: str, size: int) -> None:
        """Count more bytes of a request's body.

        Raises Problem: 429, too many bytes of the tenant; 503, too many of all tenants.
        """
        if self._tenants[tenant] + size > TENANT_BODY_BYTES_MAX:
            detail = f"live requests hold over {TENANT_BODY_BYTES_MAX} bytes: send fewer at once"
            seconds = retry_after(self._releases.seconds())
            raise Problem(
                429, "too-many-bytes", detail, retry_after=seconds, limit=TENANT_BODY_BYTES_MAX
            )
        if self._held + size > BODY_BYTES_MAX:
            detail = f"the bodies of all requests hold more than {BODY_BYTES_MAX} bytes"
            raise unavailable(detail, retry_after(self._releases.seconds()))
        self._tenants[tenant] += size
        self._held += size
        _, held = self._requests.get(id(request), (tenant, 0))
        self._requests[id(request)] = tenant, held + size

    def release(self, request: web.BaseRequest) -> None:
        tenant, held = self._requests.pop(id(request), ("", 0))
        if held:
            self._releases.record()
            self._held -= held
            self._tenants[tenant] -= held
            if not self._tenants[tenant]:
                del self._tenants[tenant]

    def statistics(self) -> dict[str, int]:
        return {"body_bytes": self._held}


@dataclass(frozen=True, slots=True)
class Services:
    """The services that handlers use."""

    keys: Authentication
    programs: Programs
    runs: Runs
    store: Store
    channels: Channels
    kernel_metrics: KernelsMetrics
    progress: StartupProgress
    administration: Administration
    rates: RateLimiters
    idempotency: Idempotency
    vault: Vault
    retention: Retention
    deletion: TenantDeletion
    cpu_reporter: CpuReporter
    data_directory: DataDirectory
    bodies: BodyMemory = field(default_factory=BodyMemory)
    slow: SlowClients = field(default_factory=SlowClients)
    connections: Connections = field(default_factory=Connections)
    # Held while large JSON is parsed or encoded.
    tenant_locks: TenantLocks = field(default_factory=TenantLocks)


SERVICES = web.AppKey("services", Services)


def services(request: web.Request) -> Services:
    return request.app[SERVICES]


def tenant_of(request: web.Request) -> str:
    """Return the tenant of a request; only in handlers of tenants' routes."""
    return request[ASKING]


def body_owner(request: web.Request) -> str:
    """Return the tenant whose memory a body takes, "" for an operator."""
    tenant: str = request.get(ASKING, "")
    return tenant


def check_unencoded(request: web.Request) -> None:
    """Check that a body is not compressed; Problem 415."""
    content = request.headers.get("Content-Encoding", "identity")
    transfer = request.headers.get("Transfer-Encoding", "chunked")
    if content.lower() != "identity" or transfer.strip().lower() != "chunked":
        raise Problem(415, "packed-body", "a body must be sent without Content-Encoding")


async def read_body(request: web.Request, what: str, limit: int) -> bytes:
    """Return the body.

    Raises Problem: 413, it is larger than `limit` bytes, of which no more are read. 415, it is
    compressed. 408, it is too slow. 429 and 503 as `BodyMemory.hold`.
    """
    check_unencoded(request)
    if (request.content_length or 0) > limit:
        raise too_large(what, limit)
    parts, size = list[bytes](), 0
    bodies, holder = services(request).bodies, body_owner(request)
    async for chunk in read_chunks(request, _CHUNK_BYTES):
        bodies.hold(request, holder, len(chunk))
        size += len(chunk)
        if size > limit:
            raise too_large(what, limit)
        parts.append(chunk)
    return b"".join(parts)


async def read_chunks(request: web.Request, size: int) -> AsyncIterator[bytes]:
    """Yield the body in chunks of at most `size` bytes. A long one is charged to its tenant.

    Reading waits while the tenant is throttled, and so does the client.

    Raises Problem: 408, it is too slow.
    """
    cpu_reporter, holder, received = services(request).cpu_reporter, body_owner(request), 0
    async for chunk in services(request).slow.uploads.chunks(request, size):
        received += len(chunk)
        yield chunk
        if holder and received > _CHUNK_BYTES:  # an operator has no account
            cpu_reporter.charge(holder, _BYTE_SECONDS * len(chunk))
            await cpu_reporter.wait_pause(holder)


async def read_json(request: web.Request, what: str, limit: int) -> Any:
    """Return the body's JSON, {} if empty; Problem 400, 413, others as `read_body`."""
    body = await read_body(request, what, limit)
    return await parse_json(request, body) if body else {}


async def run_off_loop(size: int, work: Callable[[], T]) -> T:
    """Run work on about `size` bytes, in a thread if it would delay other requests.

    It is charged to no tenant: see `run_sized`.
    """
    return await asyncio.to_thread(work) if size > _IN_THREAD_BYTES else work()


async def parse_json(request: web.Request, body: bytes) -> Any:
    """Return a body's JSON. The memory of its values is held like the body itself.

    Raises Problem: 400; 413, it has too many values; 429 and 503 as `BodyMemory.hold`.
    """
    if len(body) <= _IN_THREAD_BYTES:
        return _parse(body)
    # One per tenant at a time: the parser holds the interpreter.
    async with services(request).tenant_locks.of(body_owner(request)):
        cost = await run_charged(request, lambda: parse_cost(body, JSON_COST_MAX))
        if cost > JSON_COST_MAX:
            detail = (
                f"the body has too many values: at most {JSON_COST_MAX}, where a key counts 16 and "
                "a list or object 4; a program's input may be JSON within a string"
            )
            raise Problem(413, "too-large", detail, limit=JSON_COST_MAX)
        services(request).bodies.hold(request, body_owner(request), _COST_BYTES * cost)
        return await run_charged(request, lambda: _parse(body))


async def load_kept_json(request: web.Request, text: str) -> Any:
    """Return JSON that the server has made of a tenant's and kept. Memory as in `parse_json`.

    Raises Problem: 429 and 503 as `BodyMemory.hold`.
    """

    def cost() -> int:
        return parse_cost(text.encode(), _ANY_COST)

    async with services(request).tenant_locks.of(body_owner(request)):
        size = len(text) + _COST_BYTES * await run_sized(request, len(text), cost)
        services(request).bodies.hold(request, body_owner(request), size)
        return await run_sized(request, len(text), lambda: json.loads(text))


async def run_beside(request: web.Request, work: Callable[[], Awaitable[None]]) -> None:
    """Do work in a task beside a request's handler; its processor time, too, is its tenant's."""
    await services(request).cpu_reporter.charge_awaitable(tenant_of(request), work())


async def run_sized(request: web.Request, size: int, work: Callable[[], T]) -> T:
    """Run work on about `size` bytes: at once, or as `run_charged` if it would delay others."""
    return await run_charged(request, work) if size > _IN_THREAD_BYTES else work()


async def run_charged(request: web.Request, work: Callable[[], T]) -> T:
    """Run work in a thread, and charge its processor time to the request's tenant."""
    spent = 0.0

    def timed() -> T:
        nonlocal spent
        began = time.thread_time()
        try:
            return work()
        finally:
            spent = time.thread_time() - began

    try:
        return await asyncio.to_thread(timed)
    finally:
        if tenant := body_owner(request):  # an operator has no account
            services(request).cpu_reporter.charge(tenant, spent)


def _parse(body: bytes) -> Any:
    try:
        return load_json(body)
    except DeepJsonError as error:
        raise bad_request("bad-json", f"the body {error}") from None
    except ValueError as error:
        raise bad_request("bad-json", f"the body is not JSON: {error}") from error


async def answer(document: dict[str, Any], status: int = 200) -> web.Response:
    """Return a JSON answer that is small; `results` sends large ones."""
    return web.Response(status=status, body=to_json(document), content_type="application/json")


def to_json(document: Any) -> bytes:
    """Return compact JSON."""
    return compact(document).encode()


def to_any_json(document: Any) -> bytes:
    """Return compact JSON of a document that may hold lone surrogates: in ASCII then."""
    try:
        return to_json(document)
    except UnicodeEncodeError:
        return json.dumps(document, separators=(",", ":")).encode()


def page_limit(request: web.Request) -> int:
    """Return how many items a page of a listing has; Problem 400."""
    text = request.query.get("limit", str(PAGE_ITEMS_DEFAULT))
    return number(text, "limit", 1, PAGE_ITEMS_MAX)


def page_of(items: list[Any], limit: int, cursor: Callable[[Any], str]) -> dict[str, Any]:
    """Return a page of a listing, from one item more than `limit` if there are more."""
    shown = items[:limit]
    return {"data": shown, "next": cursor(shown[-1]) if len(items) > limit else None}


def number(text: str, what: str, low: int, high: int) -> int:
    """Return the integer in a header or a query; Problem 400."""
    if not (text.isascii() and text.isdigit() and len(text) < 20 and low <= int(text) <= high):
        raise bad_request("bad-request", f"`{what}` must be an integer from {low} to {high}")
    return int(text)


def flag(request: web.Request, name: str, *, default: bool = False) -> bool:
    """Return whether a flag of the query is set; Problem 400: not 0, 1, false, true."""
    value = request.query.get(name, "1" if default else "0")
    if value not in ("0", "1", "false", "true"):
        raise bad_request("bad-request", f"`{name}` must be 0 or 1")
    return value in ("1", "true")
