"""The gateway's start and stop, and the application that answers requests.

    1. the database; runs that an earlier gateway left live are failed, with all events that
       their readers may have seen
    2. keys (made in the first start)
    3. the socket for workers, the link to the kernel
    4. HTTP: requests are answered from here on, with 503 until the kernel and a worker are ready

It stops in the opposite order: it refuses new runs, gives live runs their time, then closes.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Middleware
from symphony_kernel.protocol.role_processes import Processes

from symphony_runtime.compiler.compiler import Compiler
from symphony_runtime.config.limits import Bound, Limits
from symphony_runtime.gateway.adapters.handlers import ADAPTERS
from symphony_runtime.gateway.adapters.store import Adapters
from symphony_runtime.gateway.admission.admission import Admission, AdmissionBounds, MemoryGuard
from symphony_runtime.gateway.admission.load import ServerLoad
from symphony_runtime.gateway.admission.rate_limit import ASKING, TOKENS, RateLimiters
from symphony_runtime.gateway.anthropic.errors import (
    add_request_id,
    anthropic_errors_middleware,
)
from symphony_runtime.gateway.api.history import add_history
from symphony_runtime.gateway.api.openapi import DOCUMENT, encode_document, server_version
from symphony_runtime.gateway.api.routes import ROUTES, Access
from symphony_runtime.gateway.attached.runs import ATTACHED, AttachedRuns
from symphony_runtime.gateway.batches.handlers import BATCHES
from symphony_runtime.gateway.batches.service import Batches
from symphony_runtime.gateway.clock import now_ms
from symphony_runtime.gateway.cluster.members import Members
from symphony_runtime.gateway.cluster.recovery import fail_live_runs
from symphony_runtime.gateway.config import GatewayConfig, refused_for
from symphony_runtime.gateway.connections.listener import check_host, listen
from symphony_runtime.gateway.connections.slow_clients import SlowBodies, SlowClients
from symphony_runtime.gateway.connections.slow_readers import SlowReaders
from symphony_runtime.gateway.egress.calls import Egress
from symphony_runtime.gateway.egress.injection import Injector
from symphony_runtime.gateway.egress.vault import Vault, VaultError
from symphony_runtime.gateway.errors import Handler, answer_expect, problems_middleware
from symphony_runtime.gateway.files.handlers import FILES
from symphony_runtime.gateway.files.store import Files
from symphony_runtime.gateway.http.context import SERVICES, Services
from symphony_runtime.gateway.http.cors import allow_origins
from symphony_runtime.gateway.http.idempotency import Idempotency
from symphony_runtime.gateway.links.kernel_limits import KernelLimits
from symphony_runtime.gateway.links.links import KernelLink, WorkerLinks
from symphony_runtime.gateway.links.models import Models, ServedModel
from symphony_runtime.gateway.links.startup import StartupProgress
from symphony_runtime.gateway.mcp.route import MCP, McpRoute
from symphony_runtime.gateway.metrics.counters import RunMetrics
from symphony_runtime.gateway.metrics.disk import measure
from symphony_runtime.gateway.metrics.kernel import KernelsMetrics
from symphony_runtime.gateway.openai.errors import openai_errors_middleware
from symphony_runtime.gateway.openai.handlers import OPENAI, OpenAI
from symphony_runtime.gateway.otlp.start import open_tracing
from symphony_runtime.gateway.programs.store import Programs
from symphony_runtime.gateway.runs.channels import Channels
from symphony_runtime.gateway.runs.cpu_reporting import CpuReporter
from symphony_runtime.gateway.runs.rate_stalls import RateStalls
from symphony_runtime.gateway.runs.record import next_boot
from symphony_runtime.gateway.runs.retention import Bounds, Retention
from symphony_runtime.gateway.runs.service import Runs
from symphony_runtime.gateway.runs.worker_requests import WorkerRequests
from symphony_runtime.gateway.storage.changes import ChangeFeed, gateway_name
from symphony_runtime.gateway.storage.crash_log import clear_crash_log, read_crash_log
from symphony_runtime.gateway.storage.data_directory import DataDirectory
from symphony_runtime.gateway.storage.disk_budget import DiskBudget
from symphony_runtime.gateway.storage.store import Store, StoreError
from symphony_runtime.gateway.tenancy.administration import Administration
from symphony_runtime.gateway.tenancy.authentication import (
    Authentication,
    authorization_of,
    open_keys,
)
from symphony_runtime.gateway.tenancy.deletion import TenantDeletion, unload
from symphony_runtime.gateway.tenancy.program_expiry import ProgramExpiry
from symphony_runtime.gateway.tenancy.unserved_kv import UnservedKV
from symphony_runtime.languages.language import SHIPPED, Language

_log = logging.getLogger(__name__)
_SHRINK_SECONDS = 1.0  # between attempts to shrink the database
DIED = "the gateway died while it ran"


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway that serves requests. `default_key` is set if it was made in this start.

    `port` is the one that the system gave.
    """

    services: Services
    port: int
    default_key: str | None
    openai: OpenAI
    attached: AttachedRuns
    files: Files
    batches: Batches


