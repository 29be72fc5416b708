"""A real gateway, kernel (simulated executor) and worker in one process, on real sockets.

async def scenario() -> None:
    async with SystemRig(tmp_path) as system, system.client() as client:
        ...
"""

import asyncio
import contextlib
import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from symphony import AsyncClient, ClientError, ServerError
from symphony_kernel.executor.models.assets import ModelAssets
from symphony_kernel.executor.simulated import (
    PAGES_DEFAULT,
    CostModel,
    SimulatedExecutor,
    simulated_model,
)
from symphony_kernel.ipc.server import Server
from symphony_kernel.kernel import Kernel, KernelOptions, describe
from symphony_kernel.platform.clock import RealClock
from symphony_kernel.protocol.links import connect_unix
from symphony_kernel.protocol.role_processes import Processes
from symphony_kernel.protocol.sessions import LinkLostError
from symphony_kernel.syscalls.durable_names import DurableOptions
from symphony_runtime.config.egress import parse_http, parse_tools
from symphony_runtime.gateway.app import Gateway, serve
from symphony_runtime.gateway.config import GatewayConfig
from symphony_runtime.gateway.errors import Problem
from symphony_runtime.languages.language import SHIPPED, Language
from symphony_runtime.worker.worker import Worker

from tests.support.gateway.routes import undocumented
from tests.support.kernel.rig import audited
from tests.support.sockets import make_socket_folder
from tests.support.waiting import wait_until

WORKER_SECRET = b"w" * 32
GATEWAY_SECRET = b"g" * 32


