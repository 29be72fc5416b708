"""The gateway's boot order, and the application that answers requests.

    1. the database; runs that were live when an earlier gateway died are failed, with all events
       that their readers may have seen
    2. keys (made on the first start)
    3. the socket for workers, the link to the kernel
    4. HTTP: requests are answered from here on, 503 until kernel and a worker are there

It stops in the opposite order: no new runs, live ones get their time, then everything closes.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from symphony_kernel.protocol.role_processes import Processes

from symphony_runtime.compiler.compiler import Compiler
from symphony_runtime.config.limits import Bound, Limits
from symphony_runtime.gateway.admission.admission import Admission, AdmissionBounds
from symphony_runtime.gateway.admission.load import ServerLoad
from symphony_runtime.gateway.admission.memory import MemoryGuard
from symphony_runtime.gateway.admission.rate_limit import ASKING, TOKENS, RateLimiters
from symphony_runtime.gateway.api.openapi import DOCUMENT, encode_document
from symphony_runtime.gateway.api.routes import ROUTES, Access
from symphony_runtime.gateway.clock import now_ms
from symphony_runtime.gateway.cluster.members import Members
from symphony_runtime.gateway.cluster.recovery import fail_live_runs
from symphony_runtime.gateway.config import ConfigError, GatewayConfig
from symphony_runtime.gateway.connections.listener import check_host, listen
from symphony_runtime.gateway.connections.slow_clients import SlowBounds, SlowClients
from symphony_runtime.gateway.connections.slow_readers import SlowReaders
from symphony_runtime.gateway.egress.calls import Egress
from symphony_runtime.gateway.egress.injection import Injector
from symphony_runtime.gateway.egress.vault import Vault, VaultError
from symphony_runtime.gateway.errors import Handler, answer_expect, problems_middleware
from symphony_runtime.gateway.http.context import SERVICES, Services
from symphony_runtime.gateway.http.idempotency import Idempotency
from symphony_runtime.gateway.links.links import KernelLink, WorkerLinks
from symphony_runtime.gateway.links.startup import StartupProgress
from symphony_runtime.gateway.metrics.counters import RunMetrics
from symphony_runtime.gateway.metrics.disk import measure
from symphony_runtime.gateway.metrics.kernel import KernelMetrics
from symphony_runtime.gateway.openai.errors import openai_errors_middleware
from symphony_runtime.gateway.openai.handlers import OPENAI, OpenAI
from symphony_runtime.gateway.programs.store import Programs
from symphony_runtime.gateway.runs.channels import Channels
from symphony_runtime.gateway.runs.cpu_reporting import CpuReporter
from symphony_runtime.gateway.runs.record import next_boot
from symphony_runtime.gateway.runs.retention import Bounds, Retention
from symphony_runtime.gateway.runs.service import Runs
from symphony_runtime.gateway.storage.changes import ChangeFeed, gateway_name
from symphony_runtime.gateway.storage.crash_log import clear_tail, read_tail
from symphony_runtime.gateway.storage.data_directory import DataDirectory
from symphony_runtime.gateway.storage.disk_budget import DiskBudget
from symphony_runtime.gateway.storage.store import Store, StoreError
from symphony_runtime.gateway.tenancy.administration import Administration
from symphony_runtime.gateway.tenancy.authentication import open_keys
from symphony_runtime.gateway.tenancy.deletion import TenantDeletion
from symphony_runtime.gateway.tenancy.program_expiry import ProgramExpiry

_log = logging.getLogger(__name__)
_TIDY_SECONDS = 1.0  # between looks at what deletions have freed
_SHUTDOWN_SECONDS = 2.0  # for answers that are still being written
DIED = "the gateway died while it ran"


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway that serves. `port` is the real one; `default_key` if it was made just now."""

    services: Services
    port: int
    default_key: str | None
    openai: OpenAI