@contextlib.asynccontextmanager
async def serve(
    config: GatewayConfig,
    progress: StartupProgress | None = None,
    processes: Processes | None = None,
    languages: Iterable[Language] = SHIPPED,
) -> AsyncIterator[Gateway]:
    """Start the gateway; stop it at the end of the block. Any process may be a worker by default.

    Raises ConfigError: the configuration cannot be served.
    """
    check_host(config)
    config.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    async with contextlib.AsyncExitStack() as stack:
        disk = DiskBudget(config.data_dir, config.disk_reserve_bytes, config.disk_bytes_max)
        with refused_for(StoreError):
            store = Store(config.data_dir / "symphony.sqlite", config.store, disk)
        stack.push_async_callback(store.close)
        keys, default_key = await open_keys(store, config)
        administration = await _open_administration(store, keys, config, stack)
        members = await _register_gateway(store, config)
        compiler = _compiler(config, lambda: runs)
        programs = Programs(store, config.data_dir, compiler, languages)
        limits = _limits(config, administration)
        metrics = RunMetrics()
        channels = Channels(limits=limits, reached=metrics.count_limit)
        retention = await _open_retention(store, config)
        vault, egress = await _open_egress(store, config, stack)
        load = ServerLoad(lambda: models.waiting())
        stack.push_async_callback(load.stop)
        runs = Runs(
            store, programs, config, members.boot, retention, egress,
            _admission(config, load), administration.check, administration.ledger, limits, metrics,
        )  # fmt: skip
        models = _models(config, runs, limits)
        administration.serve(runs, models)
        requests = WorkerRequests(runs, programs, channels, egress)
        cpu = compiler.account = CpuReporter(runs, requests, models, store)
        progress = progress or StartupProgress()
        workers = WorkerLinks(config.socket, config.secrets, cpu, processes, progress.silent)
        runs.attach(models, workers, await open_tracing(config, server_version(), stack))
        idempotency = Idempotency(store, now_ms, members.boot)
        files, batches = _open_batches(store, config, limits, metrics, members.boot)
        adapters = runs.adapters = Adapters(store, files, limits, config.data_dir, runs.kernel)
        deletion = TenantDeletion(
            store, members, administration, programs, channels, retention,
            idempotency.forget_tenant, batches, adapters.forget_tenant, UnservedKV.of(config),
        )  # fmt: skip
        await deletion.reload()
        if store.shared:
            reloads = deletion.reload, administration.reload, programs.reload, adapters.reload
            _start_tasks(stack, ChangeFeed(store, members.record_alive, *reloads).run())
        _start_tasks(stack, runs.worker_assignment.run(), RateStalls(runs).run(), idempotency.run())
        await workers.open()
        stack.push_async_callback(workers.close)
        _start_tasks(stack, retention.run(), *(model.kernel.run() for model in models))
        services = Services(
            keys, programs, runs, store, channels, KernelsMetrics(models), progress, administration,
            RateLimiters(limits, metrics.count_limit), idempotency, vault, retention, deletion, cpu,
            DataDirectory(config.data_dir, ["symphony.sqlite"]),
            connections=administration.connections, slow=_slow_clients(config),
        )  # fmt: skip
        stack.callback(services.slow.readers.stop)
        _watch_disk(stack, services, metrics, limits)
        _start_deletions(stack, services, config)
        app = build_app(services, config.tool_format, config.cors_origins, config.draft_tokens)
        app[FILES], app[BATCHES], app[ADAPTERS] = files, batches, adapters
        port = await listen(app, config, services.connections, stack)
        stack.push_async_callback(runs.drain)
        _start_tasks(stack, files.run(), batches.run(app))
        yield Gateway(services, port, default_key, app[OPENAI], app[ATTACHED], files, batches)


async def _register_gateway(store: Store, config: GatewayConfig) -> Members:
    """Fail the runs that an earlier start of this gateway left, and register this start."""
    with refused_for(StoreError):
        name = gateway_name(config.data_dir)
    left = read_crash_log(config.data_dir)
    failed = await store.write(lambda connection: fail_live_runs(connection, left, DIED, name))
    clear_crash_log(config.data_dir)
    if failed:
        _log.warning("%d runs were live when the last gateway died", failed)
    boot = await store.write(lambda connection: next_boot(connection, name))
    members = Members(store, name, boot, now_ms)
    await members.record_start()
    return members


