"""Egress calls, from a worker's Ask to its answer.

Each is a task of its own, which is cancelled with the program's ticket or at the program's end.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import TENANT_OUTSIDE_CALLS_MAX

from symphony_runtime.abi.egress_requests import HttpRequest, ToolRequest, parse_http, parse_tool
from symphony_runtime.gateway.config import GatewayConfig
from symphony_runtime.gateway.egress.http import HttpEgress
from symphony_runtime.gateway.egress.injection import Injector
from symphony_runtime.gateway.egress.metrics import EgressMetrics

if TYPE_CHECKING:
    from symphony_runtime.gateway.egress.mcp.tools import McpTools

_UNTRACED: Mapping[str, str] = {}


class Egress:
    """What programs may reach: nothing, unless the configuration allows it."""

    def __init__(self, config: GatewayConfig, injector: Injector | None = None) -> None:
        self._config = config
        self._tools: McpTools | None = None
        self._http = HttpEgress(config.http, injector=injector)
        self._under_way: Counter[str] = Counter()  # calls by tenant
        self.metrics = EgressMetrics()

    async def start(self) -> None:
        if self._config.tools:
            self._tools = await asyncio.to_thread(_make_tools, self._config, self.metrics)
            self._tools.start()

    async def stop(self) -> None:
        await self._http.stop()
        if self._tools is not None:
            await self._tools.stop()

    async def perform(
        self, what: str, tenant: str, request: Any, trace: Mapping[str, str] = _UNTRACED
    ) -> bytes:
        """Make a call of a tenant's program; return its result.

        `trace` are headers that name the call's span, for servers that may get them.

        Raises SyscallError: the program's errno; EAGAIN, the tenant has too many calls in progress.
        """
        with self.metrics.counted(what), self._counted(tenant):
            if what == "tools":
                return b"\x90" if self._tools is None else await self._tools.list(tenant)
            if isinstance(request, HttpRequest):
                return await self._http.call(tenant, request, trace)
            assert isinstance(request, ToolRequest)
            if self._tools is None:
                raise SyscallError(Errno.ENOENT, f"there is no tool {request.name!r}")
            return await self._tools.call(tenant, request, trace)

    def statistics(self) -> dict[str, Any]:
        tools = {} if self._tools is None else self._tools.statistics()
        return {"calls": sum(self._under_way.values()), "tool_servers": tools}

    @contextlib.contextmanager
    def _counted(self, tenant: str) -> Any:
        if self._under_way[tenant] >= TENANT_OUTSIDE_CALLS_MAX:
            detail = f"the tenant has {TENANT_OUTSIDE_CALLS_MAX} calls in progress, its limit"
            raise SyscallError(Errno.EAGAIN, detail)
        self._under_way[tenant] += 1
        try:
            yield
        finally:
            self._under_way[tenant] -= 1
            if not self._under_way[tenant]:
                del self._under_way[tenant]


def parse(what: str, data: bytes) -> Any:
    """Return the request in a worker's Ask; SyscallError as `abi.egress_requests`."""
    if what == "http":
        return parse_http(data)
    return parse_tool(data) if what == "tool" else None


def name_of(what: str, request: Any) -> str:
    if isinstance(request, HttpRequest):
        return f"{request.method} {request.url.origin()}"
    return request.name if isinstance(request, ToolRequest) else what


def _make_tools(config: GatewayConfig, metrics: EgressMetrics) -> "McpTools":
    # The library takes a second to load: import it only if there is a tool server.
    from symphony_runtime.gateway.egress.mcp.tools import McpTools

    return McpTools(config.tools, metrics)