@contextlib.asynccontextmanager
async def serve(
    config: GatewayConfig,
    progress: StartupProgress | None = None,
    processes: Processes | None = None,
) -> AsyncIterator[Gateway]:
    """Boot the gateway, and stop it at the end of the block.

    `progress` and `processes` are the other roles'; without these a worker may be any process.

    Raises:
        ConfigError: what the operator asked for cannot be served.
    """
    check_host(config)
    config.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    async with contextlib.AsyncExitStack() as stack:
        store = _open_store(config)
        stack.push_async_callback(store.close)
        keys, default_key = await open_keys(store, config)
        administration = await Administration.open(store, keys, config.behind_proxy)
        administration.start()
        stack.push_async_callback(administration.stop)
        boot, deletion = await _enter(store, await _fail_left(store, config), administration)
        compiler = _compiler(config, lambda: runs)
        programs = Programs(store, config.data_dir, compiler)
        limits = _limits(config, administration)
        figures = RunMetrics()
        channels = Channels(limits=limits, reached=figures.hit)
        retention = Retention(store, _bounds(config), now_ms)
        await retention.load()
        vault = _open_vault(store, config)
        egress = await _open_outside(config, vault, stack)
        load = ServerLoad(lambda: kernel.ask("waiting"))
        stack.push_async_callback(load.stop)
        runs = Runs(
            store, programs, channels, config, boot, retention, egress,
            Admission(_admitted(config), load, MemoryGuard()), administration, limits, figures,
        )  # fmt: skip
        kernel = KernelLink(config.kernel_socket, config.secret, runs, config.kernel_wait_seconds)
        kernel.on_linked = lambda: administration.tell_weights(kernel)
        administration.attach(runs)
        cpu = compiler.account = CpuReporter(runs, kernel, store)
        progress = progress or StartupProgress()
        workers = WorkerLinks(config.socket, config.secrets, cpu, processes, progress.silent)
        runs.attach(kernel, workers)
        if store.shared:
            holders = deletion, administration, programs
            _beside(stack, ChangeFeed(store, deletion.members.beat, *holders).run())
        _beside(stack, runs.worker_assignment.run())
        idempotency = Idempotency(store, now_ms, boot)
        _beside(stack, idempotency.run())
        await workers.open()
        stack.push_async_callback(workers.close)
        _beside(stack, retention.run())
        _beside(stack, kernel.run())
        services = Services(
            keys, programs, runs, store, channels, KernelMetrics(kernel), progress, administration,
            RateLimiters(limits, figures.hit), idempotency, vault, retention, deletion, cpu,
            DataDirectory(config.data_dir, ["symphony.sqlite"]),
            connections=administration.connections, slow=_slow_clients(config),
        )  # fmt: skip
        stack.callback(services.slow.readers.stop)
        _watch_disk(stack, services, figures, limits)
        _forget_beside(stack, services, config)
        app = build_app(services)
        runner = web.AppRunner(app, shutdown_timeout=_SHUTDOWN_SECONDS)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        port = await listen(runner, config, services.connections, stack)
        stack.push_async_callback(runs.drain)
        yield Gateway(services, port, default_key, app[OPENAI])


async def _fail_left(store: Store, config: GatewayConfig) -> str:
    """Fail the runs that were live when an earlier gateway of our name died; return the name."""
    name, left = _gateway_name(config), read_tail(config.data_dir)
    failed = await store.write(lambda connection: fail_live_runs(connection, left, DIED, name))
    clear_tail(config.data_dir)
    if failed:
        _log.warning("%d runs were live when the last gateway died", failed)
    return name


def _beside(stack: contextlib.AsyncExitStack, work: Coroutine[Any, Any, None]) -> None:
    """Do something beside the requests, until the stack ends."""
    stack.push_async_callback(_cancel, asyncio.create_task(work))


def _watch_disk(
    stack: contextlib.AsyncExitStack, with_: Services, figures: RunMetrics, limits: Limits
) -> None:
    """Count what tenants hold on disk, and give back what deletions have freed."""
    disk = with_.store.disk
    disk.kept_of, disk.on_hit = with_.retention.kept_bytes, figures.hit
    kernel = with_.runs.kernel
    disk.tier_bytes = lambda: int(kernel.about.get("disk_tier_bytes", 0))
    disk.limit_of = lambda tenant: limits.of(tenant).most("disk_bytes")
    kernel_figures = KernelMetrics(kernel)  # else a scrape would get earlier ones
    _beside(stack, disk.run(lambda: measure(with_.store, kernel_figures)))
    _beside(stack, _tidy(with_.store))


async def _tidy(store: Store) -> None:
    """Give back what deletions have freed, again and again."""
    while True:
        await asyncio.sleep(_TIDY_SECONDS)
        try:
            await store.tidy()
        except store.errors as error:
            _log.warning("the database's file does not become smaller: %s", error)


def _forget_beside(
    stack: contextlib.AsyncExitStack, with_: Services, config: GatewayConfig
) -> None:
    """Forget tenants that are gone, and programs that nobody uses: which use is noted."""
    _beside(stack, with_.deletion.run(with_))
    program_usage, days = with_.programs.program_usage, config.program_unused_days_max
    stack.push_async_callback(program_usage.close)
    _beside(stack, program_usage.run())
    _beside(stack, ProgramExpiry(with_.store, with_.programs, with_.runs, days, now_ms).run())


async def _enter(
    store: Store, name: str, administration: Administration
) -> tuple[int, TenantDeletion]:
    """Count this start of a gateway; return its number, and what there is to forget at once."""
    boot = await store.write(lambda connection: next_boot(connection, name))
    deletion = TenantDeletion(Members(store, name, boot, now_ms), administration)
    await deletion.members.enter()
    await deletion.reload()
    return boot, deletion


async def _open_outside(
    config: GatewayConfig, vault: Vault, stack: contextlib.AsyncExitStack
) -> Egress:
    injector = Injector(vault.reveal, plain_loopback=config.secrets_plain_loopback)
    egress = Egress(config, injector)
    stack.push_async_callback(egress.stop)
    await egress.start()
    return egress