def _start_tasks(stack: contextlib.AsyncExitStack, *works: Coroutine[Any, Any, None]) -> None:
    """Run tasks until the stack ends."""
    for work in works:
        stack.push_async_callback(_cancel, asyncio.create_task(work))


async def _open_administration(
    store: Store, keys: Authentication, config: GatewayConfig, stack: contextlib.AsyncExitStack
) -> Administration:
    administration = await Administration.open(store, keys, config.behind_proxy)
    administration.start()
    stack.push_async_callback(administration.stop)
    return administration


def _open_batches(
    store: Store, config: GatewayConfig, limits: Limits, metrics: RunMetrics, boot: int
) -> tuple[Files, Batches]:
    files = Files(store, limits, boot, now_ms, metrics.count_limit)
    return files, Batches(store, files, limits, config.runs_live_max)


def _watch_disk(
    stack: contextlib.AsyncExitStack, server: Services, metrics: RunMetrics, limits: Limits
) -> None:
    """Count what tenants hold on disk, and shrink the database after deletions."""
    disk = server.store.disk
    disk.ended_run_bytes, disk.on_limit = server.retention.kept_bytes, metrics.count_limit
    models = server.runs.models
    disk.tier_bytes = lambda: sum(
        int(model.kernel.about.get("disk_tier_bytes", 0)) for model in models
    )
    disk.limit_of = lambda tenant: limits.of(tenant).most("disk_bytes")
    kernel_metrics = KernelsMetrics(models)  # of its own: a scrape must not get older values
    _start_tasks(stack, disk.run(lambda: measure(server.store, kernel_metrics)))
    _start_tasks(stack, _shrink_database(server.store))


async def _shrink_database(store: Store) -> None:
    while True:
        await asyncio.sleep(_SHRINK_SECONDS)
        try:
            await store.shrink()
        except store.errors as error:
            _log.warning("cannot shrink the database file: %s", error)


def _start_deletions(
    stack: contextlib.AsyncExitStack, server: Services, config: GatewayConfig
) -> None:
    """Start the deletion of tenants and of unused programs, and the notes of their use."""
    _start_tasks(stack, server.deletion.run())
    server.programs.on_deleted = lambda tenant, program: unload(
        server.runs, tenant, f"{tenant}/{program}"
    )
    program_usage, days = server.programs.program_usage, config.program_unused_days_max
    stack.push_async_callback(program_usage.close)
    _start_tasks(stack, program_usage.run())
    _start_tasks(
        stack, ProgramExpiry(server.store, server.programs, server.runs, days, now_ms).run()
    )


async def _open_retention(store: Store, config: GatewayConfig) -> Retention:
    bounds = Bounds(
        config.run_kept_seconds_max, config.tenant_runs_kept_max, config.tenant_kept_bytes_max
    )
    retention = Retention(store, bounds, now_ms)
    await retention.load_counts()
    return retention


async def _open_egress(
    store: Store, config: GatewayConfig, stack: contextlib.AsyncExitStack
) -> tuple[Vault, Egress]:
    with refused_for(VaultError):
        vault = Vault(store, config.data_dir, now_ms)
    injector = Injector(vault.reveal_secrets, plain_loopback=config.secrets_plain_loopback)
    egress = Egress(config, injector)
    stack.push_async_callback(egress.stop)
    await egress.start()
    return vault, egress