@dataclass(frozen=True)
class Answer:
    """The whole answer to a request."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class SystemRig:
    """Enter it to have all roles up and linked.

    Leaving it checks the kernel's books, that OpenAPI names every answered status, and that
    no error of a task or a future was dropped.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        worker: bool = True,
        step_ms: float = 0.0,
        processes: Processes | None = None,
        assets: ModelAssets | None = None,
        languages: tuple[Language, ...] = SHIPPED,
        **config: Any,
    ) -> None:
        """`processes`: the only ones that may be a worker; here its links come from this one."""
        self._with_worker = worker
        self._processes = processes
        self._languages = languages
        self._assets = assets or ModelAssets(simulated_model(), b"", None, {})
        self._cost = CostModel(fixed_us=1000 * step_ms)
        self._sockets = make_socket_folder()
        self.data_dir = data_dir
        self.config = GatewayConfig(
            socket=self._sockets / "gateway.sock",
            secrets={"worker-0": WORKER_SECRET},
            secret=GATEWAY_SECRET,
            kernel_socket=self._sockets / "kernel.sock",
            data_dir=data_dir,
            host="127.0.0.1",
            port=0,
            tools=parse_tools(config.pop("tools", {})),
            http=parse_http(config.pop("http", [])),
            **{"drain_seconds": 0.2, **config},
        )
        self.gateway: Gateway
        self.kernel: Kernel
        self.worker: Worker

    async def __aenter__(self) -> "SystemRig":
        self._stack = contextlib.AsyncExitStack()
        self._stack.callback(shutil.rmtree, self._sockets)
        self._unheard: list[str] = []  # what asyncio complains of
        asyncio.get_running_loop().set_exception_handler(
            lambda _loop, told: self._unheard.append(f"{told['message']}: {told.get('exception')}")
        )
        await self.start_kernel()
        serving = serve(self.config, processes=self._processes, languages=self._languages)
        self.gateway = await self._stack.enter_async_context(serving)
        if self._with_worker:
            self.worker = Worker("worker-0", WORKER_SECRET)
            await self.link_worker()
            await self.wait_until_ready()
        else:
            await wait_until(lambda: self.gateway.services.runs.kernel.ready)
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._stack.aclose()
        if self._with_worker:
            self.worker.close()
            assert not self.worker.faults
        await asyncio.sleep(0.01)  # the kernel learns of the ends
        await self.stop_kernel()
        assert not self._unheard, self._unheard
        assert not undocumented(self.gateway.services.runs.metrics.responses)

    async def start_kernel(self) -> None:
        assets = self._assets
        executor = SimulatedExecutor(RealClock(), PAGES_DEFAULT, assets.model, self._cost, True)
        options = KernelOptions(durable=DurableOptions(self.data_dir / "kv"))
        self.kernel = Kernel(executor, describe(assets), RealClock(), audited(options))
        self.kernel.durable_names.open(known=False)
        self._running = asyncio.create_task(self.kernel.run())
        secrets = {"worker-0": WORKER_SECRET, "gateway": GATEWAY_SECRET}
        self._server = Server(self.kernel, secrets)
        await self._server.listen(self.config.kernel_socket)

    async def stop_kernel(self) -> None:
        await self._server.close()
        await self.kernel.close()
        await self._running

    async def restart_kernel(self) -> None:
        """Put a new kernel in the place of this one, with the worker linked to it."""
        await self.stop_kernel()
        await self.start_kernel()
        await self.link_worker_to_kernel()

    async def link_worker(self) -> None:
        await self.link_worker_to_kernel()
        await self.worker.attach_gateway(await connect_unix(self.config.socket))

    async def link_worker_to_kernel(self) -> None:
        """As often as it takes: the first attempt may tell that all is forgotten."""
        while True:
            with contextlib.suppress(LinkLostError):
                await self.worker.attach_kernel(await connect_unix(self.config.kernel_socket))
                return

    async def wait_until_ready(self) -> None:
        async with asyncio.timeout(20), AsyncClient(self.url, retries=0) as client:
            while True:
                with contextlib.suppress(ClientError):
                    if (await client.ready())[0]:
                        return
                await asyncio.sleep(0.005)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.gateway.port}"

    @property
    def key(self) -> str:
        return (self.data_dir / "default.key").read_text().strip()

    @property
    def admin_key(self) -> str:
        return (self.data_dir / "admin.key").read_text().strip()

    def client(self) -> AsyncClient:
        # Tests of disks read runs with much more output than a client takes by default.
        return AsyncClient(self.url, self.key, retries=0, answer_bytes_max=1 << 30)

    def admin(self) -> AsyncClient:
        return AsyncClient(self.url, self.admin_key, retries=0)

    def session(self, key: str | None = None, **headers: str) -> aiohttp.ClientSession:
        """Return a session for requests by path, with the default tenant's key or this one."""
        headers = {"Authorization": f"Bearer {key or self.key}", **headers}
        return aiohttp.ClientSession(self.url, headers=headers)

    async def ask(
        self, method: str, path: str, *, key: str | None = None, **options: Any
    ) -> Answer:
        """Make one request with the default tenant's key or this one."""
        async with (
            self.session(key) as session,
            session.request(method, path, **options) as response,
        ):
            return Answer(response.status, response.headers, await response.read())

    async def add_tenant(self, tenant: str = "acme", **options: Any) -> str:
        """Create a tenant and return a key of it."""
        async with self.admin() as admin:
            await admin.admin.create_tenant(tenant, **options)
            key: str = (await admin.admin.create_key(tenant))["key"]
            return key

    @contextlib.asynccontextmanager
    async def tenant(self, tenant: str = "acme", **options: Any) -> AsyncIterator[AsyncClient]:
        """Create a tenant; its client for the length of a block."""
        async with AsyncClient(
            self.url, await self.add_tenant(tenant, **options), retries=0
        ) as client:
            yield client


Scenario = Callable[[SystemRig, AsyncClient], Awaitable[None]]


def with_system(data_dir: Path, scenario: Scenario, **config: Any) -> None:
    async def play() -> None:
        async with SystemRig(data_dir, **config) as system, system.client() as client:
            await scenario(system, client)

    asyncio.run(play())


def with_admin(data_dir: Path, scenario: Scenario) -> None:
    """Run a scenario with the client of an operator."""

    async def whole(system: SystemRig, _: AsyncClient) -> None:
        async with system.admin() as admin:
            await scenario(system, admin)

    with_system(data_dir, whole)


async def refused(asked: Awaitable[Any]) -> ServerError:
    """Return the error that a request of a client ends with."""
    with pytest.raises(ServerError) as caught:
        await asked
    return caught.value


async def refusal(asked: Awaitable[Any]) -> tuple[int, str]:
    """Return status and kind of the problem that a request, or a call of a service, ends with."""
    try:
        await asked
    except Problem as problem:
        return problem.status, problem.kind
    except ServerError as error:
        return error.status, error.problem["type"].rpartition(":")[2]
    raise AssertionError("the request was not refused")