async def _cancel(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.wait([task])


def build_app(services: Services) -> web.Application:
    """Return the application that serves the route table."""
    middlewares = [_count, problems_middleware, openai_errors_middleware, _authenticate]
    app = web.Application(middlewares=middlewares)
    app[SERVICES] = services
    app[OPENAI] = OpenAI(services.runs, services.programs, services.idempotency)
    app.on_response_prepare.append(_tell_rates)
    app[DOCUMENT] = encode_document(ROUTES)
    for route in ROUTES:
        app.router.add_route(
            route.method,
            _pattern(route.path),
            route.handler,
            name=route.name,
            expect_handler=answer_expect,
        )
    return app


@web.middleware
async def _count(request: web.Request, handler: Handler) -> web.StreamResponse:
    with_ = request.app[SERVICES]
    try:
        with with_.connections.serving(request), with_.slow.readers.watching(request):
            response = await handler(request)
    finally:
        with_.bodies.release(request)
    name = request.match_info.route.name or "none"
    with_.runs.figures.answered(name, response.status)
    if response.status in (401, 403) or name in _OPERATORS_CHANGES:
        with_.administration.note(request, name, response.status, admin=name in _OPERATORS_CHANGES)
    return response


_WITHOUT_STORE = {"cancelRun", "metrics"}
_ROUTES = {route.name: route for route in ROUTES}
_OPERATORS_CHANGES = {r.name for r in ROUTES if r.access is Access.ADMIN and r.writes}


@web.middleware
async def _authenticate(request: web.Request, handler: Handler) -> web.StreamResponse:
    # A request that matches no route is answered 404 or 405 and touches nothing.
    if request.match_info.http_exception is not None:
        return await handler(request)
    route = _ROUTES[request.match_info.route.name or ""]
    if route.access is Access.OPEN:
        return await handler(request)
    with_ = request.app[SERVICES]
    key = with_.keys.admit(
        request.headers.get("Authorization"),
        tenants=route.access is not Access.ADMIN,
        operators=route.access is not Access.TENANT,
        writes=route.writes,
    )
    with_.connections.known(request, key.id, key.tenant)
    if route.name not in _WITHOUT_STORE:
        with_.data_directory.check()
    if key.tenant is not None:
        request[ASKING] = key.tenant
        if not route.frees:
            with_.rates.request(key.tenant)
    counted = None if route.frees else key.tenant
    with with_.connections.of(counted), with_.administration.active_requests.visit(key.tenant):
        if counted is None:
            return await handler(request)
        await with_.fair_start.turn(counted)
        await with_.cpu_reporter.turn(counted)
        return await with_.cpu_reporter.timed(counted, handler(request))


async def _tell_rates(request: web.Request, response: web.StreamResponse) -> None:
    """Add to an answer of an OpenAI route what is left of the tenant's rates."""
    tenant, route = request.get(ASKING), _ROUTES.get(request.match_info.route.name or "")
    if tenant is not None and route is not None and route.errors == "OpenAIError":
        response.headers.update(request.app[SERVICES].rates.headers(tenant, request.get(TOKENS)))


def _pattern(path: str) -> str:
    """Return the path as the router has it: a KV file's path may hold slashes."""
    return path.replace("{path}", "{path:(?s:.+)}")


def _limits(config: GatewayConfig, administration: Administration) -> Limits:
    live = config.tenant_runs_live_max
    everybodys = {"live_runs": Bound(live, live), **config.limits}
    return Limits(everybodys, config.tenants, administration.tenants.quotas_of)


def _admitted(config: GatewayConfig) -> AdmissionBounds:
    return AdmissionBounds(
        runs=config.runs_live_max,
        tenant_runs=config.tenant_runs_live_max,
        queue_seconds=config.queue_seconds_max,
        memory_free_bytes=config.memory_free_bytes_min,
        drain_seconds=config.drain_seconds,
    )


def _slow_clients(config: GatewayConfig) -> SlowClients:
    bounds = SlowBounds(config.slow_grace_seconds, config.slow_bytes_a_second)
    return SlowClients(bounds, SlowReaders(config.slow_reader_seconds))


def _bounds(config: GatewayConfig) -> Bounds:
    return Bounds(
        seconds=config.run_kept_seconds_max,
        runs=config.tenant_runs_kept_max,
        bytes=config.tenant_kept_bytes_max,
    )


def _open_vault(store: Store, config: GatewayConfig) -> Vault:
    try:
        return Vault(store, config.data_dir, now_ms)
    except VaultError as error:
        raise ConfigError(str(error)) from error


def _compiler(config: GatewayConfig, runs: Callable[[], Runs]) -> Compiler:
    """Return the compiler, which asks who else has something running."""

    def beside(tenant: str) -> bool:
        return bool(runs().live_by_tenant().keys() - {tenant})

    return Compiler(require_containment=config.require_containment, beside=beside)


def _gateway_name(config: GatewayConfig) -> str:
    try:
        return gateway_name(config.data_dir)
    except StoreError as error:
        raise ConfigError(str(error)) from error


def _open_store(config: GatewayConfig) -> Store:
    disk = DiskBudget(config.data_dir, config.disk_reserve_bytes, config.disk_bytes_max)
    try:
        return Store(config.data_dir / "symphony.sqlite", config.store, disk)
    except StoreError as error:
        raise ConfigError(str(error)) from error