async def _cancel(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.wait([task])


def build_app(
    services: Services,
    tool_format: str = "auto",
    origins: Sequence[str] = (),
    draft_tokens: int = 0,
) -> web.Application:
    middlewares: list[Middleware] = [
        _count_request, problems_middleware, anthropic_errors_middleware,
        openai_errors_middleware, _authenticate,
    ]  # fmt: skip
    if (tracing := services.runs.tracing) is not None:
        middlewares.insert(0, tracing.middleware(_traced_route, lambda r: r.get(ASKING)))
    app = web.Application(middlewares=middlewares)
    app[SERVICES] = services
    app[MCP] = McpRoute(server_version())
    app[ATTACHED] = AttachedRuns(services.runs, services.programs)
    openai = OpenAI(
        services.runs, services.programs, services.idempotency, tool_format, draft_tokens
    )
    app[OPENAI] = openai
    app.on_response_prepare.extend([_add_rate_headers, add_request_id])
    add_history(app, services)
    allow_origins(app, origins)
    app[DOCUMENT] = encode_document(ROUTES)
    for route in ROUTES:
        app.router.add_route(
            route.method,
            _router_pattern(route.path),
            route.handler,
            name=route.name,
            expect_handler=answer_expect,
        )
    return app


@web.middleware
async def _count_request(request: web.Request, handler: Handler) -> web.StreamResponse:
    server = request.app[SERVICES]
    try:
        with server.connections.serving(request), server.slow.readers.watching(request):
            response = await handler(request)
    finally:
        server.bodies.release(request)
    name = request.match_info.route.name or "none"
    server.runs.metrics.responses[name, response.status] += 1
    if response.status in (401, 403) or name in _OPERATORS_CHANGES:
        server.administration.record_request(
            request, name, response.status, admin=name in _OPERATORS_CHANGES
        )
    return response


_WITHOUT_STORE = {"cancelRun", "metrics"}
_ROUTES = {route.name: route for route in ROUTES}
_OPERATORS_CHANGES = {r.name for r in ROUTES if r.access is Access.ADMIN and r.writes}


@web.middleware
async def _authenticate(request: web.Request, handler: Handler) -> web.StreamResponse:
    # A request without a route is answered 404 or 405 and needs no key.
    if request.match_info.http_exception is not None:
        return await handler(request)
    route = _ROUTES[request.match_info.route.name or ""]
    if route.access is Access.OPEN:
        return await handler(request)
    server = request.app[SERVICES]
    key = server.keys.admit(
        authorization_of(request.headers),
        tenants=route.access is not Access.ADMIN,
        operators=route.access is not Access.TENANT,
        writes=route.refuses_readers,
    )
    server.connections.assign_key(request, key.id, key.tenant)
    if route.name not in _WITHOUT_STORE:
        server.data_directory.check()
    if key.tenant is not None:
        request[ASKING] = key.tenant
        if not route.frees:
            server.rates.take_request(key.tenant)
    counted = None if route.frees else key.tenant
    with (
        server.connections.count_request(counted),
        server.administration.active_requests.count_request(key.tenant),
    ):
        if counted is None:
            return await handler(request)
        await server.cpu_reporter.wait_pause(counted)
        return await server.cpu_reporter.charge_awaitable(counted, handler(request))


def _traced_route(request: web.Request) -> str | None:
    """Return the path of a request's route, None for a route that needs no key, or none."""
    route = _ROUTES.get(request.match_info.route.name or "")
    return None if route is None or route.access is Access.OPEN else route.path


async def _add_rate_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Add the tenant's remaining rates to an answer of an OpenAI or Anthropic route."""
    tenant, route = request.get(ASKING), _ROUTES.get(request.match_info.route.name or "")
    if tenant is not None and route is not None and route.errors != "Problem":
        response.headers.update(request.app[SERVICES].rates.headers(tenant, request.get(TOKENS)))


def _router_pattern(path: str) -> str:
    """Return the path as the router has it: a KV file's path may hold slashes."""
    return path.replace("{path}", "{path:(?s:.+)}")


def _limits(config: GatewayConfig, administration: Administration) -> Limits:
    live = config.tenant_runs_live_max
    usual = {"live_runs": Bound(live, live), **config.limits}
    return Limits(usual, config.tenants, administration.tenants.quotas_of)


def _models(config: GatewayConfig, runs: Runs, limits: Limits) -> Models:
    """Return the models, with a link to each kernel."""
    secret, seconds = config.secret, config.kernel_wait_seconds
    if not config.models:
        kernel = KernelLink(config.kernel_socket, secret, runs, seconds)
        return Models([ServedModel(kernel, KernelLimits(limits, kernel), list(config.secrets))])
    served = []
    for each in config.models:
        kernel = KernelLink(each.socket, secret, runs, seconds)
        of_kernel = KernelLimits(limits, kernel)
        served.append(ServedModel(kernel, of_kernel, each.workers, each.name, each.kernel))
    return Models(served)


def _admission(config: GatewayConfig, load: ServerLoad) -> Admission:
    bounds = AdmissionBounds(
        runs=config.runs_live_max,
        tenant_runs=config.tenant_runs_live_max,
        queue_seconds=config.queue_seconds_max,
        memory_free_bytes=config.memory_free_bytes_min,
        drain_seconds=config.drain_seconds,
    )
    return Admission(bounds, load, MemoryGuard())


def _slow_clients(config: GatewayConfig) -> SlowClients:
    bodies = SlowBodies(config.slow_grace_seconds, config.slow_bytes_a_second)
    return SlowClients(bodies, SlowReaders(config.slow_reader_seconds))


def _compiler(config: GatewayConfig, runs: Callable[[], Runs]) -> Compiler:
    def others_run(tenant: str) -> bool:
        return bool(runs().live_by_tenant().keys() - {tenant})

    return Compiler(require_containment=config.require_containment, others_running=others_run)
